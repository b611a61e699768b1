"""How long it takes to make a pipe and to close it, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat

from .model import Contender, Sample, Workload
from .peers import Peer
from .peers.shm import CREATIONS
from .processes import Crew, Post
from .rounds import Plan

GROUP = "creation"


def _member(post: Post, peer: Peer, count: int) -> float:
    cycle = peer.create_and_close()
    cycle()  # what is done once per process, such as importing, is not part of a creation
    post.ready()
    post.start()
    start = time.perf_counter()
    for _ in repeat(None, count):
        cycle()
    return time.perf_counter() - start


def _runner(peer: Peer, plan: Plan) -> Callable[[int], Sample]:
    def run(count: int) -> Sample:
        with Crew(plan.timeout) as crew:
            crew.fork(_member, peer, count)
            [seconds], usage = crew.run()
        return Sample(count, seconds, usage.cpu, usage.switches)

    return run


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    everybody = [*CREATIONS, *(peer for peer in peers if not peer.ours)]
    return [
        Workload(
            name="creation",
            group=GROUP,
            title="Creating and closing a pipe",
            contenders=[Contender(peer.name, _runner(peer, plan)) for peer in everybody],
            unit="pipe",
            first_count=3,
            subject="shmpipe.Pipe()",
        )
    ]
