"""A receiver stays away for once from a sender that is faster alone, and from no other."""

from __future__ import annotations

import contextlib
import time
import types
from typing import Any

import pytest

import shmpipe
from shmpipe import following
from shmpipe.following import AHEAD, LONGEST, MOMENT, OFTEN, SELDOM, Follower
from shmpipe.segment import WPOS
from shmpipe.sending import BUSY

from .children import run_child
from .links import link_of

MESSAGE = 4096
PURE = pytest.mark.skipif(shmpipe.engine != "pure", reason="compiled names cannot be replaced")


class Machine:
    """A ring, its sender, and the time, as far as a follower sees of them."""

    def __init__(self, followed: float, alone: float, pages: int, limit: int) -> None:
        self.followed, self.alone = followed, alone  # bytes a second
        self.now = 1000.0
        self.stays: list[float] = []
        self.words = {WPOS: 0}
        self.pages = lambda: pages
        self.limit = lambda: limit

    def monotonic(self) -> float:
        return self.now

    def idle(self, seconds: float) -> None:
        self.stays.append(seconds)
        self.now += seconds
        self.words[WPOS] += int(self.alone * seconds)

    def wait(self) -> None:
        """One message comes that was waited for."""
        self.now += MESSAGE / self.followed
        self.words[WPOS] += MESSAGE


def stays(
    monkeypatch: pytest.MonkeyPatch, followed: float, alone: float, waits: int, **ring: int
) -> list[float]:
    machine: Any = Machine(followed, alone, **{"pages": 1024, "limit": 1024} | ring)
    here = types.SimpleNamespace(monotonic=machine.monotonic, idle=machine.idle)
    monkeypatch.setattr(following, "time", here)
    monkeypatch.setattr(following, "primitives", here)
    follower = Follower(machine)
    for _ in range(waits):
        follower.waits()
        machine.wait()
    return list(machine.stays)


@PURE
def test_it_stays_away_from_one_that_is_faster_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is far ahead, but less than a millisecond; and again and again."""
    seen = stays(monkeypatch, 5e9, 2e10, 3 * OFTEN)
    assert seen == [MOMENT, pytest.approx(AHEAD / 2e10 - MOMENT)] * 3
    assert stays(monkeypatch, 1e8, 1e9, OFTEN) == [MOMENT, LONGEST]


@PURE
@pytest.mark.parametrize("alone", [0.0, 5e9, 6e9])
def test_others_are_tried_ever_more_seldom(monkeypatch: pytest.MonkeyPatch, alone: float) -> None:
    """One that waits for an answer, and ones that are hardly faster: one moment each."""
    times = sum(OFTEN << power for power in range(5))
    assert stays(monkeypatch, 5e9, alone, times) == [MOMENT] * 5
    assert stays(monkeypatch, 5e9, alone, 4 * SELDOM + 2 * SELDOM) == [MOMENT] * (10 + 5)


@PURE
def test_what_was_a_gain_for_a_moment_only_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst that ends is no reason to stay away as often."""

    class Burst(Machine):
        def idle(self, seconds: float) -> None:
            self.alone = 2e10 if seconds == MOMENT else 0.0
            super().idle(seconds)

    monkeypatch.setattr(f"{__name__}.Machine", Burst)
    assert len(stays(monkeypatch, 5e9, 0.0, OFTEN + 2 * OFTEN + 4 * OFTEN - 1)) == 2 * 2


@PURE
def test_a_full_ring_counts_as_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what makes the sender let it grow."""
    assert stays(monkeypatch, 5e9, 5e9, 3 * OFTEN, pages=8) == [MOMENT] * 3


@PURE
def test_a_small_ring_is_never_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is in the cores' own caches, however far the sender comes."""
    assert stays(monkeypatch, 1e9, 2e10, 10_000, pages=256, limit=256) == []


def answer(end: Any, count: int) -> None:
    for _ in range(count):
        end.send_bytes(end.recv_bytes())


def send_on(sender: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        while True:
            sender.send_bytes(bytes(1000))


def test_who_waits_for_answers_is_tried_ever_more_seldom() -> None:
    count = 200 * OFTEN
    with link_of("shmpipe", spin=1.0) as (here, there):
        child = run_child(answer, there, count, close=[here])
        follower = here._receiver.side.follower
        seldom = 0
        for _ in range(count):
            here.send_bytes(b"x")
            assert here.recv_bytes() == b"x"
            seldom = max(seldom, follower.often)
        child.join()
        assert seldom > OFTEN


def test_a_sender_that_often_waits_gets_the_whole_ring() -> None:
    """Though the receiver keeps up, so that no spin is in vain."""
    with link_of("shmpipe", False, spin=1.0) as (receiver, sender):
        child = run_child(send_on, sender, close=[receiver])
        sender.close()
        for _ in range(100_000):
            if receiver._receiver.ring.pages() == 1024:
                break
            assert len(receiver.recv_bytes()) == 1000
            time.sleep(0.0001)
        assert receiver._receiver.ring.pages() == 1024
        assert receiver.stats().writer_spins_paid >= BUSY
        receiver.close()
        child.join()
