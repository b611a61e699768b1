"""The kernel's read and write, on the sides of a ring.

Kernel rules: fs/pipe.c, pipe_read and pipe_write; pipe(7); signal(7) on interrupted calls.
"""

from __future__ import annotations

import errno
import os

from . import primitives
from .descriptors import Descriptor
from .locking import STANDSTILL
from .pagering import PageRing
from .primitives import INTERRUPTED, TIMED_OUT, WOKEN
from .readers import ReaderSide
from .segment import (
    R_SPINS,
    RD_FLAGS,
    READS,
    RPOS,
    W_SPINS,
    WORD,
    WPOS,
    WR_FLAGS,
    WR_WATCH,
    WRITES,
)
from .waiting import DIED, LONG, NOT, SHORT, close_all, ended_before, rewatched
from .writers import WriterSide


def read(side: ReaderSide, dest: memoryview | None, want: int) -> int | bytes | None:
    """Up to ``want`` (> 0) bytes, into ``dest`` or as bytes; at EOF nothing; None: would block."""
    words, lock = side.words, side.lock
    ring: PageRing = side.ring  # type: ignore[assignment]
    nonblocking = words[RD_FLAGS] & os.O_NONBLOCK
    spin = not nonblocking and side.spin_now > 0
    asleep, kind, slept = NOT, SHORT, False
    others: list[Descriptor] = []  # the other processes, for a long sleep
    try:
        while True:
            if not nonblocking:
                lock.enter()
            elif not lock.enter_soon(STANDSTILL):
                return None
            try:
                if asleep:
                    armed, asleep = asleep, NOT
                    side.disarm(armed)  # step: read-disarm
                result = ring.take(dest, want)
                ended = False
                if not result and not spin:
                    # First the doorbell, then the ring once more: what a writer published before it
                    # died must not be lost behind its hang-up.
                    ended = side.others_gone(bool(nonblocking) or kind == LONG)
                    if ended:
                        result = ring.take(dest, want)  # step: read-look-after-hangup
                    elif nonblocking:
                        side.clear()
                        return None
                    else:
                        side.arm(kind, slept)
                        asleep = kind
                freed = ring.freed
                if result:
                    words[READS] = (words[READS] + 1) & WORD
                    side.settle(not ring.left, slept)  # step: read-settle
            finally:
                lock.release()  # step: read-unlock (late)
                lock.leave()
            if result or ended:
                side.wake_writers(freed)  # step: read-wake
                side.pass_on(slept, ended)  # step: read-pass-on
                return result
            if spin:
                spin = False
                if side.spin(WPOS, words[RPOS] + 1, None):
                    words[R_SPINS] = (words[R_SPINS] + 1) & WORD
            elif not side.has_data():  # step: read-look (always)
                if not slept:
                    slept = True  # first: the call may end here, and let go of it in vain
                    side.bell.hold()
                outcome = side.sleep(kind, None, others)
                if outcome == TIMED_OUT and kind == SHORT:
                    kind, others = LONG, rewatched(side, others)
                elif outcome == DIED:
                    others = rewatched(side, others)
            else:
                primitives.check_signals()
    except BaseException:
        side.recover(asleep)
        raise
    finally:
        if slept:
            side.bell.let_go()
        close_all(others)


def write(side: WriterSide, source: memoryview) -> int | None:
    """Write ``source`` (not empty); the count written, None if it would block before any of it."""
    words, lock = side.words, side.lock
    ring: PageRing = side.ring  # type: ignore[assignment]
    size, done = len(source), 0
    nonblocking = words[WR_FLAGS] & os.O_NONBLOCK
    spin = not nonblocking and side.spin_now > 0
    asleep, kind, slept, ticket = NOT, SHORT, False, 0
    others: list[Descriptor] = []  # the other processes, for a long sleep
    held = False  # whether the descriptors are kept from being closed
    may_put = True  # a sleeper that the policy has not woken takes no slot, free or not
    try:
        while True:
            if not nonblocking:
                lock.enter()
            elif not lock.enter_soon(STANDSTILL):
                return _written(done, False)
            try:
                if asleep:
                    armed, asleep = asleep, NOT
                    side.disarm(armed)  # step: write-disarm
                    may_put = may_put or side.answered(ticket) or not side.has_data()
                broken = side.bell.hung_up()  # the kernel's own count of readers, every time
                put = 0
                if may_put and not broken:
                    # A write that has slept never merges.
                    put = ring.put(source[done:] if done else source, slept)
                    done += put
                blocked = done < size and not broken
                if blocked and may_put and words[WR_FLAGS] & os.O_NONBLOCK:
                    blocked = False
                if not blocked:
                    words[WRITES] = (words[WRITES] + (1 if done else 0)) & WORD
                    side.settle(slept)  # step: write-settle
                elif not spin:
                    # no step: it only says how to sleep
                    if put or (words[WR_WATCH] and side.is_ready()):
                        kind = SHORT  # the socket is, or may soon be, writable for its watchers
                    now = side.arm(kind, slept and not put)
                    asleep = kind
                    if may_put:  # the ring is full; otherwise the unanswered ticket still counts
                        ticket = now
            finally:
                lock.release()  # step: write-unlock (late)
                lock.leave()
            if put:
                side.wake_readers()  # step: write-wake
            if not blocked:
                side.pass_on(slept, broken)  # step: write-pass-on
                return _written(done, broken)
            if spin:
                spin = False
                if _spin_for_space(side):
                    words[W_SPINS] = (words[W_SPINS] + 1) & WORD
                continue
            # step: write-look (never)
            if side.answered(ticket) or (may_put and side.has_space()):
                may_put = True
                primitives.check_signals()
                continue
            if not held:
                held = True  # first: the call may end here, and let go of it in vain
                side.bell.hold()
            slept = True
            outcome = side.sleep(asleep, None, others)
            may_put = outcome == WOKEN and (asleep == SHORT or side.answered(ticket))
            kind = asleep
            if outcome == DIED or (outcome == TIMED_OUT and asleep == SHORT):
                kind, others = LONG, rewatched(side, others)
                # (Of those who ended while it was on the semaphore, the list tells.)
                # step: write-overdue (never)
                if outcome == DIED or ended_before(others):
                    may_put = side.overdue()
            if outcome == INTERRUPTED:
                if done:
                    side.abandon(asleep)
                    return done
                # Resumed as a new call, as PEP 475 does: it may merge and take any free slot.
                slept, may_put, kind = False, True, SHORT
    except BaseException:
        side.recover(asleep)
        raise
    finally:
        if held:
            side.bell.let_go()
        close_all(others)


def _spin_for_space(side: WriterSide) -> bool:
    """Wait for readers that are at work, until the policy counts writers as ready."""
    words = side.words
    while not side.is_ready():
        primitives.check_signals()
        if not side.spin(RPOS, words[RPOS] + 1, None):
            return False
    return True


def _written(done: int, broken: bool) -> int | None:
    if broken and not done:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe: no process can read from it any more")
    return done or None
