"""What users of pipes suffer from, by its number in the project's list of public reports: 01 to 07.

The comment above each test says what was reported. `test_cases_calls.py` and
`test_cases_system.py` have the later numbers.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import Any

import pytest

import shmpipe

from .kinds import asleep
from .links import (
    KiB,
    MiB,
    both_kinds,
    both_ways,
    fill_link,
    is_interrupted,
    link_of,
    make_link,
    numbered,
    outcome,
    receive_all,
)
from .support import Flag, run_child, run_thread

# ---------------------------------------------------------------- 01: the peer was killed

# Reported: recv() never returns after the peer died; workers outlive their killed parent.


@both_kinds
@both_ways
def test_01_child_killed(kind: str, duplex: bool) -> None:
    receiver, sender = make_link(kind, duplex)
    with receiver:
        child = run_child(signal.pause, close=[receiver])
        sender.close()
        waiting = run_thread(receiver.recv)
        asleep(waiting, child)
        child.kill()
        with pytest.raises(EOFError):
            waiting.join(10)
        assert receiver.poll()
        with pytest.raises(EOFError):
            receiver.recv_bytes()


@both_kinds
@both_ways
def test_01_parent_killed(kind: str, duplex: bool) -> None:
    report, report_to = os.pipe()
    worker_is_up = Flag()

    def work() -> None:
        worker_is_up.set()
        os.write(report_to, outcome(receiver.recv).__name__.encode())

    def parent() -> None:
        worker = run_child(work, close=[sender])
        receiver.close()
        worker_is_up.wait()
        asleep(worker)
        os.write(report_to, b"ready ")
        signal.pause()

    receiver, sender = make_link(kind, duplex)
    child = run_child(parent)
    os.close(report_to)
    receiver.close()
    sender.close()
    assert os.read(report, 100) == b"ready "
    child.kill()
    assert select.select([report], [], [], 10)[0], "the worker still waits"
    assert os.read(report, 100) == b"EOFError"
    os.close(report)
    worker_is_up.close()


# ---------------------------------------------------------------- 04: somebody else holds a copy

# Reported: no end of file, ever, because another process still holds the writing end.


@both_kinds
@both_ways
def test_04_end_of_file_when_the_last_holder_leaves(kind: str, duplex: bool) -> None:
    receiver, sender = make_link(kind, duplex)
    with receiver, Flag() as leave:
        killed = run_child(signal.pause, close=[receiver])
        last = run_child(leave.wait, close=[receiver])
        sender.close()
        asleep(killed, last)
        killed.kill()
        assert not receiver.poll(0.2)
        leave.set()
        last.join()
        assert receiver.poll(10)
        with pytest.raises(EOFError):
            receiver.recv()


@both_kinds
@both_ways
def test_04_own_forgotten_copy_keeps_it_open(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        run_child(sender.send, "last words", close=[receiver]).join()
        assert receiver.recv() == "last words"
        assert not receiver.poll(0.2)
        waiting = run_thread(receiver.recv)
        asleep(waiting)
        sender.close()
        with pytest.raises(EOFError):
            waiting.join(10)


# ---------------------------------------------------------------- 05: both wait for each other

# Reported: both sides send something big before either receives; the parent joins first.

FITS = [
    pytest.param(kind, options, count, id=f"{kind} {options or ''} {count}")
    for kind, options, count in [
        ("stdlib", {}, 50_000),
        ("shmpipe", {}, 100_000),
        ("shmpipe", {"size": 2 * MiB}, MiB),
        ("shmpipe", {"size": 16 * MiB}, 15 * MiB),
    ]
]


@pytest.mark.parametrize(("kind", "options", "count"), FITS)
def test_05_both_send_before_they_receive(kind: str, options: Any, count: int) -> None:
    with link_of(kind, **options) as (a, b):
        a.send_bytes(numbered(1, count))
        b.send_bytes(numbered(2, count))
        assert a.recv_bytes() == numbered(2, count)
        assert b.recv_bytes() == numbered(1, count)


@pytest.mark.parametrize(("kind", "options", "count"), FITS)
@both_ways
def test_05_parent_joins_before_it_receives(
    kind: str, duplex: bool, options: Any, count: int
) -> None:
    with link_of(kind, duplex, **options) as (receiver, sender):
        child = run_child(sender.send_bytes, numbered(1, count), close=[receiver])
        sender.close()
        child.join()
        assert receiver.recv_bytes() == numbered(1, count)
        with pytest.raises(EOFError):
            receiver.recv_bytes()


@both_ways
def test_05_above_the_capacity_a_time_limit_ends_the_wait(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=256 * KiB) as (receiver, sender):
        sender.send("before")
        with pytest.raises(TimeoutError):
            sender.send_bytes(bytes(MiB), timeout=0.1)
        sender.send("after")
        assert [receiver.recv(), receiver.recv()] == ["before", "after"]
        assert not receiver.poll()


@both_kinds
def test_05_above_the_capacity_an_interrupt_ends_the_wait(kind: str) -> None:
    with link_of(kind) as (receiver, sender):
        child = run_child(is_interrupted, lambda: sender.send_bytes(bytes(8 * MiB)))
        asleep(child)
        child.kill(signal.SIGINT)
        assert child.join()
        # What stdlib leaves behind cannot be used; ours goes on.
        if kind == "shmpipe":
            sender.send("next")
            assert receiver.recv() == "next"


# ---------------------------------------------------------------- 06: a send that does not wait

# Reported: send() blocks after a few messages, nothing says when, and there is no "try".


@both_ways
@pytest.mark.parametrize("limit", [0.1, 0, None])
def test_06_full_link_refuses_and_stays_whole(duplex: bool, limit: float | None) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        count = fill_link(sender)
        if limit is None:
            assert sender.try_send_bytes(bytes(KiB)) is False
        else:
            with pytest.raises(TimeoutError):
                sender.send_bytes(bytes(KiB), timeout=limit)
            with pytest.raises(TimeoutError):
                sender.send(["given up"] * 1000, timeout=limit)
        assert receiver.recv_bytes() == numbered(0, KiB)
        sender.send_bytes(b"room again")
        sender.close()
        assert receive_all(receiver) == [numbered(n, KiB) for n in range(1, count)] + [
            b"room again"
        ]


@both_ways
@pytest.mark.parametrize(
    ("size", "length"),
    [(64 * KiB, 1), (64 * KiB, 60_000), (MiB, 100), (MiB, KiB), (4 * MiB, 5000)],
)
def test_06_capacity_is_the_size_that_was_asked_for(duplex: bool, size: int, length: int) -> None:
    with link_of("shmpipe", duplex, size=size) as (receiver, sender):
        assert shmpipe.fcntl(sender, shmpipe.F_GETPIPE_SZ) == size
        sent = fill_link(sender, length)
        # A header of 8 bytes goes with each, and a message may have to be a multiple of 8 bytes.
        per_message = 8 + -(-length // 8) * 8
        assert size // per_message - 1 <= sent <= size // length
        assert sum(receiver.poll() and len(receiver.recv_bytes()) == length for _ in range(sent))
        assert not receiver.poll()


@both_ways
def test_06_larger_than_the_link_is_never_half_there(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        sender.send_bytes(b"before")
        with pytest.raises(TimeoutError):
            sender.send_bytes(bytes(MiB), timeout=0.05)
        sender.send_bytes(b"after")
        assert [receiver.recv_bytes(), receiver.recv_bytes()] == [b"before", b"after"]
        assert receiver.try_recv_bytes() is None


# ---------------------------------------------------------------- 07: many short-lived senders

# Reported: children each send one object to a parent that polls; one child's send never returns.


@both_kinds
@both_ways
def test_07_many_short_lived_senders(kind: str, duplex: bool) -> None:
    children, per_batch = 150, 10
    done = threading.Event()

    def drain() -> list[Any]:
        found = []
        while True:
            if receiver.poll(0):
                found.append(receiver.recv())
            elif done.wait(0.001) and not receiver.poll(0):
                return found

    with link_of(kind, duplex) as (receiver, sender):
        drainer = run_thread(drain)
        for first in range(0, children, per_batch):
            batch = [
                run_child(sender.send, {"number": first + i, "text": "x" * 50})
                for i in range(per_batch)
            ]
            for child in batch:
                child.join()
                assert child.exitcode == 0
        done.set()
        found = drainer.join()
    assert sorted(item["number"] for item in found) == list(range(children))
