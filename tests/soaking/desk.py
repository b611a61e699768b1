"""What every role has: its words in the ledger, its chances, and a way to make calls."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import shmpipe

from .ledger import (
    CALL,
    LIFE,
    OPERATIONS,
    RAISED,
    REFUSED,
    RESIZES,
    SIGNALS,
    STOPPING,
    TIMEOUTS,
    Ledger,
)
from .plans import PAGE, Plan


class Interrupted(Exception):
    """What a signal's handler raises now and then."""


class Outcome:
    """How a call ended that has no value."""

    def __init__(self, name: str) -> None:
        self.name = name


TIMED_OUT, INTERRUPTED, ENDED, FAILED = map(Outcome, ("timed out", "interrupted", "ended", "no"))
# What a resize may refuse: more is in use, or the other settings do not allow it.
_REFUSALS = (errno.EBUSY, errno.EPERM, errno.EINVAL)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
LIMITS = (0.0, 0.0005, 0.005, 0.05, 0.5)


class Alarm:
    """Signals every few milliseconds, with a handler that raises only inside of a call."""

    def __init__(self, plan: Plan, words: memoryview) -> None:
        self.plan = plan
        self.words = words
        self.armed = False
        self.random = random.Random().random  # when a signal comes is chance in any case

    def start(self) -> None:
        if self.plan.signals:
            signal.signal(signal.SIGALRM, self.handle)
            self.go_on()

    def go_on(self) -> None:
        """(A forked process has no timer of its own yet.)"""
        if self.plan.signals:
            signal.setitimer(signal.ITIMER_REAL, self.plan.signals, self.plan.signals)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def handle(self, *_: Any) -> None:
        self.words[SIGNALS] += 1
        if self.armed and self.plan.raises and self.random() < 0.05:
            self.words[RAISED] += 1
            raise Interrupted


class Desk:
    """Where one role is played."""

    def __init__(self, plan: Plan, ledger: Ledger, role: int, alarm: Alarm, starved: bool) -> None:
        self.plan = plan
        self.ledger = ledger
        self.role = role
        self.words = ledger.role(role)
        self.alarm = alarm
        self.starved = starved
        # Whoever goes on with the role has other chances.
        self.chance = random.Random(f"{plan.seed}/{role}/{self.words[LIFE]}")
        self.random = self.chance.random

    def stopping(self) -> bool:
        return bool(self.ledger.round[STOPPING])

    def limit(self) -> float | None:
        """A time limit for a call."""
        return LIMITS[int(self.random() * 5)] if self.random() < 0.3 else None

    def attempt(self, code: int, call: Callable[..., Any], *args: Any) -> Any:
        """What ``call(*args)`` returns, or how it ended."""
        words, alarm = self.words, self.alarm
        words[CALL] = code
        words[OPERATIONS] += 1
        try:
            try:
                alarm.armed = True
                return call(*args)
            finally:
                alarm.armed = False
        except Interrupted:
            return INTERRUPTED
        except TimeoutError:
            words[TIMEOUTS] += 1
            return TIMED_OUT
        except (EOFError, BrokenPipeError):
            return ENDED
        except OSError as error:
            if self.starved and error.errno in _NO_DESCRIPTORS:
                words[REFUSED] += 1
                return FAILED
            raise
        finally:
            words[CALL] = 0

    def fiddle(self, end: Any) -> None:
        """Turn one of the knobs."""
        plan = self.plan
        dice = self.random()
        if dice < 0.4:
            size = plan.size * self.chance.choice([1, 1, 2, 4]) // self.chance.choice([1, 2])
            call = shmpipe.F_SETPIPE_SZ, max(size, PAGE)
        elif dice < 0.7:
            call = shmpipe.F_SETPIPE_WRITE_SZ, PAGE * self.chance.randint(1, plan.size // PAGE)
        elif dice < 0.8 and plan.is_pipe:
            call = shmpipe.F_SETFL, os.O_NONBLOCK if self.random() < 0.3 else 0
        else:
            self.attempt(90, lambda: (end.stats(), shmpipe.ioctl(end, 0x541B), repr(end)))
            return
        if self.attempt(91, self._turn, end, *call) is True:
            self.words[RESIZES] += 1

    def _turn(self, end: Any, command: int, value: int) -> bool:
        try:
            shmpipe.fcntl(end, command, value)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            return False
        return True
