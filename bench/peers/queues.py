"""Queues in shared memory, made before the fork: faster-fifo and dejaq."""

from __future__ import annotations

import logging
import multiprocessing as mp
from collections.abc import Callable
from typing import Any

from .base import Channel, Peer, capacity


class QueueChannel(Channel):
    """Takes any object; the messages of the byte workloads are ``bytes``."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def sender(self) -> Callable[[bytes], Any]:
        return self._queue.put

    def receiver(self) -> Callable[[], Any]:
        return self._queue.get

    putter, getter = sender, receiver

    def close(self) -> None:
        # Both give their memory back when the queue object goes.
        del self._queue


class FasterFifoChannel(QueueChannel):
    """Bytes go through a queue of their own that does without pickling, as it allows."""

    def __init__(self, size: int) -> None:
        from faster_fifo import Queue

        super().__init__(Queue(capacity(size)))
        self._raw = Queue(capacity(size), loads=bytes, dumps=lambda data: data)

    def sender(self) -> Callable[[bytes], Any]:
        return self._raw.put

    def receiver(self) -> Callable[[], Any]:
        return self._raw.get

    def close(self) -> None:
        super().close()
        del self._raw


class FasterFifo(Peer):
    name = "faster-fifo"
    distribution = "faster-fifo"
    requires = ("faster_fifo", "faster_fifo_reduction")
    writers = True

    def channel(self, size: int, writers: int = 1) -> Channel:
        return FasterFifoChannel(size)

    def create_and_close(self) -> Callable[[], Any]:
        from faster_fifo import Queue

        return Queue


class Dejaq(Peer):
    name = "dejaq"
    distribution = "dejaq"
    requires = ("dejaq",)
    writers = True

    def missing(self) -> str | None:
        # It takes over the logging and the start method of the process that imports it.
        handlers = list(logging.root.handlers)
        level = logging.root.level
        method = mp.get_start_method(allow_none=True)
        try:
            return super().missing()
        finally:
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
            mp.set_start_method(method, force=True)

    def channel(self, size: int, writers: int = 1) -> Channel:
        from dejaq import DejaQueue

        return QueueChannel(DejaQueue(capacity(size)))

    def create_and_close(self) -> Callable[[], Any]:
        from dejaq import DejaQueue

        return lambda: DejaQueue(capacity(0))
