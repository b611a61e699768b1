"""One process reads many connections through ``selectors``, another one writes to all in turn."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from itertools import chain, repeat

from .model import Contender, Sample, Workload
from .peers import Channel, Peer
from .processes import Crew, Post
from .rounds import Plan

GROUP = "selectors"
CONNECTIONS = 16
SIZE = 128


def _sender(post: Post, channels: list[Channel], rounds: int) -> float:
    senders, message = [channel.sender() for channel in channels], bytes(SIZE)
    post.ready()
    post.start()
    start = time.perf_counter()
    for send in chain.from_iterable(repeat(senders, rounds)):
        send(message)
    return start


def _receiver(post: Post, channels: list[Channel], rounds: int) -> float:
    left = rounds * len(channels)
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel.fileno(), selectors.EVENT_READ, channel.receiver())
        post.ready()
        post.start()
        while left > 0:
            # One message for each event, as in a server that treats its clients alike.
            for key, _ in selector.select():
                key.data()
                left -= 1
    return time.perf_counter()


def _runner(peer: Peer, plan: Plan) -> Callable[[int], Sample]:
    def run(count: int) -> Sample:
        rounds = -(-count // CONNECTIONS)
        count = rounds * CONNECTIONS
        channels: list[Channel] = []
        try:
            for _ in range(CONNECTIONS):
                channels.append(peer.channel(SIZE))
            with Crew(plan.timeout) as crew:
                crew.fork(_receiver, channels, rounds)
                crew.fork(_sender, channels, rounds)
                (end, start), usage = crew.run()
        finally:
            for channel in channels:
                channel.close()
        return Sample(count, end - start, usage.cpu, usage.switches, count * SIZE)

    return run


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    return [
        Workload(
            name="selectors",
            group=GROUP,
            title=f"A selectors loop over {CONNECTIONS} connections, {SIZE} B",
            contenders=[
                Contender(peer.name, _runner(peer, plan)) for peer in peers if peer.watchable
            ],
            size=SIZE,
            first_count=500,
        )
    ]
