"""What an asynchronous connection does, whatever the event loop: on the public API only.

Everything here is one pattern: try, without waiting; if that was nothing, wait until the end's
descriptor shows ready; try again.

* A message is taken, or its last byte is put, in the step of the task that asked for it, and that
  task does not wait any more afterwards.  So a cancelled receive has taken nothing, and a cancelled
  send has either been completed or is given up.
* Tasks stand in line: the first waits for the descriptor, the others for the first.
* A descriptor may show ready for a call that then comes to nothing.  Where that repeats itself, as
  while another process receives a message larger than the pipe on the same end, there is a pause
  between two tries, a longer one each time.
* A descriptor that shows nothing is not trusted for ever: once a second a waiting task tries all
  the same.  A process that is killed between two instructions, after it has sent a message and
  before it has told so, costs a second and no more.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import Connection, SteppedSend
from ..errors import OutOfTime

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..connection import A, ItemType, Order, S

T = TypeVar("T")

LOOK_AGAIN = 1.0  # seconds
SOON = 0.001  # seconds: a wait that is over before has not been one
IN_VAIN = 3  # such waits in a row before there is a pause
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02  # seconds

_wrapped: weakref.WeakKeyDictionary[Connection, weakref.ref[Core]] = weakref.WeakKeyDictionary()


class Core:
    """An asynchronous connection but for how its event loop waits."""

    _turns_between_breaths = 16  # calls in a row that need not wait before others get a chance

    def __init__(self, connection: Connection) -> None:
        if not isinstance(connection, Connection):
            # With the module: others have a Connection, too.
            raise TypeError(
                "expected a shmpipe.Connection, as Pipe() makes them, "
                f"not {type(connection).__module__}.{type(connection).__qualname__}"
            )
        if connection.closed:
            raise OSError("handle is closed")
        known = _wrapped.get(connection)
        other = None if known is None else known()
        if other is not None and not other.closed:
            # Loops know one task per descriptor and direction: a second would displace the first.
            raise ValueError("the connection has an asynchronous wrapper already")
        self._connection = connection
        self._home: object = None  # the event loop that the lines are of
        self._lines: tuple[Any, Any] = (None, None)
        self._descriptors: dict[bool, int] = {}  # by whether for writing; made at the first wait
        self._sending: SteppedSend | None = None
        self._calls = 0
        self._closes = False  # the loop, in its own thread, is about to
        _wrapped[connection] = weakref.ref(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not copied, not pickled: TypeError.  ``connection`` can be sent to another process."""
        raise TypeError(f"cannot copy or pickle {self!r}; its connection can be pickled")

    # --- what event loops do differently ---------------------------------------------------------

    def _here(self) -> object:
        """The event loop that runs."""
        raise NotImplementedError

    def _line(self) -> AbstractAsyncContextManager[Any]:
        """A lock that lets tasks in one by one, in the order in which they came."""
        raise NotImplementedError

    async def _wait(self, descriptor: int, writing: bool, seconds: float) -> None:
        """Until the descriptor is ready or dropped, or the time is up."""
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        """Let others run; cancellable."""
        raise NotImplementedError

    def _drop(self, descriptor: int) -> None:
        """The descriptor is going to be closed: forget it, and end the wait for it."""
        raise NotImplementedError

    def _call_at_home(self, home: Any, call: Callable[[], None]) -> bool:
        """Have an event loop make the call if it runs in another thread; False: it does not."""
        raise NotImplementedError

    # --- states ----------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The connection that this is for.  Its calls may be used, too; to close it, close this."""
        return self._connection

    @property
    def closed(self) -> bool:
        """True after ``close()``."""
        return self._closes or self._connection.closed

    @property
    def readable(self) -> bool:
        """Whether this end receives."""
        return self._connection.readable

    @property
    def writable(self) -> bool:
        """Whether this end sends."""
        return self._connection.writable

    def close(self) -> None:
        """Close the connection.  Tasks that wait on it get OSError "handle is closed".

        Also outside of event loops, and where the one that it was used in is closed.  While that
        runs in another thread, it is what closes the connection, as the next thing that it does.

        A message that a task is in the middle of sending is given up.  BufferError: a message is
        lent.
        """
        self._connection._check_lent(False)
        if self._home is not None and self._call_at_home(self._home, self._close):
            self._closes = True
        else:
            self._close()

    def _close(self) -> None:
        """In the thread of the tasks: descriptors' numbers are forgotten before they are free."""
        if self._sending is not None:
            self._sending.cancel()
        for descriptor in self._descriptors.values():
            self._drop(descriptor)
        self._connection.close()

    async def aclose(self) -> None:
        """As ``close()``."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of {self._connection!r}>"

    # --- sending ---------------------------------------------------------------------------------

    async def send(self, obj: Any) -> None:
        """Send an object; it is pickled at once, its large buffers are read until it is sent.

        BrokenPipeError: nobody can receive any more.  OSError: closed, or read-only.  Cancelled, it
        sends nothing.
        """
        await self._send(self._connection.begin_send(obj))

    async def send_bytes(
        self, buf: ReadableBuffer, offset: int = 0, size: int | None = None
    ) -> None:
        """Send ``size`` bytes of a buffer from byte ``offset`` on, as one message.

        Errors as ``send``, and those of ``Connection.send_bytes``.
        """
        await self._send(self._connection.begin_send_bytes(buf, offset, size))

    async def send_array(self, a: Any) -> None:
        """Send a NumPy array without a pickle.

        Errors as ``send``, and those of ``Connection.send_array``.
        """
        await self._send(self._connection.begin_send_array(a))

    async def _send(self, sending: SteppedSend) -> None:
        with sending:
            async with self._line_of(True):
                await self._breathe()
                self._sending = sending
                try:
                    await self._until_done(True, partial(_step, sending))
                finally:
                    # Here, not after the line: the next one would find the turn taken.
                    sending.cancel()
                    if self._sending is sending:  # not so if this task's loop was closed meanwhile
                        self._sending = None

    # --- receiving -------------------------------------------------------------------------------

    async def recv(self) -> Any:
        """The next object.  EOFError: there is none, and nobody can send any more.

        OSError: closed, or write-only.  Cancelled, it has received nothing.
        """
        unpack = await self._receive(self._connection.recv_packed)
        return unpack()

    async def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """The next message as bytes.

        Errors as ``recv``, and those of ``Connection.recv_bytes``.
        """
        return await self._receive(partial(self._connection.recv_bytes, maxlength))

    async def recv_bytes_into(self, buf: WriteableBuffer, offset: int = 0) -> int:
        """The next message into a writable buffer, from byte ``offset`` on; returns its length.

        Errors as ``recv``, and those of ``Connection.recv_bytes_into``.  Cancelled, it may have
        written to the buffer, and the message is still to be received.
        """
        return await self._receive(partial(self._connection.recv_bytes_into, buf, offset))

    async def recv_array(self, out: A | None = None) -> A:
        """The next array, in new memory, or in ``out``.

        Errors as ``recv``, and those of ``Connection.recv_array``.  Cancelled, it may have written
        to ``out``, and the array is still to be received.
        """
        return await self._receive(partial(self._connection.recv_array, out))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            unpack = await self._receive(self._connection.recv_packed)
        except EOFError:
            raise StopAsyncIteration from None
        return unpack()

    async def _receive(self, call: Callable[..., T]) -> T:
        """What ``call(timeout=0.0)`` returns, once it does not raise TimeoutError."""
        async with self._line_of(False):
            await self._breathe()
            result: T = await self._until_done(False, partial(_take, call))
            return result

    # --- lending ---------------------------------------------------------------------------------

    def recv_view(self) -> AbstractAsyncContextManager[memoryview]:
        """``async with conn.recv_view() as view``: as ``Connection.recv_view``.

        Other tasks that receive on this end wait for the end of the block.
        """
        return self._lent(False, self._connection.recv_view)

    def reserve(self, n: int) -> AbstractAsyncContextManager[memoryview]:
        """``async with conn.reserve(n) as view``: as ``Connection.reserve``.

        Other tasks that send on this end wait for the end of the block.
        """
        return self._lent(True, partial(self._connection.reserve, n))

    def recv_array_view(self) -> AbstractAsyncContextManager[NDArray[Any]]:
        """As ``recv_view``, for ``Connection.recv_array_view``."""
        return self._lent(False, self._connection.recv_array_view)

    def reserve_array(
        self, shape: Any, dtype: ItemType[S], order: Order = "C"
    ) -> AbstractAsyncContextManager[NDArray[S]]:
        """As ``reserve``, for ``Connection.reserve_array``."""
        return self._lent(True, partial(self._connection.reserve_array, shape, dtype, order))

    @asynccontextmanager
    async def _lent(
        self, writing: bool, loan: Callable[..., AbstractContextManager[T]]
    ) -> AsyncIterator[T]:
        async with self._line_of(writing):
            await self._breathe()
            block: _Entered[T] = await self._until_done(writing, partial(_enter, loan))
            with block as value:
                yield value

    # --- waiting ---------------------------------------------------------------------------------

    def _line_of(self, writing: bool) -> AbstractAsyncContextManager[Any]:
        """Where to stand in line, in the event loop that runs."""
        here = self._here()
        if here is not self._home:
            self._move(here)
        line: AbstractAsyncContextManager[Any] = self._lines[writing]
        return line

    def _move(self, here: object) -> None:
        """From one event loop to another; tasks of one that was closed are given up.

        RuntimeError: tasks of one that was not are at work.
        """
        if any(line is not None and line.locked() for line in self._lines):
            if not getattr(self._home, "is_closed", bool)():
                raise RuntimeError(f"{self!r} is in use in another event loop")
            if self._sending is not None:
                self._sending.cancel()
        self._lines = self._line(), self._line()
        self._home = here

    async def _breathe(self) -> None:
        """Somebody who always finds something to do must not keep all others from running."""
        self._calls += 1
        if self._calls >= self._turns_between_breaths:
            self._calls = 0
            await self._pause(0)

    async def _until_done(self, writing: bool, attempt: Callable[[], tuple[bool, Any]]) -> Any:
        """The second of what ``attempt()`` returns, once the first of it is true.

        Until then the second tells how far it has come, in whatever numbers.
        """
        before: Any = None
        vain = 0
        while True:
            done, result = attempt()
            if done:
                return result
            if result != before:
                before, vain = result, 0
            if vain > IN_VAIN:
                await self._pause(min(FIRST_PAUSE * 2 ** (vain - IN_VAIN), LONGEST_PAUSE))
            descriptor = self._descriptors.get(writing)
            if descriptor is None:
                descriptor = self._descriptor(writing)
            began = time.monotonic()
            await self._wait(descriptor, writing, LOOK_AGAIN)
            self._calls = 0
            vain = vain + 1 if time.monotonic() - began < SOON else 0

    def _descriptor(self, writing: bool) -> int:
        half = self._connection.outgoing if writing else self._connection.incoming
        assert half is not None
        descriptor = self._descriptors[writing] = half.fileno()
        return descriptor


def _step(sending: SteppedSend) -> tuple[bool, int]:
    return sending.step(), sending.left


def _take(call: Callable[..., Any]) -> tuple[bool, Any]:
    try:
        return True, call(timeout=0.0)
    except OutOfTime as error:
        return False, getattr(error, "kept", 0)


class _Entered(Generic[T]):
    """A block that has been entered already."""

    def __init__(self, block: AbstractContextManager[T], value: T) -> None:
        self._block = block
        self._values = [value]

    def __enter__(self) -> T:
        return self._values.pop()  # not kept: a reference would be one too many in the end

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, trace)


def _enter(loan: Callable[..., AbstractContextManager[T]]) -> tuple[bool, Any]:
    block = loan(timeout=0.0)
    try:
        return True, _Entered(block, block.__enter__())
    except OutOfTime as error:
        return False, getattr(error, "kept", 0)
