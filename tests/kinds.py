"""One face over the kernel's pipe and ours.

Tests that take a `kind` run on a kernel pipe first, which proves the test itself, and then on
shmpipe's. ``make_pipe(kind, pages)`` and the context manager ``pipe_of`` give the two ends;
``fcntl``, ``unread``, ``set_nonblocking``, ``drain_slots`` work on the ends of either kind.
"""

from __future__ import annotations

import contextlib
import fcntl as kernel_fcntl
import io
import os
import termios
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import reduction
from typing import Any

import pytest

import shmpipe

from . import support
from .support import PAGE

# Not in the fast run: the kernel's turn, which proves the test and not the package, and threads,
# which go through the same code as processes.
KINDS = (pytest.param("kernel", marks=pytest.mark.slow), "shmpipe")
RUNNERS = (pytest.param("thread", marks=pytest.mark.slow), "child")
POLICIES = ("write-size", "page", "half", "edge-half", "full-edge")

# For tests that put something of their own in the place of an internal method.
pure_only = pytest.mark.skipif(
    shmpipe.engine == "native", reason="methods of compiled classes cannot be replaced"
)
both_kinds = pytest.mark.parametrize("kind", KINDS)
both_runners = pytest.mark.parametrize("how", RUNNERS)

# Longer than a sleeper of ours stays on its semaphore before it turns to its doorbell (20 ms), so
# that whoever did not run for this long is in its last and longest kind of sleep.
SETTLE = 0.03


class KernelEnd(io.FileIO):
    """An end of a kernel pipe which, like ours, can be an argument of a spawned process."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _attach, (reduction.DupFd(self.fileno()), self.mode)


def _attach(duplicate: Any, mode: str) -> KernelEnd:
    return KernelEnd(duplicate.detach(), mode)


def make_pipe(
    kind: str, pages: int = 16, *, nonblocking: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Both ends of a pipe of the kind; `options` are shmpipe's own."""
    flags = os.O_NONBLOCK if nonblocking else 0
    if kind == "kernel":
        assert not options
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | flags)
        reader, writer = KernelEnd(read_fd, "rb"), KernelEnd(write_fd, "wb")
        kernel_fcntl.fcntl(write_fd, kernel_fcntl.F_SETPIPE_SZ, pages * PAGE)
        return reader, writer
    return shmpipe.pipe(pages * PAGE, flags=flags, **options)


@contextlib.contextmanager
def pipe_of(
    kind: str, pages: int = 16, *, nonblocking: bool = False, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """`make_pipe` whose ends are closed at the end of the with block."""
    reader, writer = make_pipe(kind, pages, nonblocking=nonblocking, **options)
    with reader, writer:
        yield reader, writer


def is_kernel(end: Any) -> bool:
    return isinstance(end, io.FileIO)


def fcntl(end: Any, command: int, arg: int = 0) -> int:
    if is_kernel(end):
        return kernel_fcntl.fcntl(end.fileno(), command, arg)
    return shmpipe.fcntl(end, command, arg)


def unread(end: Any) -> int:
    """FIONREAD."""
    if is_kernel(end):
        return support.unread(end)
    return shmpipe.ioctl(end, termios.FIONREAD)


def resize(end: Any, pages: int) -> int:
    return fcntl(end, shmpipe.F_SETPIPE_SZ, pages * PAGE)


def set_nonblocking(end: Any, on: bool = True) -> None:
    fcntl(end, shmpipe.F_SETFL, os.O_NONBLOCK if on else 0)


def policy_options(policy: str, write_pages: int = 1) -> dict[str, Any]:
    """Options for `make_pipe`; without spinning, so that sleeps can be counted."""
    return {"wake": policy, "write_size": write_pages * PAGE, "spin": 0}


def page(number: int) -> bytes:
    """A page of one letter, a different one for each of 26 numbers."""
    return bytes([ord("A") + number % 26]) * PAGE


def fill(writer: Any, pages: int) -> bytes:
    """Write that many full pages, each of another letter; what was written."""
    for number in range(pages):
        assert writer.write(page(number)) == PAGE
    return b"".join(map(page, range(pages)))


def drain_slots(reader: Any) -> list[bytes]:
    """Read everything there is; what each page slot held.

    Ours shows its slots by the fall of `pages_used` when the last byte of one is read. Nobody may
    use the pipe meanwhile.
    """
    if is_kernel(reader):
        lengths = support.kernel_slots(reader)
        return [reader.read(length) for length in lengths]
    slots: list[bytes] = []
    slot = bytearray()
    used = reader.stats().pages_used
    while unread(reader):
        slot += reader.read(1)
        now = reader.stats().pages_used
        if now < used:
            slots.append(bytes(slot))
            slot.clear()
            used = now
    assert not slot
    return slots


def start(how: str, fn: Callable[..., Any], *args: Any, close: Iterable[Any] = ()) -> Any:
    """Run ``fn(*args)`` in a thread, or in a forked child which first closes `close`."""
    if how == "thread":
        return support.run_thread(fn, *args)
    return support.run_child(fn, *args, close=close)


def asleep(*runners: Any) -> None:
    """Wait until they all sleep at the same time; fails if one of them has ended instead."""
    support.wait_asleep(*[(runner.pid, runner.tasks()) for runner in runners], settle=SETTLE)
