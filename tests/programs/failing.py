"""Walks through what makes and adopts ends, with one system call after the other failing.

Run with `failing.c` loaded in front of the C library.  Prints, as JSON, for each case the calls
that were made to fail.  An AssertionError is a broken promise.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import shmpipe
from shmpipe.connection import _rebuild as rebuild_connection
from shmpipe.pipe import _rebuild as rebuild_pipe

shim = ctypes.CDLL(None)
shim.failing_arm.argtypes = [ctypes.c_long, ctypes.c_int]
shim.failing_disarm.restype = ctypes.c_char_p


class Handed:
    """A descriptor on its way here, as multiprocessing hands it over."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)

    def detach(self) -> int:
        return self.fd


def holdings() -> tuple[list[str], list[str]]:
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = sorted(line.split()[-1] for line in maps if "memfd:" in line)
    return sorted(os.listdir("/proc/self/fd")), mapped


def adopt_connection(ends: Any, fork: bool) -> Callable[[], Any]:
    end = ends[0]
    memory, sock = end._segment.memory.fileno(), end._bell.writer_fd()
    handed = Handed(memory), Handed(sock)
    if fork:
        forget(end)
    return lambda: rebuild_connection(*handed, 0, 1, True, True, None)


def adopt_pipe(ends: Any) -> Callable[[], Any]:
    end = ends[0]
    handed = Handed(end._side.ring.segment.memory.fileno()), Handed(end._side.bell.writer_fd())
    return lambda: rebuild_pipe(type(end), *handed, 16, None)


def forget(end: Any) -> None:
    """As in a process that does not have the segment yet."""
    segment = sys.modules["shmpipe.segment"]
    segment._segments.discard(end._segment.key)  # type: ignore[attr-defined]


def receive_in_place(ends: Any) -> Callable[[], Any]:
    ends[1].send_bytes(b"x" * 100)

    def act() -> None:
        with ends[0].recv_view() as view:
            assert view == b"x" * 100

    return act


def hand_over_both(ends: Any) -> Callable[[], Any]:
    return lambda: [end._segment.lend(end) for end in ends]


def first_use(ends: Any) -> Callable[[], Any]:
    return lambda: ends[1].send_bytes(b"first")


CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Callable[[], Any]]]] = {
    "Pipe": (tuple, lambda _: shmpipe.Pipe),
    "one-way Pipe": (tuple, lambda _: lambda: shmpipe.Pipe(False)),
    "pipe": (tuple, lambda _: shmpipe.pipe),
    "adopted connection": (shmpipe.Pipe, lambda ends: adopt_connection(ends, False)),
    "adopted connection, new here": (shmpipe.Pipe, lambda ends: adopt_connection(ends, True)),
    "adopted end of a pipe": (shmpipe.pipe, adopt_pipe),
    "first use": (shmpipe.Pipe, first_use),
    "fileno of a connection": (shmpipe.Pipe, lambda ends: ends[0].fileno),
    "fileno of a reader": (shmpipe.pipe, lambda ends: ends[0].fileno),
    "fileno of a writer": (shmpipe.pipe, lambda ends: ends[1].fileno),
    "lent message": (lambda: shmpipe.Pipe(False), receive_in_place),
    "hand-over": (shmpipe.Pipe, hand_over_both),
    "resize": (
        shmpipe.pipe,
        lambda ends: lambda: shmpipe.fcntl(ends[0], shmpipe.F_SETPIPE_SZ, 4096),
    ),
}


def works(ends: Any) -> None:
    """What was there before goes on working."""
    if isinstance(ends[0], shmpipe.Connection):
        ends[1].send_bytes(b"works")
        while ends[0].recv_bytes(timeout=10) != b"works":
            pass  # what an attempt has sent
    else:
        ends[1].write(b"works")
        assert ends[0].read(100)


def walk(case: str, number: int) -> list[str]:
    """The calls that failed, one at each step; OSErrors were of ``number``."""
    make, prepare = CASES[case]
    failed: list[str] = []
    while True:
        before = holdings()
        ends = make()
        act = prepare(ends)
        error = result = None
        shim.failing_arm(len(failed), number)
        try:
            result = act()
        except (OSError, MemoryError) as raised:
            error = raised
        finally:
            name = shim.failing_disarm()
        where = f"{case}: {name!r} at step {len(failed)}"
        assert name is None or error is not None or result is not None or case in LENIENT, where
        assert name is not None or error is None, f"{where}: {error!r}"
        if isinstance(error, OSError):
            assert error.errno == number, f"{where}: {error!r}"
        del act, result
        error = None
        if ends:
            works(ends)
        for end in ends:
            end.close()
        del ends
        after = holdings()
        assert after == before, f"{where}: {before} became {after}"
        if name is None:
            return failed
        failed.append(name.decode())


# What does without the call that has failed, in some way.
LENIENT = ("first use", "resize", "lent message")


if __name__ == "__main__":
    shmpipe.Pipe()[0].fileno()  # whatever stays for good is made by the first one
    found = {
        f"{case}, {errno.errorcode[number]}": walk(case, number)
        for case in CASES
        for number in (errno.EMFILE, errno.ENOMEM)
    }
    print(json.dumps(found))
