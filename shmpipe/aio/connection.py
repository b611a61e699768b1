"""``AsyncConnection``: on asyncio's event loops."""

from __future__ import annotations

import asyncio
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
            wait.end_from_anywhere()


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

    def end_from_anywhere(self) -> None:
        """As ``end()``, also where the loop runs in another thread."""
        if self._loop.is_running() and asyncio._get_running_loop() is not self._loop:
            try:
                self._loop.call_soon_threadsafe(self.end)
                return
            except RuntimeError:
                pass  # it has just been closed
        self.end()
