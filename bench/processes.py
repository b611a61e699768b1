"""Processes for one measurement: forked, started together, timed, never left behind.

A *member* sets itself up, says so, and waits for the start. So those that must be there first (a
socket that is bound, a subscriber) are simply forked first. When all have finished they are let go
together, because with some peers the messages under way are lost with their sender.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import resource
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PR_SET_PDEATHSIG = 1
STOPPING = {signal.SIGINT, signal.SIGTERM}
_libc = ctypes.CDLL(None, use_errno=True)


class MemberFailed(Exception):
    """A process of a measurement raised, died or took too long."""


@dataclass(frozen=True)
class Usage:
    """What the processes of a measurement used from the start to their end, as wait4 tells it."""

    cpu: float = 0.0
    switches: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu + other.cpu, self.switches + other.switches)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.cpu - other.cpu, self.switches - other.switches)

    @staticmethod
    def of(rusage: resource.struct_rusage) -> Usage:
        return Usage(rusage.ru_utime + rusage.ru_stime, rusage.ru_nvcsw + rusage.ru_nivcsw)


class Post:
    """A member's line to the process that measures."""

    def __init__(self, up: int, down: int) -> None:
        self._up = up
        self._down = down
        self._used = Usage()
        self._leaving: list[Callable[[], None]] = []

    def ready(self) -> None:
        """This member is set up: the next one may be forked."""
        os.write(self._up, b"r")

    def start(self) -> None:
        """Wait until all members are here.  What was used up to now does not count."""
        os.write(self._up, b"s")
        os.read(self._down, 1)
        self._used = Usage.of(resource.getrusage(resource.RUSAGE_SELF))

    def on_leave(self, function: Callable[[], None]) -> None:
        """Call it when all members have finished; for what must not be left behind."""
        self._leaving.append(function)

    def finish(self, kind: bytes, result: Any) -> None:
        data = kind + pickle.dumps((self._used, result))
        while data:
            data = data[os.write(self._up, data) :]
        os.close(self._up)
        os.read(self._down, 1)
        for function in self._leaving:
            function()


@dataclass
class _Member:
    pid: int
    up: int
    down: int
    received: bytearray
    ended: bool = False
    reaped: bool = False


class Crew:
    """The processes of one measurement, under one time limit."""

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._members: list[_Member] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        for member in self._members:
            if not member.reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
                os.waitpid(member.pid, 0)
            os.close(member.up)
            os.close(member.down)

    def fork(self, function: Callable[..., Any], *args: Any) -> None:
        """Run ``function(post, *args)`` in a new process; returns when that calls ``ready()``."""
        up_read, up_write = os.pipe()
        down_read, down_write = os.pipe()
        parent = os.getpid()
        # A Ctrl-C must not be taken by the child while it still is a copy of this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(up_read)
                os.close(down_write)
                _child(parent, Post(up_write, down_read), function, args)
            self._members.append(_Member(pid, up_read, down_write, bytearray()))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        member = self._members[-1]
        os.close(up_write)
        os.close(down_read)
        self._expect(member, b"r")

    def run(self) -> tuple[list[Any], Usage]:
        """Start all and wait for them: what each returned, and what all used together."""
        for member in self._members:
            self._expect(member, b"s")
        for member in self._members:
            os.write(member.down, b"g")
        waiting = list(self._members)
        while waiting:
            self._receive(waiting)
            for member in waiting:
                if member.ended and member.received[:1] != b"o":
                    self._fail(member)
            waiting = [member for member in waiting if not member.ended]
        for member in self._members:
            os.write(member.down, b"b")
        results, usage = [], Usage()
        for member in self._members:
            before, result = pickle.loads(memoryview(member.received)[1:])
            usage += self._reap(member) - before
            results.append(result)
        return results, usage

    def _expect(self, member: _Member, word: bytes) -> None:
        while not member.received:
            self._receive([member])
        if member.received[:1] != word:
            self._fail(member)
        del member.received[:1]

    def _receive(self, members: list[_Member]) -> None:
        left = self._deadline - time.monotonic()
        ready, _, _ = select.select([member.up for member in members], [], [], max(0.0, left))
        if not ready:
            raise MemberFailed(f"not done after {self._timeout:g} s")
        for member in members:
            if member.up in ready:
                data = os.read(member.up, 1 << 20)
                member.received += data
                member.ended = not data
                if member.ended and not member.received:
                    self._fail(member)

    def _reap(self, member: _Member) -> Usage:
        pause = 0.0005
        while True:
            pid, status, rusage = os.wait4(member.pid, os.WNOHANG)
            if pid:
                member.reaped = True
                if status:
                    raise MemberFailed(f"ended with {_status(status)}")
                return Usage.of(rusage)
            if time.monotonic() > self._deadline:
                raise MemberFailed("finished, but does not end")
            time.sleep(pause)

    def _fail(self, member: _Member) -> None:
        while not member.ended and member.received[:1] == b"e":
            self._receive([member])
        if member.received[:1] == b"e":
            raise MemberFailed(pickle.loads(memoryview(member.received)[1:])[1])
        if not member.ended:
            os.kill(member.pid, signal.SIGKILL)
        _, status = os.waitpid(member.pid, 0)
        member.reaped = True
        raise MemberFailed(f"ended with {_status(status)}")


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _child(parent: int, post: Post, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        # Killed with the measuring process, however that ends; Ctrl-C is that one's business.
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        gc.freeze()  # A collection must not copy the pages that are shared with the parent.
        try:
            result = function(post, *args)
        except BaseException:
            post.finish(b"e", traceback.format_exc())
            os._exit(0)
        post.finish(b"o", result)
        os._exit(0)
    finally:
        os._exit(2)


def run_program(
    arguments: list[str], environment: dict[str, str], timeout: float
) -> tuple[str, Usage]:
    """Run a program to its end: what it printed, and what it used."""
    deadline = time.monotonic() + timeout
    process = subprocess.Popen(
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        output = b""
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise MemberFailed(f"not done after {timeout:g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            output += data
        # It has closed its output, so it is about to end.
        _, status, rusage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise MemberFailed(f"ended with {_status(status)}")
        return output.decode(), Usage.of(rusage)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        process.stdout.close()
