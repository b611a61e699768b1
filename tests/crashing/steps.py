"""What stands at each step of the instrumented copy of the package, as its module ``_steps``.

The process under watch counts its steps on a board in shared memory, so that others know how far it
has come when it is dead.  At one arrival at one step it stops or kills itself.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from ._names import NAMES  # type: ignore[import-not-found]

NUMBERS: dict[str, int] = {name: number for number, name in enumerate(NAMES)}
_TRACE = 1 << 15  # steps of which the order is kept


class Board:
    """How often a process has come to each step, and in what order."""

    def __init__(self) -> None:
        words = 1 + len(NAMES)
        memory = mmap.mmap(-1, 8 * words + 2 * _TRACE)
        self.counts = memoryview(memory)[: 8 * words].cast("Q")
        self.order = memoryview(memory)[8 * words :].cast("H")

    def note(self, number: int) -> int:
        """Count one arrival; returns which it is, from 1."""
        counts = self.counts
        length = counts[0]
        if length < _TRACE:
            self.order[length] = number
        counts[0] = length + 1
        counts[number + 1] += 1
        arrival: int = counts[number + 1]
        return arrival

    def arrivals(self, name: str) -> int:
        count: int = self.counts[NUMBERS[name] + 1]
        return count

    def seen(self) -> dict[str, int]:
        """The steps that were come to, and how often."""
        return {name: n for name, n in zip(NAMES, self.counts[1:].tolist(), strict=True) if n}

    def trace(self) -> list[str]:
        """The steps in their order (the first ones, if there were very many)."""
        return [NAMES[number] for number in self.order[: min(self.counts[0], _TRACE)]]


_board: Any = None
_target = -1
_arrival = 0
_signal = 0


def watch(board: Board, step: str | None, arrival: int, signal: int) -> None:
    """From now on this process counts, and sends itself ``signal`` when it has come so far."""
    global _board, _target, _arrival, _signal
    _target = -1 if step is None else NUMBERS[step]
    _arrival, _signal = arrival, signal
    _board = board


def at(name: str) -> None:
    """The process is at that step, and has not done it yet."""
    if _board is None:
        return
    number = NUMBERS[name]
    if _board.note(number) == _arrival and number == _target:
        os.kill(os.getpid(), _signal)
