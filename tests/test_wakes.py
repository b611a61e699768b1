"""Wake-ups that get lost in the first moments of a sleep.

A sleeper looks again by itself after 20 ms, so that a lost wake-up shows in no single call. A few
hundred in a row take seconds instead of a fraction of one; the limit is far from both.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shmpipe
from shmpipe.primitives import WOKEN
from shmpipe.segment import WPOS

from .kinds import fill, page, pipe_of
from .support import PAGE, eventually, run_child, run_thread

ROUNDS = 300
LIMIT = 3.0  # seconds; with every wake-up lost it would be ROUNDS * 0.02
SLEEPERS = 3


@contextlib.contextmanager
def no_stalls() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < LIMIT, "sleepers were not woken but looked by themselves"


class Gate:
    """Lets so many through, in whatever process."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self, count: int, ticket: bytes = b"+") -> None:
        os.write(self.writer, ticket * count)

    def passed(self) -> bool:
        return os.read(self.reader, 1) == b"+"

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.reader)
        os.close(self.writer)


def take_turns(call: Any, argument: Any, gate: Gate) -> None:
    """One call each time the gate lets through, so that nobody does the work of the others."""
    while gate.passed():
        call(argument)


def wait_for(end: Any, name: str, count: int) -> None:
    """Until a statistic reaches a count; briefly, so that a sleeper is still in its first phase."""
    deadline = time.monotonic() + 20
    while getattr(end.stats(), name) < count:
        assert time.monotonic() < deadline, (name, count, end.stats())
        time.sleep(0.0002)


@contextlib.contextmanager
def sleepers(call: Any, argument: Any, other: Any) -> Iterator[Gate]:
    """Children that make a call each time they are let through the gate."""
    with Gate() as gate:
        children = [
            run_child(take_turns, call, argument, gate, close=[other]) for _ in range(SLEEPERS)
        ]
        yield gate
        gate.open(SLEEPERS, b"-")
        for child in children:
            child.join()


# All at once: whoever is woken and leaves something wakes the next one. One by one: whoever leaves
# nothing does not make the other side believe that nobody sleeps any more.
several = pytest.mark.parametrize("at_once", [SLEEPERS, 1], ids=["all at once", "one by one"])


@several
def test_readers(at_once: int) -> None:
    with pipe_of("shmpipe", spin=0) as (r, w), sleepers(r.read, 1, w) as gate, no_stalls():
        for number in range(0, SLEEPERS * ROUNDS, SLEEPERS):
            gate.open(SLEEPERS)
            wait_for(r, "reader_sleeps", number + SLEEPERS)
            for done in range(at_once, SLEEPERS + 1, at_once):
                w.write(b"x" * at_once)
                wait_for(r, "bytes_read", number + done)


@several
def test_writers(at_once: int) -> None:
    with (
        pipe_of("shmpipe", 4, spin=0) as (r, w),
        sleepers(w.write, page(1), r) as gate,
        no_stalls(),
    ):
        fill(w, 4)
        for number in range(0, SLEEPERS * ROUNDS, SLEEPERS):
            gate.open(SLEEPERS)
            wait_for(r, "writer_sleeps", number + SLEEPERS)
            for done in range(at_once, SLEEPERS + 1, at_once):
                r.read(at_once * PAGE)
                wait_for(r, "bytes_written", (4 + number + done) * PAGE)


def test_messages_there_and_back() -> None:
    def answer() -> None:
        for _ in range(10 * ROUNDS):
            w2.write(r1.read(10))

    with pipe_of("shmpipe", spin=0) as (r1, w1), pipe_of("shmpipe", spin=0) as (r2, w2):
        child = run_child(answer, close=[w1, r2])
        with no_stalls():
            for _ in range(10 * ROUNDS):
                w1.write(b"x")
                assert r2.read(10) == b"x"
        child.join()


@pytest.mark.parametrize("kind", ["pipe", "Pipe"])
def test_writer_is_rung_for_without_cause_while_it_falls_asleep(kind: str) -> None:
    """Whoever rings for a dead reader does so while a writer is on its way to its doorbell."""
    if kind == "pipe":
        reader, writer = shmpipe.pipe(PAGE, spin=0)
        read, write, side = reader.read, writer.write, reader._side
        bell = writer._side.bell
    else:
        receiver, sender = shmpipe.Pipe(False, size=PAGE, spin=0)
        reader, writer = receiver, sender
        read, write = lambda _: receiver.recv_bytes(), sender.send_bytes
        side, bell = receiver._receiver.side, sender._sender.side.bell

    def plug_late(number: int) -> None:
        del bell.plug  # what stands in front of the method
        side.resized()  # the plug is announced, but does not lie there yet
        bell.plug(number)

    with reader, writer:
        write(bytes(PAGE - 8))
        bell.plug = plug_late
        writing = run_thread(write, bytes(PAGE - 8))
        eventually(lambda: "plug" not in vars(bell))
        writing.wait_asleep()
        assert read(PAGE)
        writing.join()


def test_long_spins_are_tried_again_and_more_rarely_where_they_are_in_vain() -> None:
    """Short ones alone never pay where something comes every few microseconds: that would be held
    for proof that spinning does not.
    """
    r, w = shmpipe.Pipe(False, spin=0.5)
    with r, w:
        side = r._receiver.side  # type: ignore[union-attr]
        shortest = side.spin_most / 64

        def sleep_and_find_it_was_short() -> None:
            side.read_wait.release()
            assert side.sleep_short(side.read_wait, None) == WOKEN

        def spin_in_vain() -> None:
            assert not side.spin(WPOS, 1, 0.0)

        def spin_with_success() -> None:
            assert side.spin(WPOS, 0, None)

        side.spin_now = shortest
        for cheap in (1, 2, 4, 8):  # sleeps until the next try
            for _ in range(cheap - 1):
                sleep_and_find_it_was_short()
                assert side.spin_now == shortest
            sleep_and_find_it_was_short()
            assert side.spin_now == side.spin_most
            spin_in_vain()
            assert side.spin_now == shortest  # at once, not by halves
        for _ in range(16):
            sleep_and_find_it_was_short()
        assert side.spin_now == side.spin_most
        spin_with_success()
        assert side.spin_now == side.spin_most and side.caution == 7
        spin_in_vain()  # not a trial any more
        assert side.spin_now == side.spin_most / 2
