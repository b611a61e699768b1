"""Who this process is, in one word that no later process will share: its pid and its start time."""

from __future__ import annotations

import os

from .descriptors import Descriptor, owned

_TIME_BITS = 40


def _start_time(pid: int | str) -> int | None:
    """Clock ticks between boot and the start of a process; None: there is none, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _own_token() -> int:
    return os.getpid() << _TIME_BITS | ((_start_time("self") or 0) & ((1 << _TIME_BITS) - 1))


def is_alive(other: int) -> bool:
    """Whether the process that once had ``other`` for its token still runs (a zombie does not)."""
    pid, started = other >> _TIME_BITS, other & ((1 << _TIME_BITS) - 1)
    now = _start_time(pid)
    if now is None and _start_time("self") is None:  # no /proc: ask the kernel for the pid alone
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return now is not None and (not started or now & ((1 << _TIME_BITS) - 1) == started)


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
