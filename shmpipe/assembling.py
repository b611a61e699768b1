"""Where a message that comes in pieces is put together."""

from __future__ import annotations

from typing import Any

from .frames import DATA
from .primitives import Store
from .segment import damaged


class Assembly:
    """A message of ``size`` bytes, of which the first ``have`` have come.

    A handler that raises may interrupt ``add`` anywhere; it is then called again with the same
    piece.  So what ``put`` does depends on positions only, and doing it twice is doing it once.
    """

    kind = DATA
    borrows = False
    """Whether it may fill what is its caller's: ``moved()`` if the call ends in the middle."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.have = 0

    def add(self, piece: memoryview, position: int) -> None:
        """The bytes from ``position`` on; OSError: others are missing before them."""
        end = position + len(piece)
        if not 0 <= position <= self.have or end > self.size:
            raise damaged(f"bytes {position} to {end} of {self.size}, behind {self.have}")
        self.put(piece, position)
        self.have = max(self.have, end)

    def finished(self) -> Any:
        """The message; OSError: there are bytes missing."""
        if self.have != self.size:
            raise damaged(f"a message of {self.size} bytes that ends after {self.have}")
        return self.whole()

    def moved(self) -> Assembly:
        """What has come, for later, elsewhere: what was borrowed is the caller's again."""
        return self

    def put(self, piece: memoryview, position: int) -> None:
        raise NotImplementedError

    def whole(self) -> Any:
        raise NotImplementedError


class Plain(Assembly):
    """The bytes of a DATA message."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._store = Store(size)

    def put(self, piece: memoryview, position: int) -> None:
        self._store.add(piece, position)

    def whole(self) -> bytes:
        return self._store.finished()


class Room(Assembly):
    """A caller's buffer that a DATA message goes to."""

    borrows = True

    def __init__(self, room: memoryview, size: int) -> None:
        super().__init__(size)
        self._room = room

    def put(self, piece: memoryview, position: int) -> None:
        self._room[position : position + len(piece)] = piece

    def whole(self) -> int:
        return self.size

    def moved(self) -> Plain:
        plain = Plain(self.size)
        plain.add(self._room[: self.have], 0)
        return plain
