"""Sending messages: at once where they fit, else under the writers' turn.  See ``frames``."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from time import monotonic

from . import identity
from .bytering import ALIGN, ByteRing, Piece, aligned
from .control import enter_both, leave_both
from .frames import BEGIN_DATA, BEGIN_OBJECT, DATA, PART, close_stream, header, remaining
from .locking import SideLock
from .primitives import TIMED_OUT, fence
from .segment import (
    LIMIT,
    PAGE,
    PAGE_SHIFT,
    PAGES,
    RD_ARM,
    RD_LEFT,
    RD_RUNG,
    W_PART,
    W_SPINS,
    WR_TURN_BY,
    WR_WANT,
    WR_WATCH,
    WRITES,
)
from .waiting import ASK_AFTER, DIED, LONG, NOT, SHORT, close_all, rewatched
from .writers import WriterSide


class Sender:
    """Puts messages into a ring."""

    def __init__(self, side: WriterSide, turn: SideLock) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.turn = turn

    def send(self, kind: int, pieces: Sequence[Piece], size: int, deadline: float | None) -> None:
        """Send a message of ``size`` bytes, the concatenation of ``pieces``.

        TimeoutError: it did not fit before ``deadline``, and nothing of it will be seen.
        BrokenPipeError: nobody can receive any more.
        """
        side, ring, words = self.side, self.ring, self.side.words
        if (monotonic() - side.asked > ASK_AFTER or words[RD_LEFT]) and side.readers_gone():
            raise _broken()
        lock = side.lock
        lock.enter(deadline)
        try:
            if words[WR_TURN_BY] or words[W_PART]:
                whole = False
            else:
                whole = ring.append(kind << 56 | size, pieces, size)
            if whole:
                words[WRITES] += 1
                if words[WR_WATCH]:
                    side.settle(False)
        finally:
            lock.release()
            lock.leave()
        if whole:
            if words[RD_ARM] != words[RD_RUNG]:
                side.wake_readers()
        else:
            turn = self.turn
            turn.enter(deadline)
            try:
                words[WR_TURN_BY] = identity.token
                _Sending(self, kind, pieces, size).run(deadline)
            finally:
                words[WR_WANT] = 0
                words[WR_TURN_BY] = 0
                turn.release()
                turn.leave()

    def capacity(self) -> int:
        """The longest message that fits the ring whole, in bytes, at its largest."""
        return (self.side.words[LIMIT] << PAGE_SHIFT) - ALIGN

    def grow(self, wanted: int, deadline: float | None) -> None:
        """Rings start small and grow when they prove too small, up to the pipe's size."""
        ring, words = self.ring, self.side.words
        reader, writer = self.side.locks.reader, self.side.locks.writer
        enter_both(reader, writer, deadline)
        try:
            pages = ring.pages()
            target = 2 * pages
            while target << PAGE_SHIFT < wanted:
                target *= 2
            target = min(target, words[LIMIT], ring.max_pages)
            if target > pages:
                ring.resize(target)
        finally:
            leave_both(reader, writer)


class _Sending:
    """One message that has to wait for space, sent under the turn."""

    def __init__(self, sender: Sender, kind: int, pieces: Sequence[Piece], size: int) -> None:
        self.sender = sender
        self.side = sender.side
        self.ring = sender.ring
        self.kind = kind
        self.size = size
        self.pieces = [memoryview(piece) for piece in pieces]
        self.left = size
        self.begun = False
        self.want = 0  # bytes of space it waits for

    def run(self, deadline: float | None) -> None:
        side, words, lock = self.side, self.side.words, self.side.lock
        spin = side.spin_now > 0
        asleep, kind, slept = NOT, SHORT, False
        others: list[int] = []  # descriptors of the other processes, for a long sleep
        try:
            while True:
                lock.enter(deadline)
                try:
                    if asleep:
                        armed, asleep = asleep, NOT
                        side.disarm(armed)
                    if not self.begun:
                        close_stream(self.ring)  # a dead predecessor's
                    broken = side.bell.hung_up()
                    finished = not broken and self._put()
                    grow = not finished and words[PAGES] < words[LIMIT]
                    if finished or broken:
                        words[WRITES] += 1 if finished else 0
                        side.settle(slept)
                    elif not grow and not spin:
                        words[WR_WANT] = -(-self.want // PAGE)
                        side.arm(kind, slept)
                        asleep = kind
                finally:
                    lock.release()
                    lock.leave()
                side.wake_readers()
                if broken:
                    raise _broken()
                if finished:
                    side.pass_on(slept, False)
                    return
                if grow:
                    self.sender.grow(self.want, deadline)
                elif spin:
                    spin = False
                    if side.spin(self._has_space):
                        words[W_SPINS] += 1
                elif not self._has_space():
                    limit = remaining(deadline)
                    if limit is not None and limit <= 0:
                        raise TimeoutError(f"timed out sending {self.size} bytes")
                    if not slept:
                        side.bell.hold()
                    slept = True
                    outcome = side.sleep(asleep, limit, others)
                    if outcome == DIED or (outcome == TIMED_OUT and kind == SHORT):
                        kind, others = LONG, rewatched(side, others)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                side.abandon(asleep)
            else:
                side.recover(asleep)
            self._give_up()
            for piece in self.pieces:
                piece.release()
            raise
        finally:
            if slept:
                side.bell.let_go()
            close_all(others)

    def _has_space(self) -> bool:
        return self.ring.space() >= self.want

    def _put(self) -> bool:
        """Publish what there is space for; whether that was the last of it.  Under the lock."""
        ring, words = self.ring, self.side.words
        space = ring.space()
        if not self.begun:
            self.want = ALIGN + aligned(self.size)
            if ring.append(header(self.kind, self.size), self.pieces, self.size):
                return True
            if self.want <= words[LIMIT] << PAGE_SHIFT:
                return False
            self.want = (words[PAGES] << PAGE_SHIFT) // 4 + 4 * ALIGN
            if words[PAGES] < words[LIMIT] or space < self.want:
                return False
            self.begun = True
            words[W_PART] = self.size
            begin = BEGIN_DATA if self.kind == DATA else BEGIN_OBJECT
            ring.append(header(begin, self.size), [], 0)
            space = ring.space()
        # Parts of a quarter of the ring let both sides copy at the same time; the last 8 bytes
        # stay free for an ABORT.
        quarter = (words[PAGES] << PAGE_SHIFT) // 4
        while self.left:
            count = min(self.left, quarter, space - 2 * ALIGN)
            if count < min(self.left, quarter):
                self.want = min(aligned(self.left), quarter) + 2 * ALIGN
                return False
            ring.append(header(PART, count), self._next(count), count)
            self.left -= count
            words[W_PART] = self.left  # not before: a death in between only adds an idle ABORT
            fence()  # stands in for the unlock that wake_readers() wants behind a publication
            self.side.wake_readers()
            space = ring.space()
        return True

    def _next(self, count: int) -> list[memoryview]:
        """The next ``count`` bytes of the message."""
        out = []
        while count:
            piece = self.pieces[0]
            if len(piece) <= count:
                self.pieces = self.pieces[1:]
            else:
                self.pieces = [piece[count:], *self.pieces[1:]]
                piece = piece[:count]
            out.append(piece)
            count -= len(piece)
        return out

    def _give_up(self) -> None:
        lock = self.side.lock
        if not self.begun or not lock.enter_soon():
            return  # if the lock cannot be had, receivers find the stream without a sender
        try:
            close_stream(self.ring)
        finally:
            lock.release()
            lock.leave()
        self.side.wake_readers()


def _broken() -> BrokenPipeError:
    return BrokenPipeError(errno.EPIPE, "Broken pipe: no process can receive any more")
