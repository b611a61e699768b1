"""Who this process is, in one word that no later process will share: its pid and its start time."""

from __future__ import annotations

import os

from .descriptors import Descriptor, owned

_TIME_BITS = 40


def _start_time(pid: int | str) -> int | None:
    """Clock ticks between boot and the start of a process; None: there is none, or a zombie.

    OSError: there are no descriptors left to look with.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, NotADirectoryError, PermissionError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _own_token() -> int:
    try:
        started = _start_time("self") or 0
    except OSError:
        started = 0  # unknown
    return os.getpid() << _TIME_BITS | (started & ((1 << _TIME_BITS) - 1))


def is_alive(other: int) -> bool:
    """Whether the process that once had ``other`` for its token still runs (a zombie does not)."""
    pid, started = other >> _TIME_BITS, other & ((1 << _TIME_BITS) - 1)
    try:
        now = _start_time(pid)
        if now is None and _start_time("self") is None:  # no /proc
            return _exists(pid)
    except OSError:  # not that it is gone: another thread may have had the last descriptor
        return _exists(pid)
    return now is not None and (not started or now & ((1 << _TIME_BITS) - 1) == started)


def _exists(pid: int) -> bool:
    """Ask the kernel for the pid alone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def watch(other: int) -> Descriptor | None:
    """What becomes readable when a process ends; None: it has, or is this one."""
    if other == token:
        return None
    try:
        process = owned(os.pidfd_open, other >> _TIME_BITS)
    except ProcessLookupError:
        return None
    return process if is_alive(other) else None  # somebody else may have its number by now


token = _own_token()
"""This process, never 0."""


def _after_fork() -> None:
    global token
    token = _own_token()


os.register_at_fork(after_in_child=_after_fork)
