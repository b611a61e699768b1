"""The kernel's read and write, on the sides of a ring.

Kernel rules: fs/pipe.c, pipe_read and pipe_write; pipe(7); signal(7) on interrupted calls.
"""

from __future__ import annotations

import errno
import os

from . import identity
from .pagering import PageRing
from .primitives import INTERRUPTED, TIMED_OUT, WOKEN
from .readers import ReaderSide
from .segment import (
    R_SPINS,
    RD_FLAGS,
    RD_OWNER,
    READS,
    W_SPINS,
    WR_FLAGS,
    WR_OWNER,
    WR_RUNG,
    WRITES,
)
from .waiting import LONG, NOT, SHORT
from .writers import WriterSide


def read(side: ReaderSide, dest: memoryview | None, want: int) -> int | bytes | None:
    """Up to ``want`` (> 0) bytes, into ``dest`` or as bytes; at EOF nothing; None: would block."""
    words, lock = side.words, side.lock
    ring: PageRing = side.ring  # type: ignore[assignment]
    nonblocking = words[RD_FLAGS] & os.O_NONBLOCK
    spin = not nonblocking and side.spin_now > 0
    asleep, kind, slept = NOT, SHORT, False
    try:
        while True:
            lock.enter()
            try:
                words[RD_OWNER] = identity.token
                if asleep:
                    side.disarm(asleep)
                    asleep = NOT
                result = ring.take(dest, want)
                ended = False
                if not result and not spin:
                    # First the doorbell, then the ring once more: what a writer published before it
                    # died must not be lost behind its hang-up.
                    ended = side.bell.hung_up()
                    if ended:
                        result = ring.take(dest, want)
                    elif nonblocking:
                        side.clear()
                        return None
                    else:
                        asleep = kind
                        side.arm(kind, slept)
                freed = ring.freed
                if result:
                    words[READS] += 1
                    side.settle(not ring.left, slept)
            finally:
                words[RD_OWNER] = 0
                lock.release()
            if result or ended:
                side.wake_writers(freed)
                side.pass_on(slept, ended)
                return result
            if spin:
                spin = False
                if side.spin(side.has_data):
                    words[R_SPINS] += 1
            elif not side.has_data():
                slept = True
                if side.sleep(kind) == TIMED_OUT:
                    kind = LONG
    except BaseException:
        side.abandon(asleep)
        raise


def write(side: WriterSide, source: memoryview) -> int | None:
    """Write ``source`` (not empty); the count written, None if it would block before any of it."""
    words, lock = side.words, side.lock
    ring: PageRing = side.ring  # type: ignore[assignment]
    size, done = len(source), 0
    spin = side.spin_now > 0 and not words[WR_FLAGS] & os.O_NONBLOCK
    asleep, kind, slept, ticket = NOT, SHORT, False, 0
    may_put = True  # a sleeper that the policy has not woken takes no slot, free or not
    try:
        while True:
            lock.enter()
            try:
                words[WR_OWNER] = identity.token
                if asleep:
                    side.disarm(asleep)
                    asleep = NOT
                    may_put = may_put or _answered(words[WR_RUNG], ticket) or not side.has_data()
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
                    words[WRITES] += 1 if done else 0
                    side.settle(slept)
                elif not spin:
                    asleep = SHORT if put else kind
                    now = side.arm(asleep, slept and not put)
                    if may_put:  # the ring is full; otherwise the unanswered ticket still counts
                        ticket = now
            finally:
                words[WR_OWNER] = 0
                lock.release()
            if put:
                side.wake_readers()
            if not blocked:
                side.pass_on(slept, broken)
                return _written(done, broken)
            if spin:
                spin = False
                if side.spin(side.is_ready):
                    words[W_SPINS] += 1
                continue
            if side.has_space() if may_put else _answered(words[WR_RUNG], ticket):
                may_put = True
                continue
            slept = True
            outcome = side.sleep(asleep)
            may_put = outcome == WOKEN
            kind = LONG if outcome == TIMED_OUT else SHORT
            if outcome == INTERRUPTED:
                if done:
                    side.abandon(asleep)
                    return done
                # Resumed as a new call, as PEP 475 does: it may merge and take any free slot.
                slept, may_put = False, True
    except BaseException:
        side.abandon(asleep)
        raise


def _answered(rung: int, ticket: int) -> bool:
    return not ((rung - ticket) & (1 << 63))


def _written(done: int, broken: bool) -> int | None:
    if broken and not done:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe: no process can read from it any more")
    return done or None
