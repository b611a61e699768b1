"""Faults that are put in on purpose, to see that a soak finds them: ``--spoil NAME``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .ledger import NOT_SENT

AT = 50  # the message, or call, that it happens to


def _receiving(change: Callable[[Any, Callable[[Any], None], Any], None]) -> Callable[[Any], None]:
    """Have a receiver do something else with one of the messages that come."""

    def spoil(player: Any) -> None:
        real, count = player.arrived, 0

        def arrived(message: Any) -> None:
            nonlocal count
            count += 1
            if count == AT:
                change(player, real, message)
            else:
                real(message)

        player.arrived = arrived

    return spoil


def _lose(player: Any, real: Callable[[Any], None], message: Any) -> None:
    pass


def _double(player: Any, real: Callable[[Any], None], message: Any) -> None:
    real(message)
    player.last = [-1] * len(player.last)
    real(message)


def _tear(player: Any, real: Callable[[Any], None], message: Any) -> None:
    real(bytes(message[:-1]) + bytes([message[-1] ^ 1]) if len(message) else b"x")


def _late(player: Any, real: Callable[[Any], None], message: Any) -> None:
    player.last = [1 << 30] * len(player.last)
    real(b"\0" * 7 if len(message) < 8 else message)


def _deny(player: Any) -> None:
    """A sender that says it has not sent what it has."""
    real, count = player.note, 0

    def note(outcome: Any, sent: int = 1) -> bool:
        nonlocal count
        result: bool = real(outcome, sent)
        count += 1
        if count == AT:
            for number in range(player.number):
                player.states[number] = NOT_SENT
        return result

    player.note = note


def _calling(act: Callable[[], None]) -> Callable[[Any], None]:
    def spoil(player: Any) -> None:
        real, count = player.step, 0

        def step() -> bool:
            nonlocal count
            count += 1
            if count == AT:
                act()
            return bool(real())

        player.step = step

    return spoil


def _skip(player: Any) -> None:
    """A reader of a stream that misses a byte."""
    real, count = player._check, 0

    def check(data: bytes) -> None:
        nonlocal count
        count += 1
        real(data[1:] if count == AT else data)

    player._check = check


# By name: whether it is a sender's fault, the kind of round, what it does, what is said then.
FAULTS: dict[str, tuple[bool, str, Callable[[Any], None], str]] = {
    "lose": (False, "bytes", _receiving(_lose), "lost: 1 message"),
    "double": (False, "bytes", _receiving(_double), "doubled"),
    "tear": (False, "bytes", _receiving(_tear), "torn|came as"),
    "late": (False, "objects", _receiving(_late), "after its number"),
    "deny": (True, "bytes", _deny, "never sent"),
    "hang": (True, "records", _calling(lambda: time.sleep(1e6)), "stuck: role 0"),
    "crash": (False, "bytes", _calling(lambda: os._exit(5)), "ended with status 5"),
    "leave": (True, "bytes", _calling(lambda: os._exit(0)), "left with roles"),
    "skip": (False, "stream", _skip, "not what follows|bytes at the end"),
}


def spoil(name: str, player: Any, sending: bool) -> None:
    sender, _, act, _ = FAULTS[name]
    if sender is sending:
        act(player)
