"""What a process has of a stream it is in the middle of, for all its ends on that ring."""

from __future__ import annotations

from .assembling import Assembly
from .living import Living
from .segment import Segment


class Keeper:
    """The assembly counts only while R_KEEPER names this process; under the readers' turn."""

    assembly: Assembly | None = None


_keepers: Living[Keeper] = Living()


def keeper_of(segment: Segment, ring: int) -> Keeper:
    """The one keeper of a ring."""
    return _keepers.add((segment.key, ring), Keeper())
