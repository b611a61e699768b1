"""Pipes to try the runner with: one that is as good as the standard one, and some that are not."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from multiprocessing import connection, reduction
from typing import Any


class Good(connection.Connection):
    """The standard connection under another type, which brings its own way of being pickled."""

    def __reduce__(self) -> Any:
        return _rebuild, (
            type(self),
            reduction.DupFd(self.fileno()),
            self.readable,
            self.writable,
        )


def _rebuild(kind: Any, fd: Any, readable: bool, writable: bool) -> Any:
    return kind(fd.detach(), readable, writable)


class Deaf(Good):
    """Never sees that something has come."""

    def poll(self, timeout: float | None = 0.0) -> bool:
        super().poll(timeout)
        return False


_standard_pipe = connection.Pipe
_kept: list[Any] = []


def _pipe_of(kind: Any, duplex: bool) -> tuple[Any, Any]:
    ends = _standard_pipe(duplex)
    made = []
    for end in ends:
        made.append(kind(os.dup(end.fileno()), end.readable, end.writable))
        end.close()
    return made[0], made[1]


def good(duplex: bool = True) -> tuple[Any, Any]:
    return _pipe_of(Good, duplex)


def deaf(duplex: bool = True) -> tuple[Any, Any]:
    return _pipe_of(Deaf, duplex)


def endless(duplex: bool = True) -> tuple[Any, Any]:
    """End-of-file never comes: a copy of the second end stays open."""
    first, second = _pipe_of(Good, duplex)
    _kept.append(Good(os.dup(second.fileno()), second.readable, second.writable))
    return first, second


def deadly(duplex: bool = True) -> tuple[Any, Any]:
    """Takes the process down."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def brittle(duplex: bool = True) -> tuple[Any, Any]:
    """Takes the process down when the process is about to end."""
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    return good(duplex)


def loud(duplex: bool = True) -> tuple[Any, Any]:
    """Writes to stderr."""
    print("a pipe is made", file=sys.stderr)
    return good(duplex)


def littering(duplex: bool = True) -> tuple[Any, Any]:
    """Leaves a process behind."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process.returncode = 0  # Keeps Popen from warning that it is still running.
    return good(duplex)
