"""Side locks: one reader and one writer at a time, across threads and processes, dead ones
included.

A side lock is a semaphore (free: 1) with one word beside it, the holder's signature.  Nobody sleeps
while holding one, so whoever waits for long looks whether the holder is still there:

* the signature names a process that is gone: the lock is released on its behalf;
* the lock is taken but unsigned for LOST_AFTER seconds, and no process that could have taken it is
  on its way: its holder died, or was thrown out by an exception, in the few instructions between
  taking and signing.  It is released too.

Invariant: whoever acts on its side has taken the semaphore and signed; it clears its signature
before it posts.  Takers-over exclude each other by a record lock on the segment, which the kernel
drops when its owner dies, and look again under it.  Assumed, not enforced: no live process stands
still between taking and signing, which are two adjacent instructions, for GIVEN_UP seconds.

Use, so that no exception from a signal handler can leave the lock behind:

    lock.enter()
    try:
        words[OWNER] = identity.token
        ...
    finally:
        words[OWNER] = 0
        lock.release()

``release`` is a full barrier: what was stored before it is visible before what is loaded after it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable

from . import identity
from .primitives import Semaphore
from .segment import (
    RD_LOCK,
    RD_OWNER,
    RD_TURN,
    RD_TURN_BY,
    RD_WAIT,
    WR_LOCK,
    WR_OWNER,
    WR_TURN,
    WR_TURN_BY,
    WR_WAIT,
    Segment,
)

PATIENCE = 0.1  # seconds between looks at the holder
LOST_AFTER = 0.4  # seconds without any holder's signature
GIVEN_UP = 5.0  # seconds without one, although there is a process that may be about to sign
_RECORDS = 1 << 40  # the record locks lie far behind the end of any segment

_taking_over = threading.Lock()  # record locks do not tell the threads of a process apart
_locks: weakref.WeakSet[SideLock] = weakref.WeakSet()


class SideLock(Semaphore):
    """The lock of one side of one ring."""

    segment: Segment
    ring: int
    words: memoryview
    owner: int  # index of the signature
    place: int  # which byte of the record lock stands for this lock
    repair: Callable[[], None] | None  # gives the wakes that a dead holder may have owed

    @classmethod
    def of(cls, segment: Segment, ring: int, words: memoryview, word: int, owner: int) -> SideLock:
        self: SideLock = segment.semaphore(ring, word, cls)
        self.segment = segment
        self.words = words
        self.owner = owner
        self.ring = ring
        self.place = ring * 512 + word
        self.repair = None
        _locks.add(self)
        return self

    def enter(self) -> None:
        """Take the lock.  RuntimeError: this thread is inside already (a signal handler)."""
        try:
            if self.acquire(False):
                return
        except BaseException:  # a signal handler raised right behind the call
            if self._is_mine() and self.words[self.owner] != identity.token:
                self.release()
            raise
        self._contend(None)

    def enter_until(self, deadline: float | None) -> None:
        """As ``enter``; TimeoutError once ``time.monotonic()`` has reached ``deadline``."""
        try:
            if self.acquire(False):
                return
        except BaseException:
            if self._is_mine() and self.words[self.owner] != identity.token:
                self.release()
            raise
        self._contend(deadline)

    def _contend(self, deadline: float | None) -> None:
        if self._is_mine():
            if self.words[self.owner] == identity.token:
                raise RuntimeError("reentrant call on a pipe end, from a signal handler")
            return  # left behind by an exception before it was signed for: ours again
        unsigned_since = None
        while True:
            holder = self.words[self.owner]
            patience = PATIENCE
            if deadline is not None:
                patience = min(patience, max(0.0, deadline - time.monotonic()))
            if self.acquire(True, patience):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("timed out waiting for another call on the same end")
            if self.words[self.owner] != holder:
                unsigned_since = None
            elif holder:
                if not identity.is_alive(holder):
                    self._take_over(holder)
            elif unsigned_since is None:
                unsigned_since = time.monotonic() - PATIENCE
            elif self._is_lost(time.monotonic() - unsigned_since):
                self._take_over(holder)
                unsigned_since = None

    def _is_lost(self, seconds: float) -> bool:
        """Whether the lock, unsigned for so long, is held by nobody who could go on."""
        if seconds < LOST_AFTER:
            return False
        # A thread of this process, or another process, may just not have got its turn.
        waiting = self._count() > 0 or identity.another_holder_runs(self.segment.fd)
        return not waiting or seconds >= GIVEN_UP

    def _take_over(self, holder: int) -> None:
        """Post the semaphore for ``holder``, unless somebody else has done so meanwhile.

        It may have died between publishing and waking, so whoever sleeps is made to look.
        """
        with _taking_over:
            fcntl.lockf(self.segment.fd, fcntl.LOCK_EX, 1, _RECORDS + self.place)
            try:
                if self.acquire(False):  # released after all
                    self.release()
                elif self.words[self.owner] == holder:
                    self.words[self.owner] = 0
                    # A second handle: this one must not count a release it never acquired.
                    Semaphore.at(self.address, self.keep).release()
                    for word in (RD_WAIT, WR_WAIT):
                        self.segment.semaphore(self.ring, word).release()
            finally:
                fcntl.lockf(self.segment.fd, fcntl.LOCK_UN, 1, _RECORDS + self.place)
        if self.repair is not None:
            self.repair()


class Locks:
    """Both side locks of a ring, shared by the ends that a process made together."""

    def __init__(self, segment: Segment, ring: int, words: memoryview) -> None:
        self.reader = SideLock.of(segment, ring, words, RD_LOCK, RD_OWNER)
        self.writer = SideLock.of(segment, ring, words, WR_LOCK, WR_OWNER)


class Turns:
    """The locks that whoever needs several rounds for one frame holds for all of them."""

    def __init__(self, segment: Segment, ring: int, words: memoryview) -> None:
        self.reader = SideLock.of(segment, ring, words, RD_TURN, RD_TURN_BY)
        self.writer = SideLock.of(segment, ring, words, WR_TURN, WR_TURN_BY)


def _after_fork() -> None:
    """What the threads of the parent held, the child's do not."""
    global _taking_over
    _taking_over = threading.Lock()
    for lock in _locks:
        lock._after_fork()


os.register_at_fork(after_in_child=_after_fork)
