"""Stop a call at its n-th step: for tests that walk through all of them.

A step is a line of the code of some modules of the package or, with `opcodes`, an instruction of
it. Only interpreted code has steps.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import shmpipe
from shmpipe import primitives

PACKAGE = Path(shmpipe.__file__).parent

# Every step instead of some takes minutes for each test: on demand.
every_step = [
    pytest.mark.slow,
    pytest.mark.timeout_s(400),
    pytest.mark.skipif(
        "SHMPIPE_EXPLORE" not in os.environ, reason="takes minutes: SHMPIPE_EXPLORE=full"
    ),
]
interpreted_only = pytest.mark.skipif(primitives.COMPILED, reason="compiled code has no steps")


class Boom(Exception):
    """What a step raises."""


def boom(*_: Any) -> None:
    raise Boom


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interruptible(frame: FrameType) -> bool:
    """Whether a signal's handler may run before the instruction that a frame is at.

    Before these it does not, and what is raised there all the same costs the interpreter the
    exception that it is about to handle (Python 3.11 and later).
    """
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name not in ("PUSH_EXC_INFO", "POP_EXCEPT")


class at_step:
    """With this block, call `act` at step `number` (from 0) in the code of `modules`."""

    def __init__(
        self, number: int, act: Callable[[], None], modules: Iterable[str], opcodes: bool = False
    ) -> None:
        self._left = number
        self._act = act
        self._files = {str(PACKAGE / f"{module}.py") for module in modules}
        self._opcodes = opcodes

    def __enter__(self) -> at_step:
        if self._opcodes:
            sys._getframe().f_trace_opcodes = True  # or Python 3.12 reports none
        sys.settrace(self._called)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    @property
    def reached(self) -> bool:
        """Whether there were so many steps."""
        return self._left < 0

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if self._opcodes:
            frame.f_trace = self._stepped  # or Python 3.13 does not see that it wants them
            frame.f_trace_opcodes = True
        frame.f_trace_lines = not self._opcodes
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" or (event == "opcode" and interruptible(frame)):
            self._left -= 1
            if self._left == -1:
                self._act()
        return self._stepped
