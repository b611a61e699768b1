"""Sleeping and waking: what the two sides of a ring owe each other.

Tickets.  A side that is going to wait adds one to its ``ARM`` word, under its own lock; the other
side, when it has something to tell, copies that number to ``RUNG`` and rings.  ``ARM != RUNG``
means: somebody waits and has not been rung for.  Each word has one writing side, so no update can
be lost, and a burst of writes costs one wake.

No wake-up is lost, because both sides look after a full barrier (S: sleeper, W: waker):

    S: lock; look: nothing; ARM += 1; unlock (barrier); look again; sleep
    W: lock; publish; unlock (barrier); ARM != RUNG? then RUNG = ARM and ring

If S's second look misses the publication, it came before the publication was visible, so before W's
barrier, and W's look at ARM comes after it.

Sleeping has two phases.  For the first SHORT_SLEEP seconds a sleeper is on a semaphore, which wakes
fast; then it polls its doorbell without a time limit, so that it uses no CPU while nothing happens
and notices at once when the other side dies.  A sleeper in the second phase is for the other side
the same as somebody who watches ``fileno()``.  It also watches (by pidfd) the processes that use
the pipe: one that is killed between publishing and waking must not leave it asleep, although the
doorbell shows nothing while others hold that end.  Who ended before it could be watched counts the
same, so where a look at the ring does not settle it, the list says so (``ended_before``).

One at a time: a ring posts the semaphore once.  A call that has slept and leaves data (space)
behind posts for the next sleeper; one that leaves nothing arms again for those who still sleep.
Tokens nobody took (from sleepers that were killed or timed out) are harmless: every sleeper looks
again, and drains old tokens before it arms.
"""

from __future__ import annotations

import os
import time
from math import inf

from . import identity, primitives
from .descriptors import Descriptor
from .doorbell import Doorbell
from .errors import OutOfTime
from .locking import Locks, SideLock
from .policies import ready
from .primitives import ELSEWHERE, INTERRUPTED, WOKEN, Semaphore
from .ring import Ring
from .segment import (
    LIMIT,
    POLICY,
    RD_WAIT,
    RPOS,
    WPOS,
    WR_WAIT,
    WRITE_PAGES,
)

DIED = 2  # beside WOKEN, TIMED_OUT and INTERRUPTED: another process may have died
LATE = 0.25  # seconds past its time for which a call goes on, as long as it need not wait
BLIND_SLEEP = 0.5  # seconds between looks of a sleeper that cannot watch the other processes
SHORT_SLEEP = 0.02  # seconds on the semaphore before a sleeper turns to its doorbell
ASK_AFTER = 0.001  # seconds that one side trusts the answer that the other is there
TELLING = 50e-6  # seconds that a reader spins for a writer who is just ringing the doorbell
SPIN_SLICE = 0.002  # seconds that a compiled spin may keep a signal's handler waiting
MOST_CAUTION = 1023  # waits between two trials of a long spin
LONGEST_SPIN = 50e-6  # seconds; the automatic choice where spinning can help at all

_MANY = 1 << 16  # tokens that are taken at a time

NOT, SHORT, LONG = range(3)  # how a call is counted among the sleepers at the moment


def spin_limit(spin: float | None) -> float:
    """Seconds a side may spin: the caller's choice, or by the number of usable CPUs."""
    if spin is None:
        return LONGEST_SPIN if len(os.sched_getaffinity(0)) > 1 else 0.0
    return spin


class Watched(list[Descriptor]):
    """Descriptors that show the ends of processes."""

    users: list[int] = []  # noqa: RUF012
    """All that had a place when the list was made."""
    too_late = False
    """Whether one of them had ended by then: nothing will show what it may have left undone."""


class Side:
    """What the readers' and the writers' side of a ring have in common, for one process."""

    lock: SideLock

    def __init__(self, ring: Ring, locks: Locks, bell: Doorbell, spin: float | None) -> None:
        self.ring = ring
        self.words = self.ring.words
        self.locks = locks
        self.bell = bell
        self.spin_choice = spin
        self.spin_most = spin_limit(spin)
        self.spin_now = self.spin_most  # learns: see spin() and sleep_short()
        self.spun = 0.0  # seconds of the last spin
        self.trying = False  # the next spin is longer than what has been paying
        self.hints = 0  # waits, since the last such one, that it would have ended
        self.caution = 0  # how many of them it takes until another one
        self.ask_at = -inf  # from when on the doorbell is asked for the other side's life once more
        self.left_word = 0  # where who leaves the other side says so
        self.blind: OSError | None = None  # why the last sleeper could not watch the others
        self.read_wait = ring.segment.semaphore(ring.index, RD_WAIT)
        self.write_wait = ring.segment.semaphore(ring.index, WR_WAIT)

    def has_data(self) -> bool:
        return self.words[RPOS] != self.words[WPOS]

    def is_ready(self) -> bool:
        """Whether the policy counts writers as ready (POLLOUT)."""
        words = self.words
        used = self.ring.used_now()
        return ready(words[POLICY], words[LIMIT], words[WRITE_PAGES], used)

    def watch_others(self) -> list[Descriptor]:
        """Descriptors that tell when another process that uses the pipe ends.

        One that is killed may have published something and not woken anybody; whether the doorbell
        tells depends on who else holds its end.
        """
        self.blind = None
        watched = Watched()
        try:
            watched.users = self.ring.segment.places.users()
            if self.bell.ends_calls:
                watched.append(self.bell.closing())
            for token in watched.users:
                process = identity.watch(token)
                if process is not None:
                    watched.append(process)
                elif token != identity.token:
                    watched.too_late = True
        except OSError as error:  # no descriptors left, or none of that kind
            if error.errno is None:  # a signal's handler has raised it
                raise
            self.blind = error.with_traceback(None)
        return watched

    def sleep_short(self, semaphore: Semaphore, seconds: float | None) -> int:
        """Sleep on a semaphore: WOKEN, TIMED_OUT or INTERRUPTED.

        Short spins alone would teach that spinning never pays, where something comes every few
        microseconds.  So where a long one would have ended the wait, as far as can be told, one is
        tried; and the more rarely, the more often that was in vain: where the other side waits for
        this processor, it only comes once this one sleeps.
        """
        limit = SHORT_SLEEP if seconds is None else min(seconds, SHORT_SLEEP)
        if self.spin_most <= 0:
            return semaphore.wait(limit)
        began = time.monotonic()
        outcome = semaphore.wait(limit)
        if outcome == WOKEN and self.spun + time.monotonic() - began < self.spin_most:
            self.hints += 1
            if self.hints > self.caution:
                self.hints = 0
                self.trying = True
                self.spin_now = self.spin_most
        return outcome

    def sleep_long(self, events: int, seconds: float | None, others: list[Descriptor]) -> int:
        """Poll the doorbell: WOKEN, TIMED_OUT, INTERRUPTED, or DIED: look at everything again."""
        self.still_open(WOKEN)  # whoever closes it from now on is seen below
        limit = seconds
        if self.blind is not None:
            limit = BLIND_SLEEP if seconds is None else min(seconds, BLIND_SLEEP)
        # A process that takes its place after the list was made looks who sleeps long: either it
        # sees this call, which is counted, or it is seen here.
        come = isinstance(others, Watched) and others.users != self.ring.segment.places.users()
        if come:  # step: strangers (never)
            return DIED
        shown = self.bell.sleep(events, limit, [other.fileno() for other in others])
        if shown == ELSEWHERE or (not shown and self.blind is not None):
            return DIED
        return min(shown, WOKEN)

    def still_open(self, outcome: int) -> int:
        """After a sleep: a handler that closes the end means the call that it has interrupted.

        Another thread that closes it ends calls on a connection; as with the kernel's pipe, those
        on a pipe go on.
        """
        bell = self.bell
        if bell.sock is None and (bell.ends_calls or outcome == INTERRUPTED):
            raise bell.closed()
        return outcome

    def others_gone(self, sure: bool) -> bool:
        """Whether nobody holds an end of the other side any more.

        Unless it has to be ``sure``, an answer of the doorbell is trusted for ASK_AFTER: who closes
        an end leaves a word, and who was killed shows when a sleeper turns to its doorbell.
        """
        if not (self.words[self.left_word] or sure) and primitives.coarse_time() < self.ask_at:
            return False
        return self._ask()

    def _ask(self) -> bool:
        words = self.words
        now = primitives.coarse_time()
        # step: left-first (late 2)
        if words[self.left_word]:
            words[self.left_word] = 0  # before asking: who leaves after the answer sets it again
        gone = self.bell.hung_up()
        self.ask_at = -inf if gone else now + ASK_AFTER  # (nobody can come back)
        return gone

    def spin(self, word: int, target: int, limit: float | None) -> bool:
        """Wait, without sleeping, for a word that only grows to reach ``target``.

        For as long as it has been paying lately, or as a trial, and at most ``limit`` seconds.
        """
        left = self.spun = self.spin_now if limit is None else min(self.spin_now, limit)
        paid = primitives.spin(self.words, word, target, min(left, SPIN_SLICE))
        while not paid and left > SPIN_SLICE:
            primitives.check_signals()
            left -= SPIN_SLICE
            paid = primitives.spin(self.words, word, target, min(left, SPIN_SLICE))
        if paid:
            self.spin_now = min(self.spin_most, self.spin_now * 2)
        else:
            self.spin_now = max(self.spin_most / 64, 0.0 if self.trying else self.spin_now / 2)
        if self.trying:
            self.trying = False
            self.caution = self.caution // 2 if paid else min(2 * self.caution + 1, MOST_CAUTION)
        return paid

    def drain(self, semaphore: Semaphore) -> None:
        """Take the tokens that nobody took; of very many, some are left, which costs wakes.

        Who is counted as asleep and does not come to run for a while is posted for again and again,
        so there is no number that a sound pipe never has; a forged one must not keep us here.
        """
        for _ in range(_MANY):
            if not semaphore.acquire(False):
                return

    def post_in_leaving(self, semaphore: Semaphore) -> None:
        """An end is closed, also one of a pipe that is damaged."""
        try:
            semaphore.release()
        except OSError:
            pass

    # What the two sides do each in their own way.

    def arrived(self) -> None:
        """This process has the side's lock for the first time: long sleepers of the other side do
        not watch it yet, so they look again.
        """
        raise NotImplementedError

    def repair(self) -> None:
        """A holder of the side's lock has died: give the wakes that it may have owed."""
        raise NotImplementedError

    def recover(self, kind: int) -> None:
        """A call ends by an exception, which may have come anywhere: leave nothing behind."""
        raise NotImplementedError

    def watch_fd(self) -> int:
        """The descriptor whose readiness is this side's."""
        raise NotImplementedError

    def resized(self) -> None:
        """Slots may have become free other than by a read: wake the writers for them."""
        raise NotImplementedError

    def level_changed(self) -> None:
        """The mark for POLLOUT has moved; sleepers are not woken by that."""
        raise NotImplementedError

    def leave(self) -> None:
        """This process closes its end: a sleeper of the other side looks if it was the last.

        May be called again.
        """
        raise NotImplementedError

    def _let_go(self) -> None:
        self.lock.sides.discard(id(self))
        self.ring.segment.sides.discard(id(self))
        self.bell.close()


def go_on(deadline: float | None) -> None:
    """Before another round of a call that has found something to do and did not have to sleep.

    TimeoutError: ``deadline`` has long come.  (Who keeps a call busy may not keep it for ever.)
    """
    primitives.check_signals()
    if deadline is not None and time.monotonic() > deadline + LATE:
        raise OutOfTime("timed out: what the call had waited for was gone again each time")


def close_all(watched: list[Descriptor]) -> None:
    while watched:
        watched.pop().close()


def rewatched(side: Side, watched: list[Descriptor]) -> list[Descriptor]:
    """What ``side.watch_others()`` returns now, in place of what it did."""
    close_all(watched)
    return side.watch_others()


def ended_before(watched: list[Descriptor]) -> bool:
    """Whether one that could have been ``watched`` had ended by then."""
    return isinstance(watched, Watched) and watched.too_late
