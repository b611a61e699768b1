"""Streams for the ends of ``pipe()``: what ``loop.connect_read_pipe()`` is for the kernel's.

The ends get O_NONBLOCK, which all that hold the same end share, as with the kernel's pipe.
"""

from __future__ import annotations

import asyncio
import collections
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .. import F_GETFL, F_GETPIPE_WRITE_SZ, F_SETFL, PipeEnd, PipeReader, PipeWriter, fcntl

P = TypeVar("P", bound=asyncio.BaseProtocol)

MOST = 1 << 18  # bytes read at once


async def open_reader(reader: PipeReader, *, limit: int = 1 << 16) -> asyncio.StreamReader:
    """An ``asyncio.StreamReader`` of what comes out of a pipe; at EOF the end is closed.

    ValueError: the end has a stream or a transport already; likewise below.

    limit: bytes that ``readuntil()`` and ``readline()`` accept, and twice as many are read ahead.
    To stop earlier, use ``connect_read_pipe()`` and close its transport.  TypeError: that is not a
    ``PipeReader``, or ``limit`` no integer.  ValueError: ``limit`` is not positive.
    """
    if not isinstance(limit, int):
        raise TypeError(f"limit must be a number of bytes, not {type(limit).__name__}")
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader(limit, loop=loop)
    await connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream, loop=loop), reader)
    return stream


async def open_writer(writer: PipeWriter) -> asyncio.StreamWriter:
    """An ``asyncio.StreamWriter`` into a pipe.

    What the pipe has no space for waits in this process, and goes on when the pipe has its write
    size free; ``drain()`` waits while more than the write size waits so.  ``close()`` lets what
    waits go out first, ``wait_closed()`` waits for that.  ConnectionResetError, BrokenPipeError:
    nobody can read any more.
    """
    loop = asyncio.get_running_loop()
    unread = asyncio.StreamReader(loop=loop)  # the protocol wants one
    transport, protocol = await connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(unread, loop=loop), writer
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def connect_read_pipe(
    protocol_factory: Callable[[], P], reader: PipeReader
) -> tuple[asyncio.ReadTransport, P]:
    """As ``loop.connect_read_pipe()``, for a ``PipeReader``: (transport, protocol).

    TypeError: that is not a ``PipeReader``, or the factory no callable.
    """
    if not isinstance(reader, PipeReader):
        raise TypeError(f"expected a PipeReader, not {type(reader).__name__}")
    protocol = _made_by(protocol_factory)
    transport = _ReadTransport(asyncio.get_running_loop(), reader, protocol)
    await asyncio.sleep(0)  # by then connection_made() has been called
    return transport, protocol


async def connect_write_pipe(
    protocol_factory: Callable[[], P], writer: PipeWriter
) -> tuple[asyncio.WriteTransport, P]:
    """As ``loop.connect_write_pipe()``, for a ``PipeWriter``: (transport, protocol).

    TypeError: that is not a ``PipeWriter``, or the factory no callable.
    """
    if not isinstance(writer, PipeWriter):
        raise TypeError(f"expected a PipeWriter, not {type(writer).__name__}")
    protocol = _made_by(protocol_factory)
    transport = _WriteTransport(asyncio.get_running_loop(), writer, protocol)
    await asyncio.sleep(0)
    return transport, protocol


def _made_by(protocol_factory: Callable[[], P]) -> P:
    if not callable(protocol_factory):
        raise TypeError(
            "protocol_factory must be a callable that makes a protocol, "
            f"not {type(protocol_factory).__name__}"
        )
    return protocol_factory()


_transports: weakref.WeakKeyDictionary[PipeEnd, weakref.ref[_Transport]] = (
    weakref.WeakKeyDictionary()
)


class _Transport(asyncio.BaseTransport):
    """What both directions have in common."""

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self, loop: asyncio.AbstractEventLoop, end: PipeEnd, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__({"pipe": end})
        known = _transports.get(end)
        other = None if known is None else known()
        if other is not None and not other._loop.is_closed():
            # Loops know one callback per descriptor: a second would displace the first.
            raise ValueError(f"{end!r} has a transport already")
        fcntl(end, F_SETFL, fcntl(end, F_GETFL) | os.O_NONBLOCK)
        self._loop = loop
        self._end = end
        self._protocol: Any = protocol
        self._descriptor = end.fileno()
        self._closing = False
        _transports[end] = weakref.ref(self)
        loop.call_soon(protocol.connection_made, self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        """Close the end now; the protocol is told in the loop's next round."""
        if self._end.closed:
            return
        self._closing = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._end.close()
        self._loop.call_soon(self._protocol.connection_lost, error)

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} of {self._end!r}>"


class _ReadTransport(_Transport, asyncio.ReadTransport):
    _end: PipeReader

    def __init__(
        self, loop: asyncio.AbstractEventLoop, end: PipeReader, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__(loop, end, protocol)
        self._paused = True
        loop.call_soon(self.resume_reading)  # behind connection_made()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused = True
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        try:
            data = self._end.read(MOST)
        except OSError as error:
            self._finish(error)
            return
        if data:
            self._protocol.data_received(data)
        elif data is not None:  # EOF
            self._loop.remove_reader(self._descriptor)
            self._closing = True
            # (For one direction there is nothing to keep open, whatever the protocol answers.)
            self._loop.call_soon(self._protocol.eof_received)
            self._loop.call_soon(self._finish, None)


class _WriteTransport(_Transport, asyncio.WriteTransport):
    _end: PipeWriter

    def __init__(
        self, loop: asyncio.AbstractEventLoop, end: PipeWriter, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__(loop, end, protocol)
        self._waiting: collections.deque[memoryview] = collections.deque()
        self._size = 0  # bytes that wait
        self._paused = False  # whether the protocol has been told to
        self._high = self._low = 0
        self.set_write_buffer_limits()
        # With nobody to read, the descriptor shows readable; nothing else makes it so.
        loop.call_soon(self._watch_for_the_end)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """As ``close()``: what waits goes out first."""
        self.close()

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """``high``: by default the pipe's write size; ``low``: a quarter of ``high``."""
        if high is None:
            high = fcntl(self._end, F_GETPIPE_WRITE_SZ) if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._tell_protocol()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        if self._closing:
            return  # as other transports, after the connection was lost
        for data in list_of_data:
            view = memoryview(data).cast("B")
            done = 0
            if not self._waiting:
                done = self._put(view)
                if done < 0:
                    return
            if done < len(view):
                if not self._waiting:
                    self._loop.add_writer(self._descriptor, self._go_on)
                # A copy: it is the caller's again.
                self._waiting.append(memoryview(bytes(view[done:])))
                self._size += len(view) - done
        self._tell_protocol()

    def _put(self, view: memoryview) -> int:
        """How much the pipe has taken; -1: nobody reads."""
        try:
            return (self._end.write(view) or 0) if len(view) else 0
        except OSError as error:
            self._finish(error)
            return -1

    def _go_on(self) -> None:
        while self._waiting:
            view = self._waiting.popleft()
            done = self._put(view)
            if done < 0:
                return
            self._size -= done
            if done < len(view):
                self._waiting.appendleft(view[done:])
                break
        else:
            self._loop.remove_writer(self._descriptor)
            if self._closing:
                self._finish(None)
        self._tell_protocol()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._waiting:
                self._finish(None)

    def abort(self) -> None:
        self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        self._waiting.clear()
        self._size = 0
        super()._finish(error)

    def _watch_for_the_end(self) -> None:
        if not self._end.closed:
            self._loop.add_reader(self._descriptor, self._nobody_reads)

    def _nobody_reads(self) -> None:
        self._finish(BrokenPipeError() if self._waiting else None)

    def _tell_protocol(self) -> None:
        if not self._paused and self._size > self._high:
            self._paused = True
            self._protocol.pause_writing()
        elif self._paused and self._size <= self._low:
            self._paused = False
            self._protocol.resume_writing()
