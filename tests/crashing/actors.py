"""The processes of a walk: forked, each with its own ends, a log that outlives it, and an aim.

What the coordinator has no end of it cannot keep open: after the fork it closes all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import mmap
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from shmpipe import _steps  # type: ignore[attr-defined]

BEYOND = 0.5  # seconds that a call may take beyond its own timeout
MARGIN = float(os.environ.get("SHMPIPE_TEST_TIMEOUT_FACTOR", "1"))
LATE = BEYOND + MARGIN  # others may be kept from running, too, while they hold what it needs
# Seconds after which a run that has not come to an end counts as hanging.
STUCK = float(os.environ.get("SHMPIPE_CRASH_STUCK", 20 * MARGIN))
KILL, STOP_AND_KILL, STOP, AT_ANY_TIME = "kill", "stop-kill", "stop", "any-time"


@dataclasses.dataclass(frozen=True)
class Aim:
    """What happens to a process: at which arrival at which step it stops or dies."""

    step: str | None = None
    arrival: int = 1
    action: str = KILL
    seconds: float = 0.05  # that it stays stopped, or lives

    @property
    def signal(self) -> int:
        return signal.SIGKILL if self.action == KILL else signal.SIGSTOP


class Hand:
    """What a process has to play its part with."""

    def __init__(
        self, ends: dict[str, Any], log: int, ended: Any, who: int, chance: random.Random
    ) -> None:
        self.ends = ends
        self.who = who  # among those of its side
        self.chance = chance
        self.timeout: float | None = None  # of its calls, where they have one
        self.jitter = 0.0  # seconds that it waits now and then, at most
        self._log = log
        self._ended = ended
        self._taken = 0  # of what it has written: the next number

    def log(self, kind: str, *values: Any) -> None:
        os.write(self._log, json.dumps([kind, *values]).encode() + b"\n")

    def take_numbers(self, count: int = 1) -> int:
        first = self._taken
        self._taken += count
        return first

    def wait_until_ended(self, part: int) -> None:
        """Until the process that plays that part is dead, or through."""
        while not self._ended[part]:
            time.sleep(0.001)

    def pause(self, seconds: float = 0.0) -> None:
        """Sleep, and now and then a random moment longer."""
        if self.jitter and self.chance.random() < 0.3:
            seconds += self.chance.random() * self.jitter
        if seconds:
            time.sleep(seconds)

    def timed(self, call: Callable[..., Any], *args: Any, timeout: float | None = -1) -> Any:
        """The call, with a timeout, which is not to be exceeded."""
        limit = self.timeout if timeout == -1 else timeout
        begin = time.monotonic() - queued()
        try:
            return call(*args, timeout=limit)
        finally:
            if limit is not None:
                late = time.monotonic() - queued() - begin - limit
                if late > 0.005:
                    self.log("late", round(late, 4), getattr(call, "__name__", "?"))

    def insist(self, call: Callable[..., Any], *args: Any) -> Any:
        """A call that waits a little for who stands still, and then fails: until it does not."""
        while True:
            try:
                return call(*args)
            except TimeoutError:
                self.log("insists")

    def close_all(self) -> None:
        for end in self.ends.values():
            end.close()
        self.ends.clear()


def queued() -> float:
    """Seconds that this thread has waited for a CPU so far: nobody's fault but the machine's."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:  # a kernel that does not count
        return 0.0


class Process:
    """One process of a run, as the coordinator sees it."""

    def __init__(self, number: int, name: str, aim: Aim) -> None:
        self.number, self.name, self.aim = number, name, aim
        self.board = _steps.Board()
        self.pid = 0
        self.ended = self.killed = False
        self.entries: list[Any] = []
        self._log = -1
        self._rest = b""
        self._stopped_at: float | None = None
        self._born = time.monotonic()

    def start(self, act: Callable[[int], None]) -> None:
        self._log, writing = os.pipe()
        os.set_blocking(self._log, False)
        self.pid = os.fork()
        if not self.pid:
            try:
                act(writing)
            except BaseException:
                text = json.dumps(["error", traceback.format_exc()[-3000:]])
                os.write(writing, text.encode() + b"\n")
            finally:
                os._exit(0)
        os.close(writing)

    def log_of(self, kind: str) -> list[Any]:
        return [entry[1:] for entry in self.entries if entry[0] == kind]

    def look(self) -> None:
        """What has become of it; stops and kills from outside are done here."""
        self._read()
        if self.ended:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        now = time.monotonic()
        if pid and os.WIFSTOPPED(status):
            self._stopped_at = now
        elif pid:
            self._read()  # all that there will be
            self.ended = True
            self.killed = os.WIFSIGNALED(status)
            os.close(self._log)
            return
        if self._stopped_at is not None and now - self._stopped_at > self.aim.seconds:
            self._stopped_at = None
            os.kill(self.pid, signal.SIGCONT if self.aim.action == STOP else signal.SIGKILL)
        if self.aim.action == AT_ANY_TIME and now - self._born > self.aim.seconds:
            os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        if self.ended:
            return
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._log, 1 << 16):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        self.entries += map(json.loads, lines)

    def finish(self) -> None:
        """End it, whatever it does."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._read()
            self.ended = self.killed = True
            os.close(self._log)


class Stuck(Exception):
    """Somebody who is left does not come to an end."""


Stage = tuple[Callable[[Hand], None], dict[str, Any], int]  # a play, its ends, who of them


class Run:
    """One performance of a walk."""

    def __init__(self, seed: str, jitter: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.jitter = jitter
        self.timeout = self.chance.choice((None, 0.1, 0.015))
        self.processes: list[Process] = []
        self.died_at = 0.0  # when the first of them was killed
        self.outlived = 0.0  # seconds that the others needed from then on
        self._flags = mmap.mmap(-1, mmap.PAGESIZE)
        self._stages: list[Stage] = []

    def add(
        self,
        name: str,
        play: Callable[[Hand], None],
        ends: dict[str, Any],
        who: int = 0,
        aim: Aim | None = None,
    ) -> Process:
        """A process that plays ``play`` with these ends, and has no others."""
        process = Process(len(self.processes), name, aim or Aim())
        self.processes.append(process)
        self._stages.append((play, ends, who))
        return process

    def perform(self, all_ends: list[Any]) -> None:
        """All processes run to their ends.  Stuck: one does not."""
        for process, stage in zip(self.processes, self._stages, strict=True):
            process.start(functools.partial(self._act, process, stage, all_ends))
        self._stages.clear()
        for end in all_ends:
            end.close()
        all_ends.clear()
        limit = time.monotonic() + STUCK
        try:
            while not all(process.ended for process in self.processes):
                if time.monotonic() > limit:
                    raise Stuck(", ".join(p.name for p in self.processes if not p.ended))
                time.sleep(0.001)
                for process in self.processes:
                    process.look()
                    self._flags[process.number] = process.ended
                    if process.killed and not self.died_at:
                        self.died_at = time.monotonic()
            if self.died_at:
                self.outlived = time.monotonic() - self.died_at
        except Stuck:
            for process in self.processes:
                if not process.ended:
                    os.kill(process.pid, signal.SIGCONT)
                    os.kill(process.pid, signal.SIGUSR1)  # which prints where it is
                    time.sleep(0.2)
            raise
        finally:
            for process in self.processes:
                process.finish()

    def _act(self, process: Process, stage: Stage, all_ends: list[Any], log: int) -> None:
        """The whole life of a process."""
        play, ends, who = stage
        kept = list(ends.values())
        for end in all_ends:
            if not any(end is one for one in kept):
                end.close()
        all_ends.clear()
        hand = Hand(dict(ends), log, self._flags, who, random.Random(f"{self.seed}/{process.name}"))
        hand.timeout, hand.jitter = self.timeout, self.jitter
        ends.clear()
        kept.clear()
        end = None
        gc.collect()
        if process.aim.action == AT_ANY_TIME:
            _steps.watch(process.board, None, 0, 0)
        else:
            _steps.watch(process.board, process.aim.step, process.aim.arrival, process.aim.signal)
        play(hand)
        hand.close_all()
        hand.log("end")
