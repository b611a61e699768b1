"""The page rule: how a byte stream lies in the slots of a ring, as in the kernel's pipe.

Once ``wpos`` has left a page, ``ends[slot]`` says how many of its bytes hold data; only a writer
stores there.  Kernel rules: fs/pipe.c, pipe_write (merging, fresh slots) and pipe_read.
"""

from __future__ import annotations

from .ring import Ring
from .segment import (
    MASK,
    PAGE,
    PAGE_SHIFT,
    R_BYTES,
    RPOS,
    SKIP,
    W_BYTES,
    WORD,
    WPOS,
    Segment,
    damaged,
)

_FULL = memoryview(bytes(PAGE.to_bytes(4, "little")) * 4096).cast("I")  # slots that are full


class PageRing(Ring):
    """A ring of page slots."""

    def __init__(self, segment: Segment, index: int) -> None:
        super().__init__(segment, index)
        self.freed = 0  # slots that the last take() freed
        self.left = 0  # bytes' worth of ring addresses the last take() left behind; 0: drained
        self._run_at = 0
        self._run_len = 0

    def used(self, rpos: int, wpos: int, pages: int) -> int:
        """Slots in use between two positions; also without a lock, as a hint."""
        if rpos == wpos:
            return 0
        first = self.start(rpos, wpos, pages) >> PAGE_SHIFT
        return ((wpos + MASK) >> PAGE_SHIFT) - first

    def start(self, rpos: int, wpos: int, pages: int) -> int:
        """``rpos``, or the page after it if it is at the end of a page that has been closed.

        A reader that has taken all of a page before it was closed stays on it, and that slot is
        free.  Two things tell: the slot's fill, or, once the slot may have been given to a later
        page, SKIP, which the writer sets to that very ``rpos`` before it reuses the slot.  So the
        fill is looked at first: whoever sees it overwritten sees SKIP.
        """
        page, offset = rpos >> PAGE_SHIFT, rpos & MASK
        if not offset or page >= wpos >> PAGE_SHIFT:
            return rpos
        if self.ends[page & (pages - 1)] == offset or self.words[SKIP] == rpos:
            return (page + 1) << PAGE_SHIFT
        return rpos

    def limit(self) -> int:
        """All that it may have it has: it does not grow by itself."""
        return self.pages()

    # --- writing ---------------------------------------------------------------------------------

    def put(self, source: memoryview, fresh: bool) -> int:
        """Append as much of ``source`` as the free slots take; return how many bytes that was.

        The remainder of a division by PAGE is merged into the last slot if it fits there whole and
        the ring is not empty, unless ``fresh`` (a write that has slept never merges); all the rest
        goes to fresh slots.
        """
        words = self.words
        pages = self.pages()
        # The writers' own position, loaded anew: another process may share this end.
        wpos = words[WPOS]
        # Pairs with the store in take(): the slots freed there have been read.
        rpos = words[RPOS]
        used = self._used_checked(rpos, wpos, pages)
        if rpos & MASK and (not used or self.start(rpos, wpos, pages) != rpos):
            words[SKIP] = rpos  # before its slot is filled anew  # step: skip
        size = len(source)
        done = 0
        tail = size & MASK
        offset = wpos & MASK
        if tail and offset and used and not fresh and offset + tail <= PAGE:
            slot = (wpos >> PAGE_SHIFT) & (pages - 1)
            at = (slot << PAGE_SHIFT) + offset
            self.data[at : at + tail] = source[:tail]
            wpos += tail
            done = tail
            if not wpos & MASK:
                self.ends[slot] = PAGE
        free = pages - used
        if done < size and free:
            if wpos & MASK:  # close the current page
                self.ends[(wpos >> PAGE_SHIFT) & (pages - 1)] = wpos & MASK
                wpos = (wpos | MASK) + 1
            count = min(size - done, free << PAGE_SHIFT)
            self._fill(source, done, count, (wpos >> PAGE_SHIFT) & (pages - 1), pages)
            wpos += count
            done += count
        if done:
            words[W_BYTES] = (words[W_BYTES] + done) & WORD
            # Publishes the bytes and the slot table to the load of WPOS in take().
            words[WPOS] = wpos
        return done

    def _fill(self, source: memoryview, start: int, count: int, slot: int, pages: int) -> None:
        """Copy into fresh slots from ``slot`` on, in at most two runs."""
        while count:
            run = min(count, (pages - slot) << PAGE_SHIFT)
            at = slot << PAGE_SHIFT
            self.data[at : at + run] = source[start : start + run]
            full = run >> PAGE_SHIFT
            if full == 1:
                self.ends[slot] = PAGE
            elif full:
                self._mark_full(slot, full)
            start += run
            count -= run
            slot = 0

    def _mark_full(self, slot: int, count: int) -> None:
        while count:
            batch = min(count, len(_FULL))
            self.ends[slot : slot + batch] = _FULL[:batch]
            slot += batch
            count -= batch

    # --- reading ---------------------------------------------------------------------------------

    def take(self, dest: memoryview | None, want: int) -> int | bytes:
        """Move up to ``want`` bytes out of the ring: into ``dest``, or as a bytes object.

        Returns the count, or the bytes.  Sets ``freed`` and ``left``.
        """
        words = self.words
        # The readers' own position, loaded anew: another process may share this end.
        rpos = words[RPOS]
        # Pairs with the publishing store in put(): what lies below has been written.
        wpos = words[WPOS]
        if rpos == wpos:
            self.freed = self.left = 0
            return 0 if dest is not None else b""
        pages = self.pages()
        used = self._used_checked(rpos, wpos, pages)
        rpos = self.start(rpos, wpos, pages)
        data = self.data
        got = 0
        pieces = []
        while got < want and rpos != wpos:
            rpos = self._next_run(rpos, wpos, want - got, pages)
            run, at = self._run_len, self._run_at
            if dest is not None:
                dest[got : got + run] = data[at : at + run]
            else:
                pieces.append(data[at : at + run])
            got += run
        # The pieces are copied before their slots are given away.
        result: int | bytes = got if dest is not None else b"".join(pieces)
        self.left = wpos - rpos
        self.freed = used - (
            ((wpos + MASK) >> PAGE_SHIFT) - (rpos >> PAGE_SHIFT) if self.left else 0
        )
        words[R_BYTES] = (words[R_BYTES] + got) & WORD
        # Gives the slots away: pairs with the load of RPOS in put().
        words[RPOS] = rpos
        return result

    def _next_run(self, rpos: int, wpos: int, want: int, pages: int) -> int:
        """Find the contiguous bytes at ``rpos``: sets the run, returns the position behind it.

        Neither position is at the end of a closed page: it is on the next one then.
        """
        page = rpos >> PAGE_SHIFT
        offset = rpos & MASK
        slot = page & (pages - 1)
        last = wpos >> PAGE_SHIFT
        end = wpos & MASK if page == last else self.ends[slot]
        if not offset < end <= PAGE:
            raise damaged(f"page filled to {end}, read to {offset}")
        run = end - offset
        if end == PAGE and want > run:
            run += self._full_pages_after(page, slot, last, want - run, pages) << PAGE_SHIFT
        run = min(run, want)
        self._run_at = (slot << PAGE_SHIFT) + offset
        self._run_len = run
        return self.start(rpos + run, wpos, pages)

    def _full_pages_after(self, page: int, slot: int, last: int, want: int, pages: int) -> int:
        """How many full pages follow in the slots right behind ``slot``, as far as wanted."""
        count = min(last - page - 1, pages - slot - 1, -(-want >> PAGE_SHIFT), len(_FULL))
        if count <= 0:
            return 0
        ends = self.ends
        if ends[slot + 1 : slot + 1 + count] == _FULL[:count]:  # nearly always all of them
            return count
        full = 0
        while full < count and ends[slot + 1 + full] == PAGE:  # they may change under our eyes
            full += 1
        return full

    def unread(self) -> int:
        """Bytes in the ring (FIONREAD); the caller holds both side locks."""
        words = self.words
        rpos, wpos = words[RPOS], words[WPOS]
        pages = self.pages()
        self._used_checked(rpos, wpos, pages)
        rpos = self.start(rpos, wpos, pages)
        total = 0
        while rpos != wpos:
            after = self._next_run(rpos, wpos, wpos - rpos, pages)
            total += self._run_len
            rpos = after
        return total
