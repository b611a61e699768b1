"""What a process has of a stream it is in the middle of, for all its ends on that ring."""

from __future__ import annotations

import os
import weakref

from .assembling import Assembly
from .segment import Segment


class Keeper:
    """The assembly counts only while R_KEEPER names this process; under the readers' turn."""

    assembly: Assembly | None = None
    ends = 0  # open ends of this process that receive from the ring


_keepers: weakref.WeakValueDictionary[tuple[int, int, int], Keeper] = weakref.WeakValueDictionary()


def keeper_of(segment: Segment, ring: int) -> Keeper:
    """The one keeper of a ring, also where the process has mapped its segment more than once."""
    status = os.fstat(segment.fd)
    return _keepers.setdefault((status.st_dev, status.st_ino, ring), Keeper())
