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
    *tasks: tuple[int, list[int] | None], timeout: float = 10, settle: float = 0.05
) -> None:
    """Wait until processes sleep at the same time: all tasks of each, or only the ones given.

    And none may have run for `settle` seconds. "Did not run" is read from the count of context
    switches, so a task that wakes up now and then to look around is not asleep; all are looked at
    together, for one that waits for another's lock would seem asleep where only the other is looked
    at too. AssertionError when that does not come about, or one of the processes ended.
    """
    deadline = time.monotonic() + timeout
    before: list[dict[int, tuple[str, int]]] = []
    while True:
        now = [_snapshot(pid, tids) for pid, tids in tasks]
        for (pid, _), found in zip(tasks, now, strict=True):
            assert found and all(state not in "ZX" for state, _ in found.values()), (
                f"process {pid} ended instead of falling asleep: {found}"
            )
        states = {state for found in now for state, _ in found.values()}
        if now == before and states <= {"S"}:
            return
        assert time.monotonic() < deadline, f"not asleep: {tasks}: {before} then {now}"
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
