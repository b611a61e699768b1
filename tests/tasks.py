"""What other processes and threads are doing, as /proc tells; part of `support`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any


def task_state(pid: int, tid: int) -> tuple[str, float] | None:
    """(state letter, CPU seconds) of a task, None when it is gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    ticks = int(fields[11]) + int(fields[12])
    return fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK")


def _switches(pid: int, tid: int) -> int:
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb") as file:
            return sum(int(line.split()[1]) for line in file if b"ctxt_switches" in line)
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _snapshot(pid: int, tids: Iterable[int] | None) -> dict[int, tuple[str, int]]:
    if tids is None:
        try:
            tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        except (FileNotFoundError, ProcessLookupError):
            return {}
    found = {}
    for tid in tids:
        stat = task_state(pid, tid)
        if stat is not None:
            found[tid] = (stat[0], _switches(pid, tid))
    return found


def wait_asleep(
    pid: int, tids: Iterable[int] | None = None, *, timeout: float = 10, settle: float = 0.05
) -> None:
    """Wait until all tasks of `pid` (or only `tids`) sleep and none ran for `settle` seconds.

    "Did not run" is read from the count of context switches, so a task that wakes up now and then
    to look around is not asleep. AssertionError when that does not come about, or the task ended.
    """
    tids = None if tids is None else list(tids)
    deadline = time.monotonic() + timeout
    before: dict[int, tuple[str, int]] = {}
    while True:
        now = _snapshot(pid, tids)
        assert now and all(state not in "ZX" for state, _ in now.values()), (
            f"process {pid} ended instead of falling asleep: {now}"
        )
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        assert time.monotonic() < deadline, f"tasks of {pid} do not sleep: {before} then {now}"
        before = now
        time.sleep(settle)


def cpu_seconds(pid: int) -> float:
    """User plus system time of a whole process so far, to the clock tick."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def context_switches(pid: int) -> int:
    """Voluntary and involuntary context switches of all threads of a process so far."""
    return sum(count for _, count in _snapshot(pid, None).values())


def eventually(predicate: Callable[[], Any], timeout: float = 5, what: str = "") -> Any:
    """Call `predicate` until it returns something true; return that."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what or predicate}")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
