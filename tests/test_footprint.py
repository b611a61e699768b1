"""What a connection keeps in memory."""

from __future__ import annotations

import os
from typing import Any

import pytest

import shmpipe
from shmpipe import Connection, Pipe
from shmpipe.frames import BEGIN_DATA, IN_PARTS, LARGE
from shmpipe.segment import ALIGN

from .links import KiB, MiB
from .support import PAGE

HALF = 128 * KiB


def resident(end: Connection) -> int:
    """Bytes of an end's segment that are in this process's memory."""
    side = (end._sender or end._receiver).side  # type: ignore[union-attr]
    inode = os.fstat(side.ring.segment.memory.fileno()).st_ino
    total = 0
    counted = False
    with open("/proc/self/smaps") as file:
        for line in file:
            fields = line.split()
            if "-" in fields[0] and len(fields) >= 5:
                counted = int(fields[4]) == inode
            elif counted and fields[0] == "Rss:":
                total += int(fields[1]) * KiB
    return total


def round_trips(a: Any, b: Any, count: int) -> None:
    message = bytes(100)
    for _ in range(count):
        a.send_bytes(message)
        b.send_bytes(b.recv_bytes())
        assert len(a.recv_bytes()) == 100


def test_small_messages_stay_small() -> None:
    """Far more than the ring holds has gone through, and 64 KiB each way is the most that stays."""
    pairs = [Pipe() for _ in range(10)]
    for a, b in pairs:
        round_trips(a, b, 3000)
        assert resident(a) <= 2 * 64 * KiB
    for a, b in pairs:
        a.close()
        b.close()


@pytest.mark.parametrize("size", [LARGE - 1, LARGE])
def test_large_messages_get_the_whole_ring(size: int) -> None:
    """At once, also while the receiver keeps up; small ones do not."""
    a, b = Pipe(False, spin=0)
    with a, b:
        for number in range(3):
            b.send_bytes(bytes(size))
            assert len(a.recv_bytes()) == size
            pages = a._receiver.ring.pages()  # type: ignore[union-attr]
            assert (pages == 1024) is (size >= LARGE), number


@pytest.mark.parametrize("limit", [None, 10.0, 0.0])
@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (HALF - ALIGN, False),
        (HALF - ALIGN + 1, True),
        (2 * HALF - ALIGN - IN_PARTS, True),
        (2 * HALF - ALIGN - IN_PARTS + 1, False),
        (2 * HALF - ALIGN, False),
    ],
)
def test_two_that_do_not_fit_go_in_parts(size: int, parts: bool, limit: float | None) -> None:
    """But not with a time limit; and nobody has to receive first."""
    a, b = Pipe(False, size=2 * HALF, spin=0)
    with a, b:
        b.send_bytes(bytes(size), timeout=limit)
        ring = a._receiver.ring  # type: ignore[union-attr]
        assert ring.front()
        assert (ring.kind == BEGIN_DATA) is (parts and limit is None)
        assert a.recv_bytes() == bytes(size)


@pytest.mark.parametrize("spin", [0, None])
def test_what_nobody_receives_grows_up_to_the_size(spin: float | None) -> None:
    a, b = Pipe(False, size=MiB, spin=spin)
    with a, b:
        count = 0
        while b.try_send_bytes(bytes(1000)):
            count += 1
        assert count == MiB // 1008
        assert resident(a) > MiB
        for _ in range(count):
            a.recv_bytes()


def test_a_smaller_pipe_gives_its_pages_back() -> None:
    """All that it had beyond its new size, and nothing else."""
    reader, writer = shmpipe.pipe(16 * PAGE, spin=0)
    with reader, writer:
        for _ in range(2):
            assert writer.write(bytes(16 * PAGE)) == 16 * PAGE
            assert len(reader.read(16 * PAGE)) == 16 * PAGE
        memory = reader._side.ring.segment.memory.fileno()
        before = os.fstat(memory).st_blocks * 512
        assert shmpipe.fcntl(writer, shmpipe.F_SETPIPE_SZ, 4 * PAGE) == 4 * PAGE
        assert before - os.fstat(memory).st_blocks * 512 == 12 * PAGE
