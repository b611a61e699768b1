"""A ring without slots: the bytes of frames in a row, for ``Pipe()``.

Positions are byte positions, and all of the ring's bytes can be used; pages matter only for sizes
and wake policies (``used`` is the bytes in use, in whole pages).  Frames start at multiples of
ALIGN, so a header never wraps around the end of the ring.

Each side remembers how far the other one had come when it last looked.  That only grows, so an old
value is a safe bound, and the other side's cache line is loaded only when the bound is not enough.
One's own position is always loaded: another process may share the end.
"""

from __future__ import annotations

import errno
from typing import Any

from . import identity, primitives
from .locking import lent_out
from .ring import Ring
from .segment import (
    ALIGN,
    LAST,
    MASK,
    PAGE_SHIFT,
    PAGES,
    R_BYTES,
    RD_LENT,
    RPOS,
    W_BYTES,
    W_OPEN,
    WORD,
    WPOS,
    WR_LENT,
    Segment,
    damaged,
)

LENGTH = (1 << 56) - 1


class ByteRing(Ring):
    """A ring of frames: a header (kind in the top byte, length below), then that many bytes."""

    def __init__(self, segment: Segment, index: int) -> None:
        super().__init__(segment, index)
        self.memory = primitives.as_memory(self.data)
        self.headers = primitives.as_words(self.data.cast("Q"))
        self.read_to = 0  # where the readers were, at least
        self.written_to = 0  # where the writers were, at least
        # Of the frame that front() has found; where it begins, and how much lies there in a row.
        self.kind = self.size = self.at = self.first = 0

    def used(self, rpos: int, wpos: int, pages: int) -> int:
        """The bytes between two positions, in whole pages; also without a lock, as a hint."""
        return (wpos - rpos + MASK) >> PAGE_SHIFT

    def pages_at(self, limit: int) -> int:
        """It grows by itself, when it proves too small."""
        return min(limit, self.pages())

    def unread(self) -> int:
        """Bytes in the ring (FIONREAD), headers included; the caller holds both side locks."""
        words = self.words
        rpos, wpos = words[RPOS], words[WPOS]
        self._used_checked(rpos, wpos, self.pages())
        return wpos - rpos

    def space(self) -> int:
        """Bytes that are free; also without a lock, as a hint."""
        words = self.words
        rpos = words[RPOS]
        primitives.acquire_fence()  # pairs with consume(): what lies below has been copied out
        used, capacity = words[WPOS] - rpos, self.pages() << PAGE_SHIFT
        return capacity - used if 0 <= used <= capacity else 0

    def _capacity(self) -> int:
        """The ring's bytes."""
        pages = self.words[PAGES]
        # The comparison is pages()'s, which a compiled call of it would cost more than.
        return (pages if pages == self._checked else self.pages()) << PAGE_SHIFT

    # --- under the writers' lock -----------------------------------------------------------------

    def append(self, kind: int, content: Any, size: int) -> bool:
        """Publish a frame; False, and nothing done, if it does not fit.

        ``content`` is ``size`` bytes: a bytes object, a view, or a list of such.
        """
        words = self.words
        wpos = words[WPOS]
        capacity = self._capacity()
        need = ALIGN + ((size + ALIGN - 1) & -ALIGN)
        used = wpos - self.read_to
        if need > capacity or used > capacity - need:
            used = self._look_at_readers(wpos, capacity)
            if need > capacity or used > capacity - need:
                return False
        at = wpos & (capacity - 1)
        if at + need <= capacity and type(content) is not list:
            primitives.copy_in(self.memory, at + ALIGN, content)
        else:
            self._copy_pieces(at + ALIGN, content, capacity)
        self.headers[at >> 3] = kind << 56 | size
        words[W_BYTES] = (words[W_BYTES] + size) & WORD
        primitives.release_fence()  # publishes header and bytes to the load of WPOS in front()
        words[WPOS] = wpos + need  # step: frame-first (early 3)
        return True

    def publish(self, kind: int, size: int) -> None:
        """Publish a frame whose ``size`` bytes lie behind WPOS already; they were found free."""
        words = self.words
        wpos = words[WPOS]
        self.headers[(wpos & ((self.pages() << PAGE_SHIFT) - 1)) >> 3] = kind << 56 | size
        words[W_BYTES] = (words[W_BYTES] + size) & WORD
        primitives.release_fence()  # publishes header and bytes to the load of WPOS in front()
        words[WPOS] = (wpos + ALIGN + aligned(size)) & WORD  # step: publish-header-first (early 3)

    def _look_at_readers(self, wpos: int, capacity: int) -> int:
        """The bytes in use."""
        read_to = self.words[RPOS]
        primitives.acquire_fence()  # pairs with consume(): what lies below has been copied out
        used = wpos - read_to
        if not 0 <= used <= capacity or wpos > LAST:
            raise damaged(f"{used} bytes in a ring of {capacity}")
        self.read_to = read_to
        return used

    def _copy_pieces(self, at: int, content: Any, capacity: int) -> None:
        for piece in content if type(content) is list else [content]:
            at &= capacity - 1
            count, first = len(piece), capacity - at
            if count <= first:
                primitives.copy_in(self.memory, at, piece)
            else:
                view = memoryview(piece)
                primitives.copy_in(self.memory, at, view[:first])
                primitives.copy_in(self.memory, 0, view[first:])
            at += count

    # --- under the readers' lock -----------------------------------------------------------------

    def front(self, behind: int = 0) -> bool:
        """Find the frame ``behind`` bytes after the first; False: there is none yet."""
        words = self.words
        rpos = words[RPOS]
        capacity = self._capacity()
        ahead = self.written_to - rpos
        if not behind < ahead <= capacity:
            ahead = self._look_at_writers(rpos, capacity)
            if behind >= ahead:
                return False
        header = self.headers[((rpos + behind) & (capacity - 1)) >> 3]
        self.kind = header >> 56
        size = self.size = header & LENGTH
        if size + ALIGN > ahead - behind:
            raise damaged(f"a frame of {size} bytes where there are {ahead - behind}")
        at = self.at = (rpos + behind + ALIGN) & (capacity - 1)
        self.first = size if at + size <= capacity else capacity - at
        return True

    def _look_at_writers(self, rpos: int, capacity: int) -> int:
        """The bytes in use."""
        wpos = self.words[WPOS]
        primitives.acquire_fence()  # pairs with the publishing store in append()
        ahead = wpos - rpos
        if not 0 <= ahead <= capacity or wpos > LAST:
            raise damaged(f"{ahead} bytes in a ring of {capacity}")
        if rpos % ALIGN or wpos % ALIGN:
            raise damaged(f"positions {rpos} and {wpos} between frames")
        self.written_to = wpos
        return ahead

    def content(self) -> bytes:
        """The bytes of the frame that front() has found."""
        size, first = self.size, self.first
        if first == size:
            return primitives.copy_out(self.memory, self.at, size)
        return primitives.copy_two(self.memory, self.at, first, size - first)

    def content_into(self, room: memoryview, start: int) -> None:
        """Copy the bytes of the frame that front() has found into ``room``, from ``start`` on."""
        size, first = self.size, self.first
        primitives.copy_into(self.memory, self.at, first, room, start)
        if first < size:
            primitives.copy_into(self.memory, 0, size - first, room, start + first)

    def number(self) -> int:
        """The first 8 bytes of that frame, as a number."""
        if self.size < ALIGN:
            raise damaged(f"a frame of {self.size} bytes that should begin with a number")
        return self.headers[self.at >> 3]

    def pieces(self, start: int = 0) -> list[memoryview]:
        """The bytes of that frame from ``start`` (0 or ALIGN) on, where they lie.

        One window or, where they wrap, two.
        """
        at, size, first = self.at, self.size, self.first
        if first == size:
            return [self.data[at + start : at + size]]
        return [self.data[at + start : at + first], self.data[: size - first]]

    def consume(self) -> int:
        """Give back the first frame, which front() has found; returns where the readers were."""
        words = self.words
        rpos = words[RPOS]
        after = rpos + ALIGN + ((self.size + ALIGN - 1) & -ALIGN)
        words[R_BYTES] = (words[R_BYTES] + self.size) & WORD
        primitives.release_fence()  # gives the bytes away: pairs with the loads of RPOS above
        words[RPOS] = after & WORD
        return rpos

    # --- under both locks ------------------------------------------------------------------------

    def resize(self, pages: int) -> None:
        """As of every ring; but what closes a stream always finds space (see ``frames``).

        And what is lent stays where it is: OSError EBUSY.
        """
        words = self.words
        if self.is_lent():
            raise lent_out()
        if words[W_OPEN] and words[WPOS] - words[RPOS] + ALIGN > pages << PAGE_SHIFT:
            raise OSError(errno.EBUSY, f"a message in the middle needs more than {pages} pages")
        Ring.resize(self, pages)

    # --- without a lock --------------------------------------------------------------------------

    def is_lent(self) -> bool:
        """Whether a living process has bytes of the ring lent; under both locks that stays so."""
        words = self.words
        reader, writer = words[RD_LENT], words[WR_LENT]
        if reader and identity.is_alive(reader):
            return True
        return bool(writer) and identity.is_alive(writer)

    def freed_since(self, rpos: int) -> int:
        """The pages that have become free since the readers were at ``rpos``.

        Only asked for while a writer waits, and so does not move.
        """
        words = self.words
        wpos = words[WPOS]
        used = (wpos - words[RPOS] + MASK) >> PAGE_SHIFT
        return ((wpos - rpos + MASK) >> PAGE_SHIFT) - used


def aligned(count: int) -> int:
    return (count + ALIGN - 1) & -ALIGN
