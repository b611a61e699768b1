"""A ring without slots: the bytes of frames in a row, for ``Pipe()``.

Positions are byte positions, and all of the ring's bytes can be used; pages matter only for sizes
and wake policies (``used`` is the bytes in use, in whole pages).  Frames start at multiples of
ALIGN, so a header never wraps around the end of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from .ring import MASK, Ring, damaged
from .segment import PAGE_SHIFT, R_BYTES, RPOS, W_BYTES, WPOS, Segment

ALIGN = 8

Piece = Union[memoryview, bytes]  # noqa: UP007 - evaluated at run time


def aligned(count: int) -> int:
    return (count + ALIGN - 1) & -ALIGN


class ByteRing(Ring):
    """A ring of bytes."""

    def __init__(self, segment: Segment, index: int) -> None:
        super().__init__(segment, index)
        self.headers = self.data.cast("Q")

    def used(self, rpos: int, wpos: int, pages: int) -> int:
        """The bytes between two positions, in whole pages; also without a lock, as a hint."""
        return (wpos - rpos + MASK) >> PAGE_SHIFT

    def pages_at(self, limit: int) -> int:
        """It grows by itself, when it proves too small."""
        return min(limit, self.pages())

    def unread(self) -> int:
        """Bytes in the ring (FIONREAD), headers included; the caller holds both side locks."""
        words = self.words
        self._used_checked(words[RPOS], words[WPOS], self.pages())
        return words[WPOS] - words[RPOS]

    def space(self) -> int:
        """Bytes that are free; also without a lock, as a hint."""
        words = self.words
        # Pairs with the store in consume(): what lies below has been copied out.
        rpos = words[RPOS]
        return (self.pages() << PAGE_SHIFT) - (words[WPOS] - rpos)

    # --- under the writers' lock -----------------------------------------------------------------

    def append(self, header: int, pieces: Sequence[Piece], size: int) -> bool:
        """Publish a header and ``size`` bytes; False, and nothing done, if they do not fit."""
        words = self.words
        # The writers' own position, loaded anew: another process may share this end.
        wpos = words[WPOS]
        capacity = self.pages() << PAGE_SHIFT
        # Pairs with the store in consume(): what lies below has been copied out.
        used = wpos - words[RPOS]
        end = wpos + ALIGN + ((size + ALIGN - 1) & -ALIGN)
        if not 0 <= used <= capacity:
            raise damaged(f"{used} bytes in a ring of {capacity}")
        if end - wpos > capacity - used:
            return False
        at = (wpos & (capacity - 1)) + ALIGN
        if at + size <= capacity:
            for piece in pieces:
                self.data[at : at + len(piece)] = piece
                at += len(piece)
        else:
            self._append_around(at, pieces, capacity)
        self.headers[(wpos & (capacity - 1)) >> 3] = header
        words[W_BYTES] += size
        # Publishes header and bytes to the load of WPOS in front().
        words[WPOS] = end
        return True

    def _append_around(self, at: int, pieces: Sequence[Piece], capacity: int) -> None:
        for piece in pieces:
            self._copy_in(at & (capacity - 1), memoryview(piece), capacity)
            at += len(piece)

    def _copy_in(self, at: int, source: memoryview, capacity: int) -> None:
        count = len(source)
        first = capacity - at
        if count <= first:
            self.data[at : at + count] = source
        else:
            self.data[at:capacity] = source[:first]
            self.data[: count - first] = source[first:]

    # --- under the readers' lock -----------------------------------------------------------------

    def front(self, behind: int = 0) -> int:
        """The header of the frame ``behind`` bytes after the first; -1: the ring ends before it."""
        words = self.words
        rpos = words[RPOS]
        # Pairs with the publishing store in append().
        wpos = words[WPOS]
        if behind >= wpos - rpos:
            return -1
        pages = self.pages()
        self._used_checked(rpos, wpos, pages)
        if rpos % ALIGN or wpos % ALIGN:
            raise damaged(f"positions {rpos} and {wpos} between frames")
        return self.headers[((rpos + behind) & ((pages << PAGE_SHIFT) - 1)) >> 3]

    def pieces(self, size: int) -> list[memoryview]:
        """The ``size`` bytes behind the first header, as one window or, where they wrap, two."""
        words = self.words
        capacity = self.pages() << PAGE_SHIFT
        rpos = words[RPOS]
        if aligned(size) > words[WPOS] - rpos - ALIGN:
            raise damaged(f"a frame of {size} bytes where there are {words[WPOS] - rpos}")
        at = (rpos + ALIGN) & (capacity - 1)
        if at + size <= capacity:
            return [self.data[at : at + size]]
        return [self.data[at:capacity], self.data[: at + size - capacity]]

    def consume(self, size: int) -> int:
        """Give back the first header and ``size`` bytes behind it; returns the pages that freed."""
        words = self.words
        rpos, wpos = words[RPOS], words[WPOS]
        after = rpos + ALIGN + aligned(size)
        words[R_BYTES] += size
        # Gives the bytes away: pairs with the load of RPOS in space().
        words[RPOS] = after
        return ((wpos - rpos + MASK) >> PAGE_SHIFT) - ((wpos - after + MASK) >> PAGE_SHIFT)
