"""From one or more sending processes to a receiving one: the frame of all one-way workloads.

A channel hands out functions; a ``Flow`` says which of them a workload uses and with what.  The
clock runs from the first sender's start to the receiver's last message; both are set up, and have
exchanged a few messages, when it starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from .model import Sample
from .peers import Channel, Peer
from .processes import Crew, Post
from .rounds import Plan

WARM_BYTES = 4 << 20  # what it takes to touch all of a ring, to grow it, to fill a cache
WARM_COUNT = 64


@dataclass(frozen=True)
class Flow:
    """``send(channel)`` gives a function of the message, ``receive(channel)`` one of nothing."""

    message: Any
    size: int
    send: Callable[[Channel], Callable[[Any], Any]] = lambda channel: channel.sender()
    receive: Callable[[Channel], Callable[[], Any]] = lambda channel: channel.receiver()
    writers: int = 1

    @property
    def warm_up(self) -> int:
        """Messages that each writer sends before the clock starts."""
        return max(2, min(WARM_COUNT, WARM_BYTES // self.size))


def _sender(post: Post, channel: Channel, flow: Flow, count: int) -> float:
    send, message = flow.send(channel), flow.message
    post.ready()
    for _ in range(flow.warm_up):
        send(message)
    post.start()
    start = time.perf_counter()
    for _ in repeat(None, count):
        send(message)
    post.on_leave(channel.leave)
    return start


def _receiver(post: Post, channel: Channel, flow: Flow, count: int) -> float:
    receive = flow.receive(channel)
    post.ready()
    for _ in range(flow.warm_up * flow.writers):
        receive()
    post.start()
    for _ in repeat(None, count):
        receive()
    end = time.perf_counter()
    post.on_leave(channel.leave)
    return end


def runner(peer: Peer, flow: Flow, plan: Plan) -> Callable[[int], Sample]:
    """What a contender runs."""

    def run(count: int) -> Sample:
        share = -(-count // flow.writers)
        count = share * flow.writers
        channel = peer.channel(flow.size, flow.writers)
        try:
            with Crew(plan.timeout) as crew:
                crew.fork(_receiver, channel, flow, count)
                for _ in range(flow.writers):
                    crew.fork(_sender, channel, flow, share)
                (end, *starts), usage = crew.run()
        finally:
            channel.close()
        return Sample(count, end - min(starts), usage.cpu, usage.switches, count * flow.size)

    return run
