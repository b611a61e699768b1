"""Runs a writer and a reader as two processes and says what they cost.

Each is forked, runs a function or becomes another program, and is waited for with `os.wait4`, so
that what the kernel counted for it (context switches, CPU time) is its own. Nothing runs beside
them: the parent holds no end of what is measured and sleeps, but for a few progress messages.

A child has one pipe to its parent, which is its way to answer, to report progress and, by closing
when it ends, to say that it can be waited for. If one child fails, if nothing has moved for a
while, or if the parent is interrupted, both are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

PROGRESS_SECONDS = 0.2  # between two progress messages
STALL_SECONDS = 60.0  # without progress, after which a run is given up
HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Report = Callable[[int], None]


class Closable(Protocol):
    """An end of a pipe, of whichever kind."""

    def close(self) -> None: ...


class ChildFailed(RuntimeError):
    """A child raised an exception, ended badly or got stuck; the message says which and why."""


@dataclass(frozen=True)
class Usage:
    """What one process cost, as the kernel counted it."""

    user_seconds: float
    system_seconds: float
    voluntary: int
    """Context switches because the process waited for something."""
    involuntary: int
    """Context switches because something else was to run."""

    @classmethod
    def of(cls, used: resource.struct_rusage) -> Usage:
        return cls(used.ru_utime, used.ru_stime, used.ru_nvcsw, used.ru_nivcsw)

    @property
    def switches(self) -> int:
        return self.voluntary + self.involuntary

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


class BothSides:
    """What a run cost its writer and its reader together."""

    writer: Usage
    reader: Usage

    @property
    def switches(self) -> int:
        """Context switches of both processes, of both kinds."""
        return self.writer.switches + self.reader.switches

    @property
    def cpu_seconds(self) -> float:
        """CPU time of both processes."""
        return self.writer.cpu_seconds + self.reader.cpu_seconds


@dataclass(frozen=True)
class Outcome:
    """What a pair of processes did: how long it took, what each cost, and the reader's answer."""

    seconds: float
    writer: Usage
    reader: Usage
    answer: Any


def two_cpus() -> tuple[int, int] | None:
    """A CPU for each side, of different cores if possible; None where there is only one."""
    first, *others = sorted(os.sched_getaffinity(0))
    try:
        with open(f"/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list") as file:
            siblings = set(map(int, re.findall(r"\d+", file.read())))
    except OSError:
        siblings = set()
    apart = [cpu for cpu in others if cpu not in siblings] or others
    return (first, apart[0]) if apart else None


class Channel:
    """The child's side of the pipe to its parent: lines of JSON."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._next = time.monotonic() + PROGRESS_SECONDS

    def progress(self, amount: int) -> None:
        """To be called as often as one likes; reports now and then."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            self.send(progress=amount)

    def send(self, **message: Any) -> None:
        os.write(self.fd, json.dumps(message).encode() + b"\n")


Task = Callable[[Channel], Any]


def program(*command: str, stdin: int = -1, stdout: int = -1) -> Task:
    """A task that becomes another program, with these fds as its input and output.

    Without `stdout`, the last line that the program prints is its answer.
    """

    def run(channel: Channel) -> None:
        # dup2 alone does not do it where there is nothing to duplicate, because we were started
        # without an fd 0. The channel's closing says that the program has ended.
        wanted = {1: stdout if stdout >= 0 else channel.fd, channel.fd: channel.fd}
        if stdin >= 0:
            wanted[0] = stdin
        for fd, source in wanted.items():
            os.dup2(source, fd)
            os.set_inheritable(fd, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(command[0], command, {**os.environ, "LC_ALL": "C"})

    return run


def bytes_read_by(pid: int) -> int | None:
    """What a process has read so far through system calls, if this kernel says so."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.readline().split()[1])
    except (OSError, IndexError, ValueError):
        return None


class _Child:
    """The parent's view of a child process. To be made with signals held back."""

    def __init__(self, role: str, task: Task, cpu: int | None, mask: Iterable[int]) -> None:
        self.role = role
        self.messages: dict[str, Any] = {}
        self.usage: Usage | None = None
        self.failure = ""
        self._killed = False
        self._pending = b""
        self.fd, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(task, Channel(theirs), cpu, mask)
        os.close(theirs)

    def listen(self) -> None:
        """Take in what the child has sent; when it has ended, wait for it."""
        received = os.read(self.fd, 65536)
        *lines, self._pending = (self._pending + received).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self.messages.update(json.loads(line))
            else:
                self.messages["answer"] = line.decode()
        if not received:
            self._wait()

    def _wait(self) -> None:
        _, status, used = os.wait4(self.pid, 0)
        self.usage = Usage.of(used)
        os.close(self.fd)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or (code == -signal.SIGKILL and self._killed):
            return
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self.failure = f"the {self.role} {ending}\n{self.messages.get('error', '')}".rstrip()

    def kill(self) -> None:
        """End the child if it has not ended, and wait for it."""
        if self.usage is None:
            # One that was dead already has died of something else.
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            self._killed = os.waitid(os.P_PID, self.pid, ended) is None
            os.kill(self.pid, signal.SIGKILL)
        while self.usage is None:
            self.listen()


def _run_child(task: Task, channel: Channel, cpu: int | None, mask: Iterable[int]) -> NoReturn:
    """The whole life of a forked child."""
    status = 1
    try:
        for number in HELD_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        channel.send(answer=task(channel))
        status = 0
    except BaseException:
        channel.send(error=traceback.format_exc())
    finally:
        os._exit(status)


@contextlib.contextmanager
def _signals_held() -> Iterator[Iterable[int]]:
    """No signal strikes between a fork and the moment the child is known; yields the old mask."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def run_pair(
    writer: Task,
    reader: Task,
    *,
    ends: Sequence[Closable],
    cpus: tuple[int, int] | None = None,
    progress: Report = lambda amount: None,
    probe: Callable[[int], int | None] | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Outcome:
    """Run both tasks, each in a process of its own, until both have ended.

    A task has inherited the `ends`, so it has to close those that are not its own; the parent
    closes all. With `cpus`, each process stays on its one of the two. `progress` is called in the
    parent, with what the reader reported through its channel or, if there is a `probe`, with what
    ``probe(pid)`` found out about it from outside.
    """
    children: list[_Child] = []
    start = time.perf_counter()
    try:
        with _signals_held() as mask:
            children.append(_Child("writer", writer, cpus[0] if cpus else None, mask))
            children.append(_Child("reader", reader, cpus[1] if cpus else None, mask))
        for end in ends:
            end.close()
        _supervise(children, progress, probe, stall_seconds)
        seconds = time.perf_counter() - start
    finally:
        for child in children:
            child.kill()
        for end in ends:
            end.close()
    # One that failed makes the other fail too, and may be noticed second.
    failures = [child.failure for child in children if child.failure]
    if failures:
        raise ChildFailed("\n".join(failures))
    used = [child.usage for child in children if child.usage]
    return Outcome(seconds, used[0], used[1], children[1].messages.get("answer"))


def _supervise(
    children: Sequence[_Child],
    progress: Report,
    probe: Callable[[int], int | None] | None,
    stall_seconds: float,
) -> None:
    """Returns once all children have ended, or one has failed."""
    reader = children[-1]
    seen: tuple[int | None, int] = (0, 0)
    deadline = time.monotonic() + stall_seconds
    poll = select.poll()
    by_fd = {child.fd: child for child in children}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    while by_fd:
        for fd, _ in poll.poll(PROGRESS_SECONDS * 1000):
            child = by_fd[fd]
            child.listen()
            if child.failure:
                return
            if child.usage:
                poll.unregister(fd)
                del by_fd[fd]
        amount = reader.messages.get("progress", 0)
        if probe and not reader.usage:
            amount = probe(reader.pid)
        if amount is None or (amount, len(by_fd)) != seen:
            seen = amount, len(by_fd)
            deadline = time.monotonic() + stall_seconds
            progress(amount or 0)
        elif time.monotonic() > deadline:
            left = " and the ".join(child.role for child in by_fd.values())
            raise ChildFailed(f"nothing has moved for {stall_seconds:g} s; the {left} still ran")
