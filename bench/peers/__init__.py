"""shmpipe and those it is compared with."""

from __future__ import annotations

from .base import Channel, Peer
from .named import Cloudtoid, Iceoryx, Zmq
from .queues import Dejaq, FasterFifo
from .shm import ShmPipe
from .stdlib import OsPipe, SimpleQueue, StdlibPipe

__all__ = ["Channel", "Peer", "all_peers"]


def all_peers() -> list[Peer]:
    """Everybody, in the order of the tables."""
    return [
        ShmPipe(),
        StdlibPipe(False),
        StdlibPipe(True),
        OsPipe(),
        SimpleQueue(),
        FasterFifo(),
        Cloudtoid(),
        Zmq(),
        Dejaq(),
        Iceoryx(),
    ]
