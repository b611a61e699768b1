"""Every way to run ``shmpipe.aio``, under one face.

A test that takes `loop` runs on each that is installed.  ``loop.run(main)`` runs a coroutine
function to its end, ``loop.wrap(connection)`` makes the asynchronous connection for it; the other
methods are what asyncio and AnyIO call differently.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from shmpipe import Connection
from shmpipe.aio import AsyncConnection


class AsyncioLoop:
    """asyncio, or what has its interface."""

    def __init__(self, new_loop: Callable[[], Any] | None = None) -> None:
        self._new_loop = new_loop

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._new_loop is None:
            return asyncio.run(main())
        loop = self._new_loop()
        try:
            return loop.run_until_complete(main())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def wrap(self, connection: Connection) -> Any:
        return AsyncConnection(connection)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, *functions: Callable[[], Awaitable[Any]]) -> None:
        """Run all of them; the first error ends the others, and comes out."""
        tasks = [asyncio.ensure_future(function()) for function in functions]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def within(self, seconds: float, function: Callable[[], Awaitable[Any]]) -> Any:
        """What it returns, or TimeoutError."""
        try:
            return await asyncio.wait_for(function(), seconds)
        except asyncio.TimeoutError:  # (another class before Python 3.11)
            raise TimeoutError from None

    async def cut_short(self, rounds: int, function: Callable[[], Awaitable[Any]]) -> bool:
        """Cancel it after so many rounds of the loop; whether it was over before."""
        task: asyncio.Future[Any] = asyncio.ensure_future(function())
        for _ in range(rounds):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True


class AnyioLoop:
    def __init__(self, backend: str) -> None:
        self._backend = backend

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        import anyio

        return anyio.run(main, backend=self._backend)

    def wrap(self, connection: Connection) -> Any:
        from shmpipe.aio.anyio import AsyncConnection

        return AsyncConnection(connection)

    async def sleep(self, seconds: float) -> None:
        import anyio

        await anyio.sleep(seconds)

    async def together(self, *functions: Callable[[], Awaitable[Any]]) -> None:
        import anyio

        async with anyio.create_task_group() as group:
            for function in functions:
                group.start_soon(function)

    async def within(self, seconds: float, function: Callable[[], Awaitable[Any]]) -> Any:
        import anyio

        with anyio.fail_after(seconds):
            return await function()

    async def cut_short(self, rounds: int, function: Callable[[], Awaitable[Any]]) -> bool:
        import anyio
        import anyio.lowlevel

        ended = False
        errors: list[Exception] = []

        async def call() -> None:
            nonlocal ended
            try:
                await function()
            except Exception as error:
                errors.append(error)
            ended = True

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            for _ in range(rounds):
                if ended:
                    break
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        for error in errors:
            raise error
        return ended


def _uvloop() -> AsyncioLoop:
    import uvloop

    return AsyncioLoop(uvloop.new_event_loop)


if importlib.util.find_spec("uvloop") is not None:
    # Its first loop makes a pipe that stays: before a test looks what it has left.
    _uvloop().run(lambda: asyncio.sleep(0))


LOOPS: dict[str, Callable[[], Any]] = {
    "asyncio": AsyncioLoop,
    "uvloop": _uvloop,
    "anyio": lambda: AnyioLoop("asyncio"),
    "trio": lambda: AnyioLoop("trio"),
}
NEEDED = {"uvloop": ("uvloop",), "anyio": ("anyio",), "trio": ("anyio", "trio")}


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest) -> Any:
    for module in NEEDED.get(request.param, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return LOOPS[request.param]()


def sizes(seed: int, count: int, most: int) -> list[int]:
    """Message sizes: many small ones, some large."""
    choice = random.Random(seed)
    return [
        choice.randrange(8, most) if choice.random() < 0.1 else choice.randrange(8, 600)
        for _ in range(count)
    ]
