"""``AsyncConnection``: on asyncio's event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from .. import Connection
from .core import Core


class AsyncConnection(Core):
    """An end of a ``Pipe()`` for asyncio: ``AsyncConnection(connection)``.

    ``await recv()``, ``await send(obj)`` and their siblings do what the connection's calls of the
    same names do, and let other tasks run while they wait, also in the middle of a message larger
    than the pipe.  They take no ``timeout=`` (TypeError): a time limit is
    ``await asyncio.wait_for(conn.recv(), 5)``, or ``asyncio.timeout()`` from Python 3.11 on.  A
    call that is cancelled has not received, and not sent, anything.  Tasks that wait for the same
    come one after the other, in their order.

    ``async for obj in conn`` receives until EOF, ``async with conn`` closes it in the end.

    For one event loop at a time; RuntimeError: tasks of another are at work on it.  Those of one
    that is closed are given up.  TypeError: that is not a ``Connection``.  ValueError: it has such
    a wrapper already.  OSError: it is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self._waiting: dict[int, _Wait] = {}
        super().__init__(connection)

    def _here(self) -> object:
        return asyncio.get_running_loop()

    def _line(self) -> AbstractAsyncContextManager[Any]:
        return asyncio.Lock()

    async def _wait(self, descriptor: int, writing: bool, seconds: float) -> None:
        wait = self._waiting[descriptor] = _Wait(descriptor, writing, seconds)
        try:
            await wait.over
        finally:
            wait.end()
            if self._waiting.get(descriptor) is wait:
                del self._waiting[descriptor]

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _drop(self, descriptor: int) -> None:
        wait = self._waiting.get(descriptor)
        if wait is not None:
            wait.end()

    def _call_at_home(self, home: Any, call: Callable[[], None]) -> bool:
        return call_elsewhere(home, call)


def call_elsewhere(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
    """Have a loop make the call if it runs in another thread; False: it does not."""
    if not loop.is_running() or asyncio._get_running_loop() is loop:
        return False
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False  # it has just been closed
    return True


class _Wait:
    """One wait for one descriptor.

    Registered for no longer: a descriptor that stays ready while nobody wants what is there would
    keep the loop from sleeping.
    """

    def __init__(self, descriptor: int, writing: bool, seconds: float) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._remove = loop.remove_writer if writing else loop.remove_reader
        self.over = loop.create_future()
        add = loop.add_writer if writing else loop.add_reader
        add(descriptor, self._ready)
        self._timer = loop.call_later(seconds, self._ready)
        self._registered = True

    def _ready(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def end(self) -> None:
        """Forget the descriptor, whose number may soon mean another file.  Again: nothing."""
        if self._loop.is_closed():
            return  # it has forgotten everything, and nobody waits
        if self._registered:
            self._registered = False
            self._timer.cancel()
            self._remove(self._descriptor)
        self._ready()
