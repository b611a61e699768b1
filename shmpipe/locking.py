"""Side locks: one reader and one writer at a time, over threads and processes, the dead included.

A side lock is a semaphore in the segment (free: 1).  Nobody sleeps while holding one.  A process
can be killed at any instruction, so whoever waits for long has to find out whether the holder is
gone.  Every process that uses a segment has a *place* in it: its identity, and for each lock a
number that only it writes, odd while it may hold that lock:

    number += 1 (odd); acquire; ... ; release; number += 1 (even)

A try that fails takes its 1 back, so half the number counts the times the process has had the lock.

Invariant: whoever owns the semaphore has an odd number.  So the lock is lost if in two looks every
odd number belongs to a process that is gone, and no count has changed between them: a process that
got the lock meanwhile is odd in the second look or has counted.  Whoever finds that posts the
semaphore for the dead.  A live process is never taken for dead, however long it stands still: its
thread may be waiting for Python's own lock, stopped, or in a debugger.

Within a process there is one object for each lock, whatever ends it is used through (``parts()``),
and its threads come one after the other (``local``), so the number has one writer.  Takers-over
exclude each other by the segment's file lock, which the kernel drops when its owner dies.

Use:

    lock.enter()
    try:
        ...
    finally:
        lock.release()
        lock.leave()

``release`` is a C method and a full barrier: what was stored before it is visible before what is
loaded after it.  Python runs signal handlers between bytecodes.  One that raises may leave
``local`` behind (since Python 3.11 not the semaphore): the next caller finds that no frame of
this process is inside, and clears up.  One that uses the same end while its thread is inside gets
RuntimeError; so does a finalizer, which the garbage collector runs in the middle of everything too.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import identity, primitives, variables
from .errors import OutOfTime
from .living import Living
from .primitives import SIGNALS_ANYWHERE, Semaphore, ThreadLock
from .segment import (
    RD_LOCK,
    RD_TURN,
    RD_TURN_DOOR,
    RD_WAIT,
    WR_LOCK,
    WR_TURN,
    WR_TURN_DOOR,
    WR_WAIT,
    Segment,
    all_segments,
    damaged,
)

ONE_COPY = 0.005  # seconds: more than it takes to copy what a ring holds
PATIENCE = 0.1  # seconds between looks at who may hold the lock
STANDSTILL = 0.4  # seconds that a call waits for a lock, if it has no time limit and must not wait
_FIRST_NAP, _LONGEST_NAP = 20e-6, 1e-3  # seconds between tries for a side lock
_DOORS = {RD_TURN: RD_TURN_DOOR, WR_TURN: WR_TURN_DOOR}
_STILL = 0.005  # seconds between the two looks; a store is visible within microseconds
_LOCKS = (RD_LOCK, WR_LOCK, RD_TURN, WR_TURN)


class SideLock(Semaphore):
    """One lock of one ring; shared by all ends that this process has."""

    segment: Segment
    ring: int
    index: int  # of this lock among those of the segment
    numbers: memoryview
    word: memoryview  # the semaphore's
    mine: int  # where this process's number is; -1: it has no place yet
    door: Semaphore | None  # a turn is held for long: who waits for it sleeps here
    local: Any  # a ThreadLock, which knows its thread
    look: float  # when to look for the dead, if calls go on finding it taken; 0: they do not
    owed: bool  # this process has taken the lock over, and has not made the repair yet
    lent: Any  # a turn: weakly, the loan that this process has it for; None: it has none
    # The open sides in this process that act under this lock, by id.  One of them is told when this
    # process takes the lock at all, and gives the wakes that a dead holder may have owed.
    sides: Living[Any]

    @classmethod
    def of(cls, segment: Segment, ring: int, word: int) -> SideLock:
        self: SideLock = segment.semaphore(ring, word, cls)
        self._begin(segment, ring, word)
        return self

    def _begin(self, segment: Segment, ring: int, word: int) -> None:
        self.segment = segment
        self.ring = ring
        self.index = ring * len(_LOCKS) + _LOCKS.index(word)
        self.numbers = primitives.as_numbers(segment.places.numbers)
        self.window = segment.lock_word(ring, word)
        self.word = primitives.as_words(self.window)
        self.mine = -1
        self.local = ThreadLock()
        self.door = segment.semaphore(ring, _DOORS[word]) if word in _DOORS else None
        self.look = 0.0
        self.owed = False
        self.lent = None
        self.sides = Living()

    def enter(self, deadline: float | None = None) -> None:
        """Take the lock.

        TimeoutError: ``time.monotonic()`` has reached ``deadline``, and whoever has the lock has
        had ONE_COPY to go on.  RuntimeError: this thread is inside already (this is a signal
        handler or a finalizer).  OSError EBUSY: this thread has it for a loan.  EBADMSG: somebody
        has overwritten it.
        """
        local = self.local
        # (Where a handler can run anywhere, ``local`` lets its own thread in once more.)
        if (SIGNALS_ANYWHERE and local._is_owned()) or not local.acquire(False):
            self._wait_for_threads(deadline)
        entered = False
        # (Compiled, an ``except`` here would cost every message more than this does.)
        try:
            arrives = self.mine < 0
            if arrives:
                self._take_place(deadline)
            if self.word[0] > 1:  # nobody sleeps on it, so its upper half is 0
                raise damaged("a lock")
            # step: odd-first (late)
            self.numbers[self.mine] = (self.numbers[self.mine] + 1) & _NUMBER
            if not self.acquire(False):
                self._contend(deadline)
            if arrives:
                self._arrive()
            entered = True
        finally:
            if not entered:
                self._clear_up()

    def _take_place(self, deadline: float | None) -> None:
        # Places are given one by one: a first call waits for those before it.
        self.mine = self.segment.place(self.index, _not_before(deadline, PATIENCE))

    def _arrive(self) -> None:
        """This process has the lock for the first time."""
        for side in self.sides.all()[:1]:
            side.arrived()

    def enter_soon(self, seconds: float = PATIENCE) -> bool:
        """Take the lock to put something right; False: its holder has stood still for too long.

        (It may be stopped.  No call may hang for that after its own time is up.)  False also
        without a descriptor to find out whether the holder lives: the call ends by another error.
        """
        try:
            self.enter(time.monotonic() + seconds)
        except OutOfTime:
            return False
        except OSError as error:
            if error.errno in (errno.EBADMSG, None):  # None: a signal's handler has raised it
                raise
            return False
        return True

    def leave(self) -> None:
        """After ``release()``: this process certainly does not hold the lock any more."""
        if self.mine >= 0:
            # step: even-after
            self.numbers[self.mine] = (self.numbers[self.mine] + 1) & ~1 & _NUMBER
        if self.door is not None and self.door._is_zero():
            # step: turn-door
            self.door.release()  # one token is enough: whoever takes it leaves through here too
        self.local.release()
        if self.owed:
            self.owed = False
            for side in self.sides.all()[:1]:
                side.repair()  # it may take this lock itself

    def _contend(self, deadline: float | None) -> None:
        """Wait for another process."""
        deadline = _not_before(deadline, ONE_COPY)  # for a message that is just being copied
        nap = _FIRST_NAP
        late = False
        if not self.look:
            self.look = time.monotonic() + PATIENCE
        while True:
            # Even, as it is not ours.  # step: even-asleep
            self.numbers[self.mine] = (self.numbers[self.mine] - 1) & _NUMBER
            if late:
                raise OutOfTime("timed out waiting for another call on the same end")
            if self.door is not None:
                patience = PATIENCE if deadline is None else deadline - time.monotonic()
                self.door.wait(min(PATIENCE, max(patience, 0)))
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
            now = time.monotonic()
            late = deadline is not None and now >= deadline
            if now >= self.look:  # late or not: calls that are short may be all there are
                try:
                    self.segment.exclusively(self._look_for_the_dead, now + PATIENCE)
                except OutOfTime:
                    pass  # somebody else is at it, or keeps us from it
                self.look = time.monotonic() + PATIENCE
            self.numbers[self.mine] = (self.numbers[self.mine] + 1) & _NUMBER  # step: odd-again
            if self.acquire(False):
                self.look = 0.0
                return

    def _look_for_the_dead(self) -> None:
        """Post the semaphore if it is lost, and make everybody look who may be owed a wake."""
        counts, lost = self._dead_holders()
        if not lost:
            return
        time.sleep(_STILL)
        # First the try, then the look: who gets the lock between the two must be seen.
        free = self.acquire(False)  # step: try-first (late)
        same = self._dead_holders() == (counts, lost)
        if not free and not same:  # step: two-looks (never)
            return
        self.owed = True  # first: a repair too many does no harm  # step: owed-wakes
        if free:  # one of the dead did not have it after all
            self.release()
        else:
            # A second handle: this one must not count a release it never acquired.
            Semaphore.at(self.address, self.keep).release()
        for at in lost:
            self.numbers[at] = 0
        for word in (RD_WAIT, WR_WAIT):
            self.segment.semaphore(self.ring, word).release()

    def _dead_holders(self) -> tuple[list[int], list[int]]:
        """How often each process has had the lock, and which numbers of the dead are odd.

        The second list is empty also if somebody alive may have it, or be just trying.
        """
        numbers = self.segment.places.numbers_of(self.index)
        odd = [(token, at) for token, at in numbers if self.numbers[at] & 1]
        alive = any(identity.is_alive(token) for token, _ in odd)
        return [self.numbers[at] >> 1 for _, at in numbers], [] if alive else [at for _, at in odd]

    def left_behind(self) -> None:
        """A call ends by an exception that may have come while it held the lock: clear up."""
        if not SIGNALS_ANYWHERE or self.loan() is not None:
            return
        if self.local._is_owned() and not _is_inside_below(self):
            self._clear_up()

    def loan(self) -> Any:
        """The loan that this process has the lock for: nobody is inside a call then."""
        lent = self.lent
        return None if lent is None else lent()

    def has_lent_here(self) -> bool:
        """Whether it is this thread that has something lent, and not a message in steps."""
        loan = self.loan()
        return loan is not None and bool(loan.lends) and self.local._is_owned()

    def let_go(self) -> None:
        """Give the lock back at the end of a loan, perhaps in another thread than got it."""
        if not self.local._is_owned():
            self.local = ThreadLock()  # an RLock would insist on its thread
            self.local.acquire(False)
        self._clear_up()

    def _clear_up(self) -> None:
        if self._count():
            self.release()
        self.leave()

    def _wait_for_threads(self, deadline: float | None) -> None:
        """Wait for another thread of this process; clear up what a raise has left behind."""
        local = self.local
        if local._is_owned():
            if self.loan() is not None:
                raise lent_out()
            if not SIGNALS_ANYWHERE or _is_inside_below(self):
                raise RuntimeError(
                    "reentrant call on a pipe end, from a signal handler or a finalizer (__del__)"
                )
            self._clear_up()
        deadline = _not_before(deadline, ONE_COPY)  # for a message that is just being copied
        orphaned = 0
        while True:
            # The end of a loan, which may come in another thread, is not told to those who wait.
            patience = PATIENCE if self.loan() is None else ONE_COPY
            if deadline is not None:
                # What is missing of three looks comes behind a call's time: it may be its only one.
                least = ONE_COPY if orphaned else 0.0
                patience = min(patience, max(least, deadline - time.monotonic()))
            if local.acquire(True, patience):
                return
            # Looks are not atomic, so only several in a row count.
            orphaned = orphaned + 1 if SIGNALS_ANYWHERE and self._is_orphaned(local) else 0
            if not orphaned and deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime("timed out waiting for another call on the same end")
            if orphaned == 3 and local is self.local:
                # Left behind by a thread that will not come back for it.
                self.local = ThreadLock()
                if self._count():
                    self.release()
            local = self.local

    def _is_orphaned(self, local: Any) -> bool:
        """Whether the thread that owns ``local`` is in no call that has to do with this lock."""
        if self.loan() is not None:
            return False
        owner = int(repr(local).partition("owner=")[2].split()[0])  # its only way to tell
        return bool(owner) and not _is_inside(sys._current_frames().get(owner), self)


_NUMBER = (1 << 32) - 1


def lent_out() -> OSError:
    """The error for what has to wait for the end of the caller's own block."""
    return OSError(errno.EBUSY, "a message is lent: its block has to end first")


def standstill() -> float:
    """The deadline for a lock that a call needs which must not wait, and has no time limit."""
    return time.monotonic() + STANDSTILL


def _not_before(deadline: float | None, seconds: float) -> float | None:
    """A deadline that is so far away at least: some waits are due to calls without time, too."""
    return None if deadline is None else max(deadline, time.monotonic() + seconds)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__package__") == __package__


def _is_inside_below(lock: SideLock) -> bool:
    """Whether this thread was interrupted in a call that has, or is taking, ``lock``.

    The frames on top are of the call that asks; below them are the signal handler and, if so, the
    call that it has interrupted.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return _is_inside(frame, lock)


def _is_inside(frame: FrameType | None, lock: SideLock) -> bool:
    """Whether a frame, or one that called it, may have ``lock`` or be taking it.

    By our convention a function that takes a lock has it in a local variable.
    """
    while frame is not None:
        if _is_ours(frame) and variables.count(frame, lock):
            return True
        frame = frame.f_back
    return False


class Locks:
    """A ring as this process has it, with its side locks, and the turns that long frames hold."""

    def __init__(self, ring: Any) -> None:
        segment, number = ring.segment, ring.index
        self.ring = ring
        self.reader = SideLock.of(segment, number, RD_LOCK)
        self.writer = SideLock.of(segment, number, WR_LOCK)
        self.reader_turn = SideLock.of(segment, number, RD_TURN)
        self.writer_turn = SideLock.of(segment, number, WR_TURN)

    def all(self) -> tuple[SideLock, ...]:
        return self.reader, self.writer, self.reader_turn, self.writer_turn


def parts(segment: Segment, number: int, kind: Callable[[Segment, int], Any]) -> Locks:
    """A ring of ``kind`` and its locks, the same for all ends that this process has."""
    found: Locks | None = segment.parts.get(number)
    if found is None:
        found = segment.parts.add(number, Locks(kind(segment, number)))
    return found


def _after_fork() -> None:
    """What the threads of the parent held, the child's do not; and it has no places yet."""
    for segment in all_segments():
        segment.places.forget()
        for locks in segment.parts.all():
            for lock in locks.all():
                lock._after_fork()
                lock.local = ThreadLock()
                lock.mine = -1
                lock.lent = None


os.register_at_fork(after_in_child=_after_fork)
