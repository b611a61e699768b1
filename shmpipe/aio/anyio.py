"""``AsyncConnection`` for AnyIO: on asyncio, uvloop and Trio.  (``pip install anyio``)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from .connection import call_elsewhere
from .core import Core

if not hasattr(anyio, "notify_closing"):
    raise ImportError("shmpipe.aio.anyio needs AnyIO 4.10 or later: this one is older")

__all__ = ["AsyncConnection"]


_tasks: set[asyncio.Task[None]] = set()  # or they might be collected before they have run


async def _in_task(call: Callable[[], None]) -> None:
    call()


def _start(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    task = loop.create_task(_in_task(call))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)  # also where the call has failed


class AsyncConnection(Core):
    """As ``shmpipe.aio.AsyncConnection``, whatever event loop AnyIO runs on.

    The calls take no ``timeout=`` (TypeError): time limits are ``with anyio.fail_after(5):`` and
    ``anyio.move_on_after()``.  A call on a closed one raises OSError "handle is closed", as
    everywhere in shmpipe.
    """

    _turns_between_breaths = 1  # every call is a checkpoint, as is the rule there

    def _here(self) -> object:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            import trio

            here: object = trio.lowlevel.current_trio_token()
            return here

    def _line(self) -> AbstractAsyncContextManager[Any]:
        # (A name with a type, so that it is checked the same with AnyIO installed and without.)
        line: AbstractAsyncContextManager[Any] = anyio.Lock()
        return line

    async def _wait(self, descriptor: int, writing: bool, seconds: float) -> None:
        wait = anyio.wait_writable if writing else anyio.wait_readable
        try:
            with anyio.move_on_after(seconds):
                await wait(descriptor)
        except anyio.ClosedResourceError:
            pass  # dropped: the next try says so

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await anyio.sleep(seconds)
        else:
            await anyio.lowlevel.checkpoint()

    def _drop(self, descriptor: int) -> None:
        try:
            anyio.notify_closing(descriptor)
        except RuntimeError:
            pass  # outside of every event loop, where nobody waits

    def _call_at_home(self, home: Any, call: Callable[[], None]) -> bool:
        if isinstance(home, asyncio.AbstractEventLoop):
            # (In a task: elsewhere AnyIO does not know which event loop it is in.)
            return call_elsewhere(home, partial(_start, home, call))
        import trio

        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is home:
            return False
        try:
            home.run_sync_soon(call)
        except trio.RunFinishedError:
            return False
        return True
