"""What a connection keeps in memory."""

from __future__ import annotations

import os
from typing import Any

import pytest

from shmpipe import Connection, Pipe

from .links import KiB, MiB


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
