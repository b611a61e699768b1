"""Messages that are not copied: lent where they lie in the ring, or written there in place.

Whoever borrows has its side's *turn* for as long, not the side's lock: nobody else takes (or puts)
a message meanwhile, and every call of the other side goes on.  The ring's pages are mapped once
more, twice in a row, so a message that wraps around the end of the ring is contiguous too.

Invariants:
* While RD_LENT (WR_LENT) names a living process, the ring is not resized, so what is lent stays
  where it is.  It is set under the turn and the side's lock, and cleared under the turn.
* What is lent is given back, or published, by the one store of a position that receiving, or
  sending, ends with too.  So a borrower that is killed has received, or sent, nothing.
* Once the turn has been given back, nothing in this process refers to the ring through the mapping:
  if something still does, zeros are put in the place of the whole mapping first.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from types import TracebackType
from typing import Any

from . import identity
from .arrivals import wait_for_data
from .bytering import ByteRing
from .errors import OutOfTime
from .frames import DATA
from .locking import standstill
from .messages import plain
from .primitives import WOKEN, cut_off
from .receiving import Receiver
from .segment import (
    ALIGN,
    LIMIT,
    PAGE_SHIFT,
    PAGES,
    PLUG,
    R_KEEPER,
    RD_LENT,
    RD_TURN_BY,
    READS,
    UNPLUG,
    WORD,
    WPOS,
    WR_ARM,
    WR_LENT,
    WR_RUNG,
    WR_TURN_BY,
    WR_WATCH,
    WRITES,
    damaged,
)
from .sending import Sender, broken_pipe
from .waiting import NOT, go_on

_OTHER = object()  # in front is what does not lie in the ring as one message


class Window:
    """The pages of one ring, mapped twice in a row for the loans of one side."""

    def __init__(self, ring: ByteRing, pages: int) -> None:
        self.size = pages << PAGE_SHIFT
        self.token = identity.token
        self._map = ring.segment.twice(ring.index, pages)
        self._idle = 0
        self._idle = self._references()

    def view(self, at: int, size: int) -> memoryview:
        """``size`` bytes from ring position ``at`` on."""
        if size > self.size:
            raise damaged(f"a message of {size} bytes in a ring of {self.size}")
        start = at & (self.size - 1)
        return memoryview(self._map)[start : start + size]

    def is_used(self) -> bool:
        """Whether a view is left.  (A slice of one outlives its release, and tells only here.)"""
        return self._references() > self._idle

    def cut_off(self) -> None:
        """Take the ring away from whoever still has a view."""
        cut_off(self._map)

    def _references(self) -> int:
        return sys.getrefcount(self._map)


def _window(part: Any, pages: int) -> Window:
    """The window of a receiver or a sender; under the turn, and with the ring marked as lent."""
    window: Window | None = part.window
    if window is not None and window.token == identity.token and window.is_used():
        window.cut_off()  # of a loan that was dropped without its block's end
        window = None
    if window is None or window.token != identity.token or window.size != pages << PAGE_SHIFT:
        part.window = window = Window(part.ring, pages)
    return window


class Loan:
    """A context manager, good for one ``with`` block, whose value is a view that ends with it."""

    _by = _lent = 0  # the words that name the borrower
    lends = True  # until its block ends nothing else can be done in its direction, by this thread

    def __init__(self, connection: Any, part: Any, deadline: float | None) -> None:
        self.connection = connection  # which is not closed meanwhile
        self._part = part
        self._words: memoryview = part.ring.view
        self._deadline = deadline
        self._view: memoryview | None = None
        self._token = identity.token
        self._has_turn = False

    def __enter__(self) -> memoryview:
        if self._view is not None:
            raise RuntimeError("a loan is for one block")
        self.connection._check_closed()
        try:
            self._view = self._begin()
        except BaseException as error:
            self._give_back()
            if isinstance(error, OutOfTime):
                # A wake that it has had.  # step: lend-late-pass-on
                self._part.side.pass_on(True, False)
            elif not isinstance(error, EOFError):
                self._part.side.recover(NOT)
            raise
        return self._view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._view is None or identity.token != self._token:
            return  # a forked process has borrowed nothing
        try:
            used = self._take_back(self._view)
            if self._has_turn:
                self._finish(kind is None and not used)
        finally:
            self._give_back()
        if used and kind is None:
            raise BufferError("something still refers to a message whose block has ended")

    def has_begun(self) -> bool:
        """Whether its block was entered."""
        return self._view is not None

    def _take_back(self, view: memoryview) -> bool:
        """End the view; whether something still refers to it."""
        used = False
        try:
            view.release()
        except BufferError:
            used = True
        if self._has_turn:
            window = self._part.window
            used = used or window.is_used()
            if used:
                window.cut_off()
                # It shows zeros, also to a loan that comes when all is gone.
                self._part.window = None
        return used

    def _finish(self, well: bool) -> None:
        try:
            try:
                self._end(well)
            finally:
                self._give_back()
            # Behind the loan's end: who waits for that looks whether it is over.
            self._wake()  # step: lend-wake-last (early)
        except BaseException:
            self._part.side.recover(NOT)  # gives the wakes that may be owed
            raise

    def _take_turn(self) -> None:
        turn, words = self._part.turn, self._words
        turn.enter(self._deadline)
        self._has_turn = True
        self._part.side.still_open(WOKEN)  # it may have waited for long
        turn.lent = weakref.ref(self)
        words[self._by] = identity.token  # step: lend-turn
        words[self._lent] = 0  # a dead predecessor's

    def _give_back(self) -> None:
        if self._has_turn and identity.token == self._token:
            turn = self._part.turn
            turn.lent = None  # first: interrupted from here on, the turn is one left behind
            # Before the turn goes: the next borrower's names must not be taken away.
            self._words[self._lent] = 0  # step: lend-over-first (late 3)
            self._words[self._by] = 0  # step: lend-turn-over-first (late 2)
            self._has_turn = False
            turn.let_go()

    def __del__(self) -> None:
        # Entered by hand, and dropped.  (No lock is taken here: a finalizer runs anywhere.)
        if getattr(self, "_has_turn", False):
            with contextlib.suppress(Exception):
                self._give_back()

    def _begin(self) -> memoryview:
        raise NotImplementedError

    def _end(self, well: bool) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        raise NotImplementedError


class Received(Loan):
    """The next message: lent if it lies whole in the ring as plain bytes, else copied.

    Entering: EOFError, TimeoutError as ``Receiver.receive``.
    """

    _by, _lent = RD_TURN_BY, RD_LENT
    _kind = DATA

    def __init__(self, connection: object, receiver: Receiver, deadline: float | None) -> None:
        super().__init__(connection, receiver, deadline)
        self._slept = False
        self._before = 0

    def _begin(self) -> memoryview:
        receiver, side = self._part, self._part.side
        while True:
            if self._slept:
                go_on(self._deadline)
            found = self._look()
            if found is _OTHER:
                return self._copied()
            if found is not None:
                size, at, pages = found
                # (No variable may have the view that is not released: see ``variables``.)
                return _window(receiver, pages).view(at, size).toreadonly()
            if not wait_for_data(side, self._deadline):
                raise OutOfTime("timed out waiting for a message")
            self._slept = True
            if self._words[RD_TURN_BY]:
                # step: lend-wait-pass-on
                side.pass_on(True, False)  # the wake may have been for who has the turn

    def _copied(self) -> memoryview:
        """It does not lie in the ring as one message of this kind."""
        return memoryview(plain(self._part.receive(None, self._deadline, None, self._slept)))

    def _look(self) -> Any:
        """Borrow the first message: (size, where, pages of the ring); None: there is none yet."""
        receiver, words = self._part, self._words
        lock, ring = receiver.lock, receiver.ring
        found: Any = None
        self._take_turn()
        try:
            lock.enter(self._deadline)
            try:
                if words[R_KEEPER]:
                    found = _OTHER
                elif ring.front():
                    found = _OTHER
                    if ring.kind == self._kind:
                        found = ring.size, ring.at, ring.pages()
                        words[RD_LENT] = identity.token  # step: lend-mark
            finally:
                lock.release()
                lock.leave()
        finally:
            if type(found) is not tuple:
                self._give_back()
        return found

    def _end(self, well: bool) -> None:
        """Received is received, however the block ends."""
        receiver, side, words = self._part, self._part.side, self._words
        lock, ring = receiver.lock, receiver.ring
        lock.enter(standstill())
        try:
            ring.front()  # others may have looked at further frames
            self._before = ring.consume()
            words[READS] = (words[READS] + 1) & WORD
            side.settle(not side.has_data(), self._slept)  # step: lend-settle
        finally:
            lock.release()
            lock.leave()

    def _wake(self) -> None:
        side, words = self._part.side, self._words
        if words[WR_ARM] != words[WR_RUNG] or words[PLUG] != words[UNPLUG]:
            if words[PAGES] < words[LIMIT]:  # step: lend-grow-wake (never)
                side.resized()  # who waits may let the ring grow now, with whatever is free
            else:
                # step: lend-wake
                side.wake_writers(self._part.ring.freed_since(self._before))
        if self._slept:
            side.pass_on(True, False)  # step: lend-pass-on


class Reserved(Loan):
    """Space for a message, sent when the block ends without an exception.

    Entering: TimeoutError, BrokenPipeError as ``Sender.send``.  Leaving: BrokenPipeError.
    """

    _by, _lent = WR_TURN_BY, WR_LENT
    _kind = DATA

    def __init__(
        self, connection: object, sender: Sender, size: int, deadline: float | None
    ) -> None:
        """ValueError: so much never fits."""
        super().__init__(connection, sender, deadline)
        sender.check(size)
        self._size = size

    def _begin(self) -> memoryview:
        sender, words = self._part, self._words
        self._take_turn()
        sender.wait_for_space(self._size, self._deadline)
        # Nobody else moves WPOS, or resizes, as long as the turn is ours and WR_LENT tells so.
        return _window(sender, sender.ring.pages()).view(words[WPOS] + ALIGN, self._size)

    def _end(self, well: bool) -> None:
        sender, side, words = self._part, self._part.side, self._words
        lock = sender.lock
        lock.enter(standstill())
        try:
            if well and side.others_gone(False):  # step: reserve-hangup (never)
                raise broken_pipe()
            if well:
                sender.ring.publish(self._kind, self._size)
                words[WRITES] = (words[WRITES] + 1) & WORD
            if words[WR_WATCH]:
                side.settle(False)  # step: reserve-settle
        finally:
            lock.release()
            lock.leave()

    def _wake(self) -> None:
        self._part.side.wake_readers()  # step: reserve-wake
