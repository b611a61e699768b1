"""There and back: how long one waits for an answer."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from itertools import repeat

from .limits import TwoSemaphores
from .model import Contender, Sample, Workload, size_name
from .peers import Channel, Peer
from .peers.shm import ShmPipe
from .processes import Crew, Post
from .rounds import Plan

GROUP = "roundtrip"
SIZES = (8, 64 << 10)
WARM_UP = 50


def _answering(post: Post, there: Channel, back: Channel, count: int) -> None:
    receive, send = there.receiver(), back.sender()
    post.ready()
    for _ in range(WARM_UP):
        send(receive())
    post.start()
    for _ in repeat(None, count):
        send(receive())
    post.on_leave(there.leave)
    post.on_leave(back.leave)


def _asking(post: Post, there: Channel, back: Channel, size: int, count: int) -> bytes:
    receive, send, message = back.receiver(), there.sender(), bytes(size)
    post.ready()
    for _ in range(WARM_UP):
        send(message)
        receive()
    times = array("d", bytes(8 * count))
    clock = time.perf_counter
    post.start()
    for number in range(count):
        start = clock()
        send(message)
        receive()
        times[number] = clock() - start
    post.on_leave(there.leave)
    post.on_leave(back.leave)
    return times.tobytes()


def _runner(peer: Peer, size: int, plan: Plan) -> Callable[[int], Sample]:
    def run(count: int) -> Sample:
        there = peer.channel(size)
        try:
            back = peer.channel(size)
            try:
                with Crew(plan.timeout) as crew:
                    crew.fork(_answering, there, back, count)
                    crew.fork(_asking, there, back, size, count)
                    (_, times), usage = crew.run()
            finally:
                back.close()
        finally:
            there.close()
        latencies = array("d", times)
        seconds = sum(latencies)
        return Sample(count, seconds, usage.cpu, usage.switches, 2 * count * size, latencies)

    return run


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    everybody = list(peers)
    everybody.insert(1, ShmPipe("shmpipe spin=0", spin=0))
    everybody.append(TwoSemaphores())
    return [
        Workload(
            name=f"roundtrip-{size_name(size)}",
            group=GROUP,
            title=f"Round trips of {size_name(size, ' ')}",
            contenders=[Contender(peer.name, _runner(peer, size, plan)) for peer in everybody],
            unit="round trip",
            size=size,
            first_count=200,
            max_count=plan.trips,
        )
        for size in SIZES
    ]
