"""An end of a ``Pipe()``: what it holds, what it is ready for, and how it is given up."""

from __future__ import annotations

import os
from sys import is_finalizing
from typing import TYPE_CHECKING, Any

from . import objects
from .bytering import ByteRing
from .doorbell import Doorbell
from .halves import Half
from .keeping import keeper_of
from .locking import parts
from .readers import ReaderSide
from .receiving import Receiver
from .segment import Segment
from .sending import Sender
from .stats import PipeStats
from .writers import WriterSide

if TYPE_CHECKING:
    from typing_extensions import Self


def closed_handle() -> Exception:
    return OSError("handle is closed")


class End:
    """Everything of a ``Connection`` but the sending and the receiving."""

    def __init__(
        self, segment: Segment, bell: Doorbell, inward: int, outward: int, spin: float | None
    ) -> None:
        """Rings of ``segment`` by number, -1 for none."""
        self._open = False  # until the construction has succeeded
        self._segment: Any = segment
        self._bell: Any = bell
        self._rings = (inward, outward)
        self._spin = spin
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        if inward >= 0:
            locks = parts(segment, inward, ByteRing)
            reader = ReaderSide(locks.ring, locks, bell, spin)
            self._receiver = Receiver(reader, locks, keeper_of(segment, inward), objects.Message)
            segment.sides.add(id(reader), reader)
        if outward >= 0:
            locks = parts(segment, outward, ByteRing)
            writer = WriterSide(locks.ring, locks, bell, spin)
            self._sender = Sender(writer, locks.writer_turn)
            segment.sides.add(id(writer), writer)
        self._readable = inward >= 0
        self._writable = outward >= 0
        self._open = True

    # --- states ----------------------------------------------------------------------------------

    def _check_closed(self) -> None:
        if not self._open:
            raise closed_handle()

    def _check_lent(self, sends: bool = True) -> None:
        """BufferError: a message is lent, or (``sends``) one in steps is in the middle."""
        for part in (self._sender, self._receiver):
            loan = None if part is None else part.turn.loan()
            # (One that waits for space in another thread has nothing lent yet.)
            if loan is None or loan.connection is not self or not (sends or loan.lends):
                continue
            if loan.has_begun():
                raise BufferError("cannot close a connection while a message is lent")

    # (What is needed is loaded first: another thread may close the end after the check.)

    def _reading(self) -> Receiver:
        receiver = self._receiver
        if not self._open:
            raise closed_handle()
        if not self._readable or receiver is None:
            raise OSError("connection is write-only")
        return receiver

    def _writing(self) -> Sender:
        sender = self._sender
        if not self._open:
            raise closed_handle()
        if not self._writable or sender is None:
            raise OSError("connection is read-only")
        return sender

    @property
    def closed(self) -> bool:
        """True after ``close()``."""
        return not self._open

    @property
    def readable(self) -> bool:
        """Whether this end receives."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether this end sends."""
        return self._writable

    # (None goes by the name of Any: who uses a direction knows that the end has it.)

    @property
    def incoming(self) -> Half | Any:
        """The direction this end receives from; None if there is none."""
        receiver = self._receiver
        self._check_closed()
        return Half(self, receiver.side, os.O_RDONLY) if receiver else None

    @property
    def outgoing(self) -> Half | Any:
        """The direction this end sends to; None if there is none."""
        sender = self._sender
        self._check_closed()
        return Half(self, sender.side, os.O_WRONLY) if sender else None

    def _main_half(self) -> Half:
        half = self.outgoing or self.incoming
        assert half is not None
        return half

    def fileno(self) -> int:
        """A descriptor that is readable when a message can be received, or at EOF.

        For watching only.  (On an end that only sends: writable when a send would not block.)
        """
        half = self.incoming or self.outgoing
        assert half is not None
        return half.fileno()

    def close(self) -> None:
        """Give up this process's hold on the end; again: nothing.

        BufferError: it has lent a message (``recv_view``, ``reserve``) whose block has not ended.
        """
        self._check_lent()
        self._open = False
        segment, receiver = self._segment, self._receiver
        if segment is None:
            return
        # If an exception ends this half-way, the next call goes through all of it once more.
        for part in (self._sender, receiver):
            if part is not None:
                part.side.leave()
        if receiver is not None:
            receiver.forget()
        segment.drop(self)
        # With the last end in this process the mapping goes.
        self._sender = self._receiver = self._bell = None
        self._segment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):  # its construction may have failed
            try:
                self.close()
            except Exception:
                # When the interpreter ends, modules are emptied before the objects that others keep
                # are freed: this one's names are None then.  The kernel closes what is left.
                if is_finalizing is not None and not is_finalizing():
                    raise

    def __repr__(self) -> str:
        state = (
            "closed"
            if not self._open
            else "/".join(
                word for word, on in (("recv", self._readable), ("send", self._writable)) if on
            )
        )
        return f"<{type(self).__module__}.{type(self).__qualname__} {state}>"

    # --- knobs -----------------------------------------------------------------------------------

    def stats(self) -> PipeStats:
        """What the outgoing direction has counted (on an end that only receives, the incoming)."""
        return self._main_half().stats()

    def _fcntl(self, cmd: int, arg: int) -> int:
        return self._main_half()._fcntl(cmd, arg)

    def _ioctl(self, request: int) -> int:
        return self._main_half()._ioctl(request)
