"""Starts driver.py, watches it, and reads what it reports."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..children import register_pid

DRIVER = Path(__file__).with_name("driver.py")
# Between two tests a class is set up or a manager process is shut down.
BETWEEN = 60.0
STACKS = "---- stacks of process"


@dataclass
class Outcome:
    """What became of one test."""

    name: str
    outcome: str  # "passed", "failed", "skipped", "hung" or "crashed"
    detail: str = ""
    seconds: float = 0.0
    pipes: int = 0  # made by the test's own process

    def __str__(self) -> str:
        return f"{self.outcome}: {self.name}\n{self.detail}".rstrip()


@dataclass
class Report:
    """What became of a run."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)  # errors in fixtures
    # The test package's own mark: threads or processes were still there at the end of a class.
    altered: bool = False
    left: list[str] = field(default_factory=list)  # processes that outlived the run
    output: str = ""

    def named(self, *kinds: str) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome.outcome in kinds}

    @property
    def pipes(self) -> int:
        return sum(outcome.pipes for outcome in self.outcomes.values())


def installed() -> bool:
    """Whether this interpreter comes with its tests; a distribution's often does not."""
    return importlib.util.find_spec("test._test_multiprocessing") is not None


def available(method: str) -> list[str]:
    """The names of all tests that this interpreter has for a start method."""
    with tempfile.TemporaryDirectory(prefix="shmpipe-cpython-") as directory:
        run = _Run(Path(directory), method, "stdlib", ())
        run.watch(BETWEEN, grace=10)
        assert run.tests is not None, run.output()
        return run.tests


def select(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Those of the names that match one of the patterns, in the order of the patterns."""
    names = list(names)
    found: dict[str, None] = {}
    for pattern in patterns:
        found.update(dict.fromkeys(fnmatch.filter(names, pattern)))
    return list(found)


def run_tests(
    method: str,
    pipe: str,
    names: Sequence[str],
    *,
    limit: float = 120.0,
    grace: float = 10.0,
    jobs: int = 1,
) -> Report:
    """Run the tests of these names, divided by classes among `jobs` processes.

    `limit` is for how many seconds one test may run, `grace` for how many the processes that the
    run leaves behind have time to end.
    """
    classes = list(dict.fromkeys(name.partition(".")[0] for name in names))
    shares = [
        [name for name in names if name.partition(".")[0] in classes[job::jobs]]
        for job in range(min(jobs, len(classes)))
    ]
    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        reports = list(
            pool.map(lambda share: _run_share(method, pipe, share, limit, grace), shares)
        )
    report = Report()
    for part in reports:
        report.outcomes.update(part.outcomes)
        report.outside += part.outside
        report.altered |= part.altered
        report.left += part.left
        report.output += part.output
    return report


def _run_share(method: str, pipe: str, names: Sequence[str], limit: float, grace: float) -> Report:
    report = Report()
    remaining = list(names)
    while remaining:
        with tempfile.TemporaryDirectory(prefix="shmpipe-cpython-") as directory:
            run = _Run(Path(directory), method, pipe, remaining)
            run.watch(limit, grace)
            report.outcomes.update(run.outcomes)
            report.outside += run.outside
            report.altered |= run.altered
            report.left += run.left
            report.output += run.output()
        # After a test that hung or crashed the others get a process of their own.
        remaining = [name for name in remaining if name not in run.outcomes]
        if not run.outcomes:
            report.outside.append("the process that runs the tests ended before the first of them")
            break
    return report


class _Run:
    """One process that runs tests."""

    def __init__(self, directory: Path, method: str, pipe: str, names: Sequence[str]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.outside: list[str] = []
        self.altered = False
        self.finished = False
        self.left: list[str] = []
        self.tests: list[str] | None = None
        self.current: str | None = None
        self.since = time.monotonic()
        self._read = 0
        self._report = directory / "report"
        self._report.touch()
        self._output = directory / "output"
        stdin = directory / "names"
        stdin.write_text("\n".join(names))
        # The tests put files into the current directory.
        work = directory / "work"
        work.mkdir()
        with open(stdin) as names_file, open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER)],
                cwd=work,
                env={
                    **os.environ,
                    "SHMPIPE_CPYTHON_METHOD": method,
                    "SHMPIPE_CPYTHON_PIPE": pipe,
                    "SHMPIPE_CPYTHON_REPORT": str(self._report),
                    "TMPDIR": str(work),
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdin=names_file,
                stdout=output,
                stderr=output,
                # All processes of the run can be found, and ended, by their session.
                start_new_session=True,
            )
        register_pid(self.process.pid)

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def watch(self, limit: float, grace: float) -> None:
        try:
            while self.process.poll() is None:
                self._take_report()
                allowed = BETWEEN if self.current is None else limit
                if time.monotonic() > self.since + allowed:
                    self._dump_stacks()
                    self._end("hung", f"not over after {allowed:g} s")
                    return
                time.sleep(0.05)
            self._take_report()
            ended = f"the process ended with status {self.process.returncode}"
            if self.tests is None and not self.finished:
                self._end("crashed", ended)
            else:
                if self.process.returncode:  # What it shuts down last can fail as well.
                    self.outside.append(f"{ended}, after its last test\n{self.output()[-8000:]}")
                self._wait_for_others(grace)
        finally:
            self._kill()

    def _take_report(self) -> None:
        with open(self._report) as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        self.since = time.monotonic()
        if "began" in event:
            self.current = event["began"]
        elif "test" in event:
            self.current = None
            outcome = Outcome(event.pop("test"), **event)
            self.outcomes[outcome.name] = outcome
        elif "outside" in event:
            self.outside.append(f"{event['outside']}\n{event['detail']}")
        elif "finished" in event:
            self.finished, self.altered = True, event["altered"]
        elif "tests" in event:
            self.tests = event["tests"]

    def _end(self, outcome: str, detail: str) -> None:
        self._take_report()
        output = self.output()
        stacks = output.find(STACKS)
        detail += "\n" + (output[-8000:] if stacks < 0 else output[stacks:])
        if self.current is not None:
            self.outcomes[self.current] = Outcome(self.current, outcome, detail)
        else:
            self.outside.append(f"{outcome} between the tests: {detail}")

    def _members(self) -> list[int]:
        """The living processes of the run's session."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    stat = Path(f"/proc/{name}/stat").read_bytes()
                    state, _, _, session = stat.rpartition(b")")[2].split()[:4]
                    if int(session) == self.process.pid and state not in b"ZX":
                        found.append(int(name))
        return found

    def _wait_for_others(self, grace: float) -> None:
        """Give the resource tracker, the fork server and their kind time to see the end."""
        deadline = time.monotonic() + grace
        while (members := self._members()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in members:
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                self.left.append(f"{pid}: {command.decode(errors='replace')[:200]}")

    def _dump_stacks(self) -> None:
        for pid in self._members():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                caught = int(status.partition("SigCgt:")[2].split()[0], 16)
                # A process without a handler would die of the signal and say nothing.
                if caught >> (signal.SIGUSR2 - 1) & 1:
                    with open(self._output, "a") as output:
                        output.write(f"\n{STACKS} {pid} ----\n")
                    os.kill(pid, signal.SIGUSR2)
                    time.sleep(0.3)

    def _kill(self) -> None:
        """End whatever is left of the run."""
        # The resource tracker last, and by itself: it removes the names of semaphores.
        for spared in (b"resource_tracker", None):
            deadline = time.monotonic() + 2
            while (members := self._members()) and time.monotonic() < deadline:
                for pid in members:
                    with contextlib.suppress(OSError):
                        command = Path(f"/proc/{pid}/cmdline").read_bytes()
                        if spared is None or spared not in command:
                            os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
        self.process.wait(30)
