"""Several writers at one reader: each sends its share, nobody coordinates them."""

from __future__ import annotations

from .model import Contender, Workload
from .peers import Peer
from .rounds import Plan
from .streams import Flow, runner

GROUP = "crowd"
WRITERS = 4
SIZE = 128  # small enough for the kernel's pipe to take it at once from each


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    flow = Flow(bytes(SIZE), SIZE, writers=WRITERS)
    return [
        Workload(
            name="crowd",
            group=GROUP,
            title=f"{SIZE} B from {WRITERS} writers to one reader",
            contenders=[
                Contender(peer.name, runner(peer, flow, plan)) for peer in peers if peer.writers
            ],
            size=SIZE,
            first_count=1000,
        )
    ]
