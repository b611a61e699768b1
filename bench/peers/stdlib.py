"""The standard library's pipes and queue."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable
from typing import Any

from .base import Channel, Peer

# By name: one of the peers changes the default start method when it is imported.
FORK = mp.get_context("fork")


class ConnectionChannel(Channel):
    """Two connections, stdlib's or shmpipe's: the interface is the same."""

    def __init__(self, reader: Any, writer: Any, lock: Any = None) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = lock

    def sender(self) -> Callable[[bytes], Any]:
        send, lock = self._writer.send_bytes, self._lock
        if lock is None:
            return send

        def locked(data: bytes) -> None:
            with lock:
                send(data)

        return locked

    def receiver(self) -> Callable[[], Any]:
        return self._reader.recv_bytes

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        receive = self._reader.recv_bytes_into
        return lambda: receive(buffer)

    def putter(self) -> Callable[[Any], Any]:
        return self._writer.send

    def getter(self) -> Callable[[], Any]:
        return self._reader.recv

    def fileno(self) -> int:
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class StdlibPipe(Peer):
    """``multiprocessing.Pipe``: a pipe if one-way, a socket pair if duplex."""

    into = watchable = writers = True

    def __init__(self, duplex: bool) -> None:
        self.duplex = duplex
        self.name = f"multiprocessing.Pipe({'' if duplex else 'False'})"

    def channel(self, size: int, writers: int = 1) -> ConnectionChannel:
        # Several writers need a lock: their messages would mix.
        lock = FORK.Lock() if writers > 1 else None
        return ConnectionChannel(*FORK.Pipe(self.duplex), lock)

    def create_and_close(self) -> Callable[[], None]:
        create, duplex = FORK.Pipe, self.duplex

        def cycle() -> None:
            left, right = create(duplex)
            left.close()
            right.close()

        return cycle


class OsPipeChannel(Channel):
    """Bytes without borders: both sides know the size of a message, which saves a header."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._reader, self._writer = os.pipe()

    def sender(self) -> Callable[[bytes], Any]:
        write, fd = os.write, self._writer

        def send(data: bytes) -> None:
            # A blocking pipe takes all, except where a signal comes in between.
            sent = write(fd, data)
            while sent < len(data):
                sent += write(fd, memoryview(data)[sent:])

        return send

    def receiver(self) -> Callable[[], Any]:
        read, fd, size = os.read, self._reader, self._size

        def receive() -> bytes:
            data = read(fd, size)
            if len(data) == size:
                return data
            parts, got = [data], len(data)
            while got < size:
                parts.append(read(fd, size - got))
                got += len(parts[-1])
            return b"".join(parts)

        return receive

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        readv, fd, size, whole = os.readv, self._reader, self._size, memoryview(buffer)

        def receive() -> None:
            got = readv(fd, [whole])
            while got < size:
                got += readv(fd, [whole[got:]])

        return receive

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class OsPipe(Peer):
    name = "os.pipe"
    into = watchable = writers = True
    objects = False  # It has no messages, and pickles have no fixed size.

    def channel(self, size: int, writers: int = 1) -> OsPipeChannel:
        return OsPipeChannel(size)

    def create_and_close(self) -> Callable[[], None]:
        create, close = os.pipe, os.close

        def cycle() -> None:
            reader, writer = create()
            close(reader)
            close(writer)

        return cycle


class SimpleQueueChannel(Channel):
    def __init__(self) -> None:
        self._queue = FORK.SimpleQueue()

    def sender(self) -> Callable[[bytes], Any]:
        return self._queue.put

    def receiver(self) -> Callable[[], Any]:
        return self._queue.get

    putter, getter = sender, receiver

    def close(self) -> None:
        self._queue.close()


class SimpleQueue(Peer):
    """It only takes objects: the messages are pickled ``bytes``."""

    name = "multiprocessing.SimpleQueue"
    writers = True

    def channel(self, size: int, writers: int = 1) -> SimpleQueueChannel:
        return SimpleQueueChannel()
