"""Objects one way: small dicts, and NumPy arrays of 8 MB."""

from __future__ import annotations

import pickle

import numpy as np

from .limits import memcpy
from .model import Contender, Workload
from .peers import Peer
from .rounds import Plan
from .streams import Flow, runner

GROUP = "objects"
RECORD = {"id": 4711, "name": "sensor-7", "values": [20.5, 21.25, 19.75], "valid": True}


def _flow(message: object, size: int) -> Flow:
    return Flow(
        message,
        size,
        send=lambda channel: channel.putter(),
        receive=lambda channel: channel.getter(),
    )


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    array = np.arange(1_000_000, dtype=np.float64)
    small = len(pickle.dumps(RECORD, 5))
    takers = [peer for peer in peers if peer.objects]
    return [
        Workload(
            name="dict",
            group=GROUP,
            title=f"Small dicts ({small} bytes pickled) one way, send to recv",
            contenders=[
                Contender(peer.name, runner(peer, _flow(RECORD, small), plan)) for peer in takers
            ],
            size=small,
            first_count=500,
        ),
        Workload(
            name="array-8MB",
            group=GROUP,
            title="NumPy arrays of 8 MB one way, send to recv",
            contenders=[
                *(
                    Contender(peer.name, runner(peer, _flow(array, array.nbytes), plan))
                    for peer in takers
                ),
                memcpy(array.nbytes, plan),
            ],
            size=array.nbytes,
            first_count=4,
            per="GB",
        ),
    ]
