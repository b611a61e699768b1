"""Where the bytes of a ring lie, and how it is resized; what its positions mean is for its kinds.

``wpos`` and ``rpos`` are ring addresses that only ever grow: page number times PAGE plus offset.
Page p lies in slot ``p % pages``.  Only a writer stores ``wpos``, only a reader stores ``rpos``;
one 64-bit store publishes a whole write or gives back all that a read has taken, and a process
that is killed before it has changed nothing that anybody can see.

Callers hold the lock of the side they act for (both, to resize), except where noted.  Nothing that
is read from shared memory is used unchecked.
"""

from __future__ import annotations

import errno

from . import primitives
from .segment import LAST, LIMIT, MASK, PAGE, PAGE_SHIFT, PAGES, RPOS, WPOS, Segment, damaged


class Ring:
    """The ring number ``index`` of a segment, as seen by one process."""

    def __init__(self, segment: Segment, index: int) -> None:
        self.segment = segment
        self.index = index
        self.view = segment.words(index)
        self.words = primitives.as_words(self.view)
        self.ends = segment.ends(index)
        self.data = segment.data(index)
        self.max_pages = segment.max_pages
        self._checked = 1  # the last number of pages that was found good; one always is

    def pages(self) -> int:
        """How many pages the ring has: a power of two, at most ``max_pages``."""
        pages = self.words[PAGES]
        if pages != self._checked:
            if not 0 < pages <= self.max_pages or pages & (pages - 1):
                raise damaged(f"{pages} pages in a segment for {self.max_pages}")
            self._checked = pages
        return pages

    def limit(self) -> int:
        """How many pages the ring may come to have without being resized by ``fcntl()``."""
        limit = self.words[LIMIT]
        if not 0 < limit <= self.max_pages:
            raise damaged(f"up to {limit} pages in a segment for {self.max_pages}")
        return limit

    def used(self, rpos: int, wpos: int, pages: int) -> int:
        """Slots in use between two positions; also without a lock, as a hint."""
        raise NotImplementedError

    def pages_at(self, limit: int) -> int:
        """How many pages the ring is to have when it may have ``limit``."""
        return limit

    def unread(self) -> int:
        """Bytes in the ring (FIONREAD); the caller holds both side locks."""
        raise NotImplementedError

    def start(self, rpos: int, wpos: int, pages: int) -> int:
        """Where the bytes in use begin: ``rpos``, or later."""
        return rpos

    def used_now(self) -> int:
        """Slots in use, at least for the moment."""
        words = self.words
        # Own position or not, rpos first: a stale rpos can only make the ring look fuller.
        rpos = words[RPOS]
        return self.used(rpos, words[WPOS], self.pages())

    def _used_checked(self, rpos: int, wpos: int, pages: int) -> int:
        used = self.used(rpos, wpos, pages)
        if not 0 <= used <= pages or rpos > wpos or wpos > LAST:
            raise damaged(f"positions {rpos} and {wpos} in a ring of {pages} pages")
        return used

    def resize(self, pages: int) -> None:
        """Give the ring ``pages`` slots (a power of two); the caller holds both side locks.

        Of the bytes in use that change their place, the place they move *to* is never in use
        before, so the old ring stays whole until the one store that switches to the new one: a
        process killed half-way has changed nothing.  (In use are at most ``pages`` pages in a row,
        so no two of their bytes meet in the new ring; and a byte that lies in the old one where
        another is to go is, for the same reason, that other byte itself.)
        """
        words = self.words
        old = self.pages()
        if pages > self.max_pages:
            raise damaged(f"{pages} pages in a segment for {self.max_pages}")
        rpos, wpos = words[RPOS], words[WPOS]
        used = self._used_checked(rpos, wpos, old)
        if used > pages:
            raise OSError(errno.EBUSY, f"{used} pages are in use: more than {pages}")
        at = self.start(rpos, wpos, old) if used else wpos
        if at != rpos:
            words[RPOS] = at
        while at < wpos:
            count = min(PAGE - (at & MASK), wpos - at)
            page = at >> PAGE_SHIFT
            source, target = page & (old - 1), page & (pages - 1)
            if source != target:
                self.ends[target] = self.ends[source]
                here = (source << PAGE_SHIFT) + (at & MASK)
                there = (target << PAGE_SHIFT) + (at & MASK)
                self.data[there : there + count] = self.data[here : here + count]
            at += count
        words[PAGES] = pages  # step: size-last (early)
        if pages < old:
            self.segment.give_back(self.index, pages, old - pages)
