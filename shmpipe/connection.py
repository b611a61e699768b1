"""``Pipe()``: messages between processes, a drop-in for ``multiprocessing.Pipe``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import BufferTooShort, reduction
from typing import TYPE_CHECKING, Any, Literal

from . import control, objects
from .arguments import check_int, check_sizes, check_spin, check_wake
from .bytering import ByteRing
from .collecting import TOO_LONG
from .deadlines import deadline_of
from .descriptors import owned
from .doorbell import Doorbell, adopted, doorbells
from .ends import End, closed_handle
from .errors import OutOfTime
from .frames import DATA
from .lending import Received, Reserved
from .locking import parts
from .messages import (
    load,
    part_of,
    plain,
    target,
)
from .segment import PAGES, Segment
from .stepping import SteppedSend

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from numpy import dtype as DType
    from numpy import generic
    from numpy.typing import NDArray
    from typing_extensions import TypeVar

    from .policies import WakePolicy

    Order = Literal["C", "F"]

    # The type of ``out``, where that is given.
    A = TypeVar("A", bound=NDArray[Any], default=NDArray[Any])
    # That of the items, where ``dtype`` is one of NumPy's.
    S = TypeVar("S", bound=generic, default=Any)
    ItemType = type[S] | DType[S] | type[complex] | str | list[Any] | tuple[Any, ...]

FIRST_PAGES = 8
"""Pages a connection's ring starts with; it grows up to ``size`` when that proves too little."""


class Connection(End):
    """One end of a ``Pipe()``, with the interface of ``multiprocessing.connection.Connection``.

    It may be shared by threads and processes: messages never mix.  It can be inherited by fork,
    passed to processes under every start method, and sent through connections.

    Where ``timeout`` is a parameter it is in seconds; None or infinity: without limit; NaN:
    ValueError.  TimeoutError then says that nothing was sent or received: a message is there whole
    or not at all.  (What has come of a message larger than the pipe is kept for this process's next
    receiving call; the error is then a PartlyReceived.  Out of time, a call takes
    what is in the pipe, and no more than the pipe holds.)

    OSError "handle is closed": after ``close()``, also from a call that another thread is asleep in
    then.  OSError "connection is write-only" or "connection is read-only": the wrong end of a
    one-way pipe.
    """

    # --- sending ---------------------------------------------------------------------------------

    def send(self, obj: Any, *, timeout: float | None = None) -> None:
        """Send an object that can be pickled.

        Large NumPy arrays, bytes, bytearrays and PickleBuffers are copied straight into the pipe.
        Whatever pickling raises comes out before anything is sent.
        """
        sender = self._writing()
        deadline = None if timeout is None else deadline_of(timeout)
        kind, content, size = objects.dump(obj)
        sender.send(kind, content, size, deadline)

    def send_bytes(
        self,
        buf: ReadableBuffer,
        offset: int = 0,
        size: int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send ``size`` bytes of a contiguous buffer from byte ``offset`` on, as one message.

        ValueError: offset or size negative or beyond the buffer.  TypeError: not a buffer, or not
        contiguous.
        """
        sender = self._writing()
        deadline = None if timeout is None else deadline_of(timeout)
        if type(buf) is bytes and offset == 0 and size is None:
            view: Any = buf
        else:
            view = part_of(buf, offset, size)
        sender.send(DATA, view, len(view), deadline)

    def try_send_bytes(self, buf: ReadableBuffer, offset: int = 0, size: int | None = None) -> bool:
        """As ``send_bytes``, but False, and nothing sent, if that would have to wait.

        ValueError: the message is larger than the pipe, so that it always would.
        """
        sender = self._writing()
        view = part_of(buf, offset, size)
        if len(view) > sender.capacity():
            raise ValueError(
                f"a message of {len(view)} bytes never fits at once: "
                f"the pipe takes {sender.capacity()} (see size)"
            )
        try:
            sender.send(DATA, view, len(view), 0.0)
        except OutOfTime:
            return False
        return True

    def send_many(self, objs: Iterable[Any], *, timeout: float | None = None) -> int:
        """Send each object; returns how many.

        ``timeout`` is for all of them; TimeoutError leaves those before the last one sent.
        """
        self._writing()
        deadline = deadline_of(timeout)
        count = 0
        for obj in objs:
            sender = self._writing()
            kind, content, size = objects.dump(obj)
            sender.send(kind, content, size, deadline)
            count += 1
        return count

    def begin_send(self, obj: Any) -> SteppedSend:
        """Pickle an object as ``send`` does, to be sent in steps that never wait.

        For programs that wait elsewhere, as event loops do: ``step()`` of what is returned sends
        what there is space for, and is to be called again when ``outgoing.fileno()`` is writable.
        A message larger than the pipe goes out in parts; given up half-way, or if this process
        dies, nothing of it is received.  While it is half sent other senders wait; a call of this
        thread that sends, and resizing: OSError EBUSY; ``close()``: BufferError.
        """
        return SteppedSend(self, self._writing(), *objects.dump(obj))

    def begin_send_bytes(
        self, buf: ReadableBuffer, offset: int = 0, size: int | None = None
    ) -> SteppedSend:
        """As ``begin_send``, for what ``send_bytes`` sends, which is not copied before."""
        view = part_of(buf, offset, size)
        return SteppedSend(self, self._writing(), DATA, view, len(view))

    def send_array(self, a: Any, *, timeout: float | None = None) -> None:
        """Send an array from its own memory, without a pickle, for ``recv_array`` (or ``recv``).

        What ``numpy.asarray`` takes; in C or Fortran order, else it is copied first.  Type, byte
        order and shape are kept, subclasses are not.  TypeError: it refers to objects, has a mask,
        or is of a type that NumPy cannot describe in words.
        """
        sender = self._writing()
        deadline = deadline_of(timeout)
        from . import arrays

        kind, content, size = arrays.dump(a)
        sender.send(kind, content, size, deadline)

    def begin_send_array(self, a: Any) -> SteppedSend:
        """As ``begin_send``, for what ``send_array`` sends."""
        from . import arrays

        return SteppedSend(self, self._writing(), *arrays.dump(a))

    def reserve_array(
        self,
        shape: Any,
        dtype: ItemType[S],
        order: Order = "C",
        *,
        timeout: float | None = None,
    ) -> AbstractContextManager[NDArray[S]]:
        """Space for an array, sent when the block ends: ``with conn.reserve_array(...) as a``.

        As ``reserve``, errors and all.  The array holds what is left of earlier messages.  After
        the block it is an empty one; BufferError: something else than local variables of functions
        that are running (a slice, a tensor, an attribute) refers to it.  TypeError as
        ``send_array``, and for no shape, no type, or text of no length; ValueError: no array has
        that shape, or ``order`` is not "C" or "F".
        """
        from . import arrays

        return arrays.ReservedArray(
            self, self._writing(), shape, dtype, order, deadline_of(timeout)
        )

    def reserve(
        self, n: int, *, timeout: float | None = None
    ) -> AbstractContextManager[memoryview]:
        """Space for a message of ``n`` bytes, filled in place: ``with conn.reserve(n) as view``.

        The value is a writable view of the pipe's own memory (format "B", what it holds is left
        from earlier messages).  Leaving the block sends the message; leaving it by an exception
        sends nothing.  Inside the block, other threads and processes that share this end wait with
        what they want to send; a call of this thread that sends on it: OSError EBUSY.  ``close()``:
        BufferError.  Resizing the pipe: OSError EBUSY.

        ValueError: ``n`` is negative or larger than the pipe takes at once (``size`` less 8 bytes).
        On entering, TimeoutError: there was no space in time; BrokenPipeError: nobody can receive
        any more.  On leaving, BrokenPipeError likewise; BufferError: something, such as an array or
        a slice, still refers to the view.  Then nothing was sent, and what it refers to is zeros.
        TimeoutError on leaving: another process stands still in the middle of a call; nothing was
        sent.

        In a process forked inside the block nothing is lent: leaving the block does nothing there.
        """
        return Reserved(self, self._writing(), check_int("n", n), deadline_of(timeout))

    # --- receiving -------------------------------------------------------------------------------

    def recv(self, *, timeout: float | None = None) -> Any:
        """The next object.  EOFError: there is none, and nobody can send any more.

        Arrays are writable if the ones sent were.  Whatever unpickling raises costs this message
        only.
        """
        receiver = self._reading()
        deadline = None if timeout is None else deadline_of(timeout)
        return load(receiver.receive(None, deadline))

    def recv_packed(self, *, timeout: float | None = None) -> Callable[[], Any]:
        """The next object, received but not unpickled: call what is returned to have it.

        So what unpickling raises cannot be taken for what receiving does (EOFError, TimeoutError).
        """
        message = self._reading().receive(None, deadline_of(timeout))
        return partial(load, message)

    def recv_bytes(self, maxlength: int | None = None, *, timeout: float | None = None) -> bytes:
        """The next message as bytes.  EOFError as ``recv``.

        OSError "bad message length": it is longer than ``maxlength``; nothing can be received on
        this end any more, and the message is left to others that share it.  (It is lost where this
        process has a part of it already; or where it is an object that is longer by less than 1 %
        and 64 bytes, which only unpacking shows.)  ValueError: ``maxlength`` is negative.
        """
        receiver = self._reading()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")

        deadline = None if timeout is None else deadline_of(timeout)
        message: Any = receiver.receive(None, deadline, maxlength)
        if maxlength is not None:
            return self._if_not_longer(message, maxlength)
        return message if type(message) is bytes else plain(message)

    def _if_not_longer(self, message: Any, maxlength: int) -> bytes:
        """A message that was received, or TOO_LONG; the end is of no use any more if it is."""
        if message is not TOO_LONG:
            message = plain(message)
            if len(message) <= maxlength:
                return message  # type: ignore[no-any-return]
        if self._writable:
            self._readable = False
        else:
            self.close()
        raise OSError("bad message length")

    def try_recv_bytes(self, maxlength: int | None = None) -> bytes | None:
        """As ``recv_bytes``, but None instead of waiting.  EOFError: nothing can come any more."""
        try:
            return self.recv_bytes(maxlength, timeout=0.0)
        except OutOfTime:
            return None

    def recv_bytes_into(
        self, buf: WriteableBuffer, offset: int = 0, *, timeout: float | None = None
    ) -> int:
        """The next message into a writable buffer, from byte ``offset`` on; returns its length.

        multiprocessing.BufferTooShort: it does not fit, and is the exception's argument.
        ValueError: offset negative or beyond the buffer.  TypeError: the buffer is read-only, or
        not contiguous; this costs the message.
        """
        receiver = self._reading()
        deadline = None if timeout is None else deadline_of(timeout)
        if type(buf) is bytearray and offset == 0 and timeout is None:
            # Without a view, which would cost more than a small message does.
            message = receiver.receive_whole(buf, None)
            if type(message) is int:
                return message
            if message is not None:
                return _put(message, buf)
        whole = room = target(buf)
        try:
            if offset != 0:
                if offset < 0:
                    raise ValueError("negative offset")
                if offset > len(whole):
                    raise ValueError("offset too large")
                room = whole[offset:]
            message = receiver.receive(None if whole.readonly else room, deadline)
            if type(message) is int:
                return message
            if whole.readonly:
                message = plain(message)
                if len(message) > len(room):
                    raise BufferTooShort(message)
                raise TypeError("a contiguous read-write bytes-like object is required")
            return _put(message, room)
        finally:
            room.release()
            whole.release()

    def recv_view(self, *, timeout: float | None = None) -> AbstractContextManager[memoryview]:
        """The next message where it lies, without a copy: ``with conn.recv_view() as view``.

        The value is a read-only view (format "B", contiguous) of the message as ``recv_bytes``
        would return it; it is received once the block is left, in whatever way.  Inside the block,
        other threads and processes that share this end wait for the next message (to ``poll()`` and
        ``fileno()`` this one still shows); a call of this thread that receives: OSError EBUSY.
        ``close()``: BufferError.  Resizing the pipe: OSError EBUSY.

        A message larger than the pipe, or sent with buffers out of band (a large array), does not
        lie there in one piece: then the view is of a copy, and nothing else is kept waiting.

        On entering, EOFError and TimeoutError as ``recv``.  On leaving, BufferError: something,
        such as an array or a slice, still refers to the view; the message counts as received, and
        what refers to it sees zeros.  (Copy what is to stay, and delete what is not.)  And
        TimeoutError: another process stands still in the middle of a call; the message stays.

        If this process dies inside the block the message stays for others.  In a process forked
        inside the block nothing is lent: leaving the block does nothing there.
        """
        return Received(self, self._reading(), deadline_of(timeout))

    def recv_array(self, out: A | None = None, *, timeout: float | None = None) -> A:
        """The next array, in new memory, or in ``out``, of the same type and shape; writable.

        It comes straight from the pipe, unless ``out`` is neither in the order of the array sent.
        TypeError: the next message is not from ``send_array`` or ``reserve_array``, or is of
        another type than ``out``; ValueError: of another shape, or ``out`` is read-only.  Then the
        message stays.  EOFError and TimeoutError as ``recv``; ``out`` may have been written to.
        Nothing is unpickled, whoever sent it.
        """
        receiver = self._reading()
        deadline = deadline_of(timeout)
        from . import arrays

        return arrays.receive(receiver, out, deadline)  # type: ignore[return-value]

    def recv_array_view(
        self, *, timeout: float | None = None
    ) -> AbstractContextManager[NDArray[Any]]:
        """The next array where it lies, read-only: ``with conn.recv_array_view() as a``.

        As ``recv_view``; one that came in parts (larger than half of ``size``) is copied.  After
        the block the array is an empty one; BufferError: something else than local variables of
        functions that are running (a slice, a tensor, an attribute) refers to it.  TypeError as
        ``recv_array``.
        """
        from . import arrays

        return arrays.LentArray(self, self._reading(), deadline_of(timeout))

    def recv_many(self, max: int | None = None, *, timeout: float | None = None) -> list[Any]:
        """The next objects, in a list: waits for the first, takes the others that are there whole.

        At most ``max``.  EOFError and TimeoutError as ``recv``, if there is not even one.

        Whatever else ends it comes out at once, be it raised by unpickling or by a signal's handler
        (KeyboardInterrupt), and has the objects received before it in its attribute ``received``.
        So nothing waits behind the end's back: ``poll()``, ``fileno()`` and the other calls, also
        of other threads and processes, always mean the next message in the pipe.
        """
        if max is not None and max < 1:
            raise ValueError(f"max is {max}: at least 1 is allowed, or None")
        receiver = self._reading()
        deadline = deadline_of(timeout)
        objs: list[Any] = []
        try:
            objs.append(load(receiver.receive(None, deadline)))
            while max is None or len(objs) < max:
                message = self._another()
                if message is None:
                    break
                objs.append(load(message))
                del message
            return objs
        except BaseException as error:
            # (Exceptions may forbid attributes, but not this way.)
            BaseException.__setattr__(error, "received", objs)
            raise

    def _another(self) -> Any:
        """The next message, if it is there in one piece.

        (Of one that comes in parts this process would keep the first, and nobody would know.)
        """
        try:
            return self._reading().receive_whole(None, deadline_of(0.0))
        except OutOfTime:
            return None

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is something to receive, or EOF, within ``timeout`` seconds."""
        receiver = self._reading()
        try:
            return receiver.poll(deadline_of(timeout))
        except EOFError:
            return True

    def __iter__(self) -> Iterator[Any]:
        """The objects received, until EOF."""
        while True:
            try:
                message = self._reading().receive(None, None)
            except EOFError:
                return
            obj = load(message)  # whose own EOFError is not the end
            del message
            yield obj
            del obj

    def __reduce__(self) -> Any:
        segment, bell = self._segment, self._bell
        self._check_closed()
        # References, as long as the numbers are in use: another thread may close the end.
        memory, sock = segment.lend(self), bell.lend()
        return _rebuild, (
            reduction.DupFd(memory.fileno()),
            reduction.DupFd(sock.fileno()),
            *self._rings,
            self._readable,
            self._writable,
            self._spin,
        )


def _put(message: Any, room: bytearray | memoryview) -> int:
    """Move a message that was received elsewhere into ``room``; returns its length."""
    message = plain(message)
    if len(message) > len(room):
        raise BufferTooShort(message)
    room[: len(message)] = message
    return len(message)


# --- making and remaking -----------------------------------------------------------------------


def Pipe(
    duplex: bool = True,
    *,
    size: int = 4 << 20,
    write_size: int | None = None,
    max_size: int | None = None,
    spin: float | None = None,
    wake: WakePolicy = "write-size",
    context: Any = None,
) -> tuple[Connection, Connection]:
    """Two connected ends; with ``duplex=False`` the first only receives, the second only sends.

    size: capacity of each direction in bytes, rounded up to a power of two of at least a page: what
        can be sent before anybody receives.  Every message takes 8 bytes more, and a multiple of 8;
        one of more than half of ``size`` up to 128 more, since it passes through in parts, as
        larger ones do.  Memory is used only as it is needed: all of it by
        large messages, and by streams without a pause.
    write_size: bytes, rounded up to pages: a blocked sender is woken, and ``outgoing.fileno()``
        reported writable, only when so much is free.  Default: a quarter of ``size``.
    max_size, wake, spin: as for ``pipe()``.
    context: accepted for multiprocessing's sake; the ends work under every start method.

    Errors as for ``pipe()``.
    """
    spin = check_spin(spin)
    policy = check_wake(wake)
    if write_size is None:
        write_size = max(1, check_int("size", size) // 4)
    pages, threshold, max_pages = check_sizes(size, write_size, max_size)
    rings = 2 if duplex else 1
    segment = Segment.create(rings, max(pages, max_pages), closed_handle)
    kept = [parts(segment, number, ByteRing) for number in range(rings)]
    for locks in kept:
        control.first_settings(locks.ring, pages, threshold, policy)
        locks.ring.view[PAGES] = min(pages, FIRST_PAGES)
    left, right = doorbells(closed_handle, True)
    segment.name_doors(left.lend().fileno(), right.lend().fileno())
    first = Connection(segment, left, 0, 1 if duplex else -1, spin)
    return first, Connection(segment, right, 1 if duplex else -1, 0, spin)


def _rebuild(
    memory: Any,
    socket: Any,
    inward: int,
    outward: int,
    readable: bool,
    writable: bool,
    spin: float | None,
) -> Connection:
    """An end that has come from another process."""
    received = owned(memory.detach)
    sock = adopted(socket.detach)
    segment = Segment.attach(received, closed_handle)
    connection = Connection(segment, Doorbell(sock, closed_handle, True), inward, outward, spin)
    segment.keep(received)
    connection._readable, connection._writable = readable, writable
    return connection
