"""What the workloads need to know of a peer.

The functions that a channel hands out are called in the measured loops, so they are the peer's own
methods wherever those do the job, with nothing around them.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any


def capacity(size: int) -> int:
    """Bytes of buffer for messages of ``size``, the same for all peers that are told one.

    A mebibyte is shmpipe's default.  Some peers cannot pass a message larger than their buffer.
    """
    return max(1 << 20, 2 * size + (1 << 16))


class Channel:
    """One direction, from a sending to a receiving process.

    Made before the fork.  ``sender()`` and ``putter()`` are called in the sending process, the
    others in the receiving one, which is set up first.
    """

    def sender(self) -> Callable[[bytes], Any]:
        raise NotImplementedError

    def receiver(self) -> Callable[[], Any]:
        """Receives a message as ``bytes``."""
        raise NotImplementedError

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        """Receives a message into the one buffer; only where the peer says ``into``."""
        raise NotImplementedError

    def putter(self) -> Callable[[Any], Any]:
        """Sends an object."""
        send, dumps = self.sender(), pickle.dumps
        return lambda obj: send(dumps(obj, 5))

    def getter(self) -> Callable[[], Any]:
        receive, loads = self.receiver(), pickle.loads
        return lambda: loads(receive())

    def fileno(self) -> int:
        """For ``selectors`` in the receiving process; only where the peer says ``watchable``."""
        raise NotImplementedError

    def leave(self) -> None:
        """In the sending or receiving process, when all has been received."""

    def close(self) -> None:
        """In the process that made the channel, when the others have ended."""


class Peer:
    """A way to send messages between processes."""

    name = ""
    requires: tuple[str, ...] = ()  # modules
    distribution: str | None = None  # on PyPI
    into = False  # receives into a buffer of the caller
    objects = True  # sends objects, be it by pickling them first
    watchable = False  # has a file descriptor that can be watched
    writers = False  # takes several sending processes
    ours = False

    def missing(self) -> str | None:
        """Why this peer cannot take part, if so."""
        for module in self.requires:
            try:
                importlib.import_module(module)
            except Exception as error:  # A peer that is broken must not break the run.
                return f"{type(error).__name__}: {error}"
        return None

    def channel(self, size: int, writers: int = 1) -> Channel:
        """A channel for messages of ``size`` bytes."""
        raise NotImplementedError

    def create_and_close(self) -> Callable[[], Any]:
        """A function that makes a channel, ready for use by both sides, and undoes it."""

        def cycle() -> None:
            channel = self.channel(1024)
            channel.receiver()
            channel.sender()
            channel.leave()
            channel.close()

        return cycle
