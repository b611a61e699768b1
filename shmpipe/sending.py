"""Sending messages: at once where they fit, else under the writers' turn.  See ``frames``."""

from __future__ import annotations

import errno
from typing import Any

from . import identity, primitives
from .bytering import ByteRing, aligned
from .control import enter_both, leave_both
from .deadlines import is_over, remaining
from .descriptors import Descriptor
from .errors import OutOfTime
from .frames import (
    BEGIN_DATA,
    BEGIN_OBJECT,
    DATA,
    IN_PARTS,
    LARGE,
    PART,
    STREAMED,
    append_certainly,
    close_stream,
    cut,
)
from .locking import SideLock
from .primitives import TIMED_OUT, WOKEN
from .segment import (
    ALIGN,
    LIMIT,
    PAGE_SHIFT,
    PAGES,
    RD_ARM,
    RD_RUNG,
    RPOS,
    W_OPEN,
    W_SPINS,
    WORD,
    WR_LENT,
    WR_TURN_BY,
    WR_WANT,
    WR_WATCH,
    WRITE_PAGES,
    WRITES,
)
from .waiting import DIED, LONG, NOT, SHORT, close_all, go_on, rewatched
from .writers import WriterSide

MOST_GROWTHS = 64  # in one call: more than there are powers of two
BUSY = 32
"""Waits for a receiver at work, within WHILE seconds, after which the ring gets all it may have.

For two that are always busy a ring that fits their own caches is the slower one: each line of it
is fetched from the other core.  (Not at once: all its pages have to be touched for a first time.)
"""
WHILE = 1.0


class Sender:
    """Puts messages into a ring."""

    def __init__(self, side: WriterSide, turn: SideLock) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.words = self.side.words
        self.lock = side.lock
        self.turn = turn
        self.window: Any = None  # for lending; the turn's
        self.waits = 0  # that ended without sleep, lately
        self.since = 0.0

    def send(self, kind: int, content: Any, size: int, deadline: float | None) -> None:
        """Send a message of ``size`` bytes: a bytes object, a view, or a list of such.

        TimeoutError: it did not fit before ``deadline``, and nothing of it will be seen.
        BrokenPipeError: nobody can receive any more.
        """
        sent = False
        # (Compiled, an ``except`` here would cost every message more than this does.)
        try:
            if not self._at_once(kind, content, size, deadline):
                self._in_turn(kind, content, size, deadline)
            sent = True
        finally:
            if not sent:
                self.side.recover(NOT)
                release(content)

    def _at_once(self, kind: int, content: Any, size: int, deadline: float | None) -> bool:
        """Publish the message if it fits, and it is nobody's turn."""
        ring, words = self.ring, self.words
        if self.side.others_gone(False):
            raise broken_pipe()
        if size >= LARGE and (
            words[PAGES] < words[LIMIT] or self.goes_in_parts(size, deadline is None)
        ):
            return False
        lock = self.lock
        lock.enter(deadline)
        try:
            if words[WR_TURN_BY] or words[W_OPEN] or not ring.append(kind, content, size):
                return False
            words[WRITES] = (words[WRITES] + 1) & WORD
            if words[WR_WATCH]:
                self.side.settle(False)
        finally:
            lock.release()  # step: send-unlock (late)
            lock.leave()
        if words[RD_ARM] != words[RD_RUNG]:
            self.side.wake_readers()  # step: send-wake
        return True

    def _in_turn(self, kind: int, content: Any, size: int, deadline: float | None) -> None:
        words, turn = self.words, self.turn
        turn.enter(deadline)
        try:
            self.side.still_open(WOKEN)  # it may have waited for long
            words[WR_TURN_BY] = identity.token  # step: send-turn
            words[WR_LENT] = 0  # a dead predecessor's
            _Sending(self, kind, content, size).run(deadline)
        finally:
            words[WR_TURN_BY] = 0  # step: send-turn-over
            turn.release()
            turn.leave()

    def wait_for_space(self, size: int, deadline: float | None) -> None:
        """Have WR_LENT say that ``size`` bytes behind WPOS's header are lent; under the turn.

        ValueError: the ring cannot become so large.  TimeoutError, BrokenPipeError as ``send``.
        """
        _Sending(self, DATA, None, size).run(deadline)

    def check(self, size: int) -> None:
        """ValueError: a message of ``size`` bytes never fits whole."""
        if not 0 <= size <= self.capacity():
            raise ValueError(
                f"{size} bytes cannot be reserved: allowed are 0 to {self.capacity()} (see size)"
            )

    def capacity(self) -> int:
        """The longest message that fits the ring whole, in bytes, at its largest."""
        return (self.ring.limit() << PAGE_SHIFT) - ALIGN

    def goes_in_parts(self, size: int, patient: bool) -> bool:
        """Whether a message of ``size`` bytes is streamed, though there be space for it.

        Not one with a time limit (not ``patient``): whole, it can be sent at once or not at all.
        """
        capacity = self.ring.limit() << PAGE_SHIFT
        need = ALIGN + aligned(size)
        if not patient or size < STREAMED or need > capacity - IN_PARTS:
            return need > capacity  # (nor does one for whose parts there would not be space)
        return 2 * need > capacity

    def waited(self) -> None:
        """A wait for space has ended without sleep."""
        now = primitives.coarse_time()
        if now - self.since > WHILE:
            self.since = now
            self.waits = 0
        self.waits += 1

    def grow(self, wanted: int, deadline: float | None) -> None:
        """Rings start small and grow when they prove too small, up to the pipe's size."""
        ring = self.ring
        reader, writer = self.side.locks.reader, self.side.locks.writer
        enter_both(reader, writer, deadline)
        try:
            pages = ring.pages()
            limit = ring.limit()
            at_once = wanted >= LARGE or self.waits >= BUSY
            target = limit if at_once else min(2 * pages, limit)
            if target > pages and not ring.is_lent():
                ring.resize(target)
        finally:
            leave_both(reader, writer)


class _Sending:
    """One message that has to wait for space, or (``content`` None) the space for one that will be
    written in place; under the turn.
    """

    def __init__(self, sender: Sender, kind: int, content: Any, size: int) -> None:
        self.sender = sender
        self.side = sender.side
        self.ring = sender.ring
        self.kind = kind
        self.size = size
        self.in_place = content is None  # its bytes will be written to where they belong
        pieces = content if type(content) is list else [b"" if content is None else content]
        self.pieces: list[memoryview] = [memoryview(piece) for piece in pieces]
        self.left = size
        self.begun = False
        self.patient = True  # without a time limit
        self.want = 0  # bytes of space it waits for
        self.growths = 0
        self.spins = False  # next, before it sleeps
        self.asleep = NOT  # how it is counted as asleep: NOT, SHORT or LONG
        self.how = SHORT  # it will sleep, if it has to
        self.slept = False
        self.ticket = 0
        self.others: list[Descriptor] = []  # the other processes, for a long sleep

    def run(self, deadline: float | None) -> None:
        side, words = self.side, self.side.words
        self.patient = deadline is None
        self.spins = side.spin_now > 0
        try:
            # (Nobody to hand a wake on to: whoever sleeps here has the turn.)
            while not self._try(deadline):
                if self.spins:
                    self.spins = False
                    if self._spin(remaining(deadline)):
                        words[W_SPINS] = (words[W_SPINS] + 1) & WORD
                        self.sender.waited()
                elif not self.asleep:
                    self.growths += 1
                    self.sender.grow(self.want, deadline)
                # step: send-look (always)
                elif not self._may_go_on():
                    self._sleep(deadline)
                else:
                    go_on(deadline)
        except BaseException as error:
            if isinstance(error, OutOfTime):
                side.abandon(self.asleep)
            else:
                side.recover(self.asleep)
            self._give_up()
            release(self.pieces)
            raise
        finally:
            words[WR_WANT] = 0  # step: want-over
            if self.slept:
                side.bell.let_go()
            close_all(self.others)

    def _try(self, deadline: float | None) -> bool:
        """Publish what there is space for; whether that was all.

        If not, what to do about it: ``spins``, or it is armed and counted as ``asleep``; neither:
        the ring can be made larger.
        """
        side, words, lock = self.side, self.side.words, self.side.lock
        lock.enter(deadline)
        try:
            if self.asleep:
                armed, self.asleep = self.asleep, NOT
                side.disarm(armed)  # step: send-disarm
            if not self.begun:
                close_stream(self.ring)  # a dead predecessor's  # step: send-close-dead
            sure = self.how == LONG or (self.slept and is_over(deadline))
            broken = side.others_gone(sure)
            finished = not broken and self._put()
            grows = not finished and self._may_grow()
            if self.spins and self._is_small():
                self.spins = not grows
            if finished or broken:
                side.settle(False)
            elif not grows and not self.spins:
                words[WR_WANT] = self.want
                self.ticket = side.arm(self.how, self.slept)
                self.asleep = self.how
        finally:
            lock.release()  # step: send-parts-unlock (late)
            lock.leave()
        side.wake_readers()
        if broken:
            raise broken_pipe()
        return finished

    def _sleep(self, deadline: float | None) -> None:
        side = self.side
        limit = remaining(deadline)
        if limit is not None and limit <= 0:
            raise OutOfTime(f"timed out sending {self.size} bytes")
        if not self.slept:
            self.slept = True  # first: the call may end here, and let go of it in vain
            side.bell.hold()
        outcome = side.sleep(self.asleep, limit, self.others)
        short = outcome == TIMED_OUT and self.how == SHORT
        if outcome == DIED or (short and not is_over(deadline)):
            self.how, self.others = LONG, rewatched(side, self.others)

    def _has_space(self) -> bool:
        return self.ring.space() >= self.want

    def _may_go_on(self) -> bool:
        """The second look: pairs with the unlock of who frees space, or ends a loan."""
        return self._has_space() or self._may_grow() or self.side.answered(self.ticket)

    def _may_grow(self) -> bool:
        """Whether the ring can be made larger: not while bytes of it are lent."""
        ring = self.ring
        more = ring.pages() < ring.limit() and self.growths < MOST_GROWTHS
        return more and not ring.is_lent()

    def _is_small(self) -> bool:
        """Whether the ring is too small even for a receiver that keeps up."""
        want = self.want
        return (
            want >= LARGE
            or want << 3 > self.ring.pages() << PAGE_SHIFT
            or self.sender.waits >= BUSY
        )

    def _spin(self, limit: float | None) -> bool:
        """Wait for a receiver that is at work; for many messages' space, so as to pay once."""
        words, ring = self.side.words, self.ring
        capacity = ring.pages() << PAGE_SHIFT
        want = self.want
        if not self.begun:
            want = max(want, min(words[WRITE_PAGES] << PAGE_SHIFT, capacity // 2))
        missing = want - ring.space()
        if limit is not None and limit <= 0:
            return missing <= 0
        return (
            missing <= 0 or self.side.spin(RPOS, words[RPOS] + missing, limit) or self._has_space()
        )

    def _put(self) -> bool:
        """Publish what there is space for; whether that was the last of it.  Under the lock."""
        if self.in_place:
            return self._reserve()
        ring, words = self.ring, self.side.words
        space, capacity = ring.space(), ring.pages() << PAGE_SHIFT
        most = ring.limit() << PAGE_SHIFT
        if not self.begun:
            self.want = ALIGN + aligned(self.size)
            if self.size >= LARGE and self._may_grow():
                return False
            if not self.sender.goes_in_parts(self.size, self.patient):
                if not ring.append(self.kind, self.pieces, self.size):
                    return False
                words[WRITES] = (words[WRITES] + 1) & WORD
                return True
            self.want = capacity // 4 + 5 * ALIGN
            if capacity < most or space < self.want:
                return False
            self.begun = True
            words[W_OPEN] = 1  # before there is anything to close  # step: begin-open (late 2)
            begin = BEGIN_DATA if self.kind == DATA else BEGIN_OBJECT
            append_certainly(ring, begin, self.size.to_bytes(ALIGN, "little"), ALIGN)
            space = ring.space()
        # Parts of a quarter of the ring let both sides copy at the same time; the last 8 bytes
        # stay free for an ABORT.
        quarter = capacity // 4
        while self.left:
            count = min(self.left, quarter, space - 3 * ALIGN)
            if count < min(self.left, quarter):
                self.want = min(aligned(self.left), quarter) + 3 * ALIGN
                return False
            place = self.left.to_bytes(ALIGN, "little")
            append_certainly(ring, PART, [place, *self._next(count)], ALIGN + count)
            self.left -= count
            self.side.tell()  # no step: without it the wake would only come later
            space = ring.space()
        # Not before: whoever dies in between only leaves an idle ABORT.
        words[W_OPEN] = 0  # step: end-open (early)
        words[WRITES] = (words[WRITES] + 1) & WORD
        return True

    def _reserve(self) -> bool:
        """Lend the space for the message if it is there; the lock keeps resizes out."""
        self.sender.check(self.size)  # the ring may have been made smaller meanwhile
        self.want = ALIGN + aligned(self.size)
        if self.ring.space() < self.want:
            return False
        self.side.words[WR_LENT] = identity.token  # step: reserve-mark
        return True

    def _next(self, count: int) -> list[memoryview]:
        """The next ``count`` bytes of the message."""
        # (A method, so that no frame of an exception's traceback has them in a variable.)
        taken, self.pieces = cut(self.pieces, count)
        return taken

    def _give_up(self) -> None:
        lock = self.side.lock
        if not self.begun or not lock.enter_soon():
            return  # if the lock cannot be had, receivers find the stream without a sender
        try:
            close_stream(self.ring)
        finally:
            lock.release()  # (who waits for the rest is woken by send(), whatever has failed)
            lock.leave()


def release(content: Any) -> None:
    """Leave no views of the caller's buffers in the frames of an exception's traceback.

    (They would keep a bytearray from being resized; and CPython before 3.13 crashes on a view of a
    view that its garbage collector finds in a cycle, as an exception's frames often are.)
    """
    for piece in content if type(content) is list else [content]:
        if isinstance(piece, memoryview):
            piece.release()


def broken_pipe() -> BrokenPipeError:
    return BrokenPipeError(errno.EPIPE, "Broken pipe: no process can receive any more")
