"""What a victim is doing, for those who watch it: a page that both have."""

from __future__ import annotations

import mmap
import struct
import time

_FORMAT = struct.Struct("<Qdd?64p")


class Page:
    """Seed, when the present call began, how long it may take by its own account, its name."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, mmap.PAGESIZE)
        self.seed = 0

    def _put(self, began: float, own: float, inside: bool, name: str) -> None:
        self.map[: _FORMAT.size] = _FORMAT.pack(self.seed, began, own, inside, name.encode())

    def begin(self, name: str, own: float) -> None:
        self._put(time.monotonic(), own, True, name)

    def end(self) -> None:
        self._put(0.0, 0.0, False, "")

    def look(self) -> tuple[int, float, str]:
        """The seed, seconds that a call has gone beyond its own time, and its name."""
        seed, began, own, inside, name = _FORMAT.unpack(self.map[: _FORMAT.size])
        return seed, time.monotonic() - began - own if inside else 0.0, name.decode()
