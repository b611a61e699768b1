"""What the machine can do at best, measured beside those who use it, in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from .model import Contender, Sample
from .processes import Crew, Post
from .rounds import Plan

PREFIX = "limit: "


class _Empty:
    def method(self) -> None:
        pass


def _copying(size: int) -> Callable[[], Any]:
    source = memoryview(bytes(size))
    target = memoryview(bytearray(size))

    def copy() -> None:
        target[:] = source

    return copy


def _compiled_method() -> Callable[[], Any]:
    return threading.Lock().locked  # looks at one word and returns a constant


def _python_method() -> Callable[[], Any]:
    return _Empty().method


def _member(post: Post, make: Callable[[], Callable[[], Any]], count: int) -> float:
    call = make()
    post.ready()
    for _ in range(4):
        call()
    post.start()
    start = time.perf_counter()
    for _ in repeat(None, count):
        call()
    return time.perf_counter() - start


def _contender(
    name: str, make: Callable[[], Callable[[], Any]], size: int, plan: Plan
) -> Contender:
    def run(count: int) -> Sample:
        with Crew(plan.timeout) as crew:
            crew.fork(_member, make, count)
            [seconds], usage = crew.run()
        return Sample(count, seconds, usage.cpu, usage.switches, count * size)

    return Contender(PREFIX + name, run)


def memcpy(size: int, plan: Plan) -> Contender:
    """Copying a message once, over and over to the same place."""
    return _contender("memcpy", lambda: _copying(size), size, plan)


def empty_calls(plan: Plan) -> list[Contender]:
    """Calling a method that does nothing."""
    return [
        _contender("compiled method", _compiled_method, 0, plan),
        _contender("Python method", _python_method, 0, plan),
    ]
