"""A link and what can be done with it, so that sequences of calls can be compared.

A `Link` takes steps, each a tuple of a method's name and arguments, and turns whatever comes out
into a comparable `Outcome`. It keeps account of what is in flight and leaves out what would block.
"""

from __future__ import annotations

import array
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import BufferTooShort
from typing import Any

import numpy

from .links import make_link
from .subjects import payload

Step = tuple[Any, ...]
Outcome = tuple[Any, ...]

# What may be in flight without a reader: the standard library's capacity depends on the count and
# the sizes of the messages, and this is below it for either of its kinds of pipe.
MOST_MESSAGES = 12
MOST_PAGES = 14
LARGEST = 5 << 20
NOT_TAKEN: Outcome = ("would block",)


# ---------------------------------------------------------------- what is sent


class FailsToPickle:
    def __reduce__(self) -> Any:
        raise LookupError("cannot be pickled")


class FailsToUnpickle:
    def __reduce__(self) -> Any:
        return int, ("not a number",)


def make_object(name: str, size: int) -> Any:
    """An object by name; those of a size have about so many bytes."""
    small: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "number": lambda: size,
        "text": lambda: "é" * size,
        "bytes": lambda: payload(1, size),
        "bytearray": lambda: bytearray(payload(2, size)),
        "list": lambda: [payload(number, size // 10) for number in range(10)],
        "array": lambda: numpy.arange(size, dtype=numpy.uint8),
        "doubles": lambda: {"a": numpy.arange(size // 8, dtype=float).reshape(-1, 1), "b": [1]},
        "two arrays": lambda: (numpy.zeros(size // 2, numpy.int8), numpy.ones(size // 16)),
        "error": lambda: ValueError("text", size),
        "lambda": lambda: lambda: 0,
        "lock": lambda: [payload(3, size), threading.Lock()],
        "fails to pickle": FailsToPickle,
        "fails to unpickle": lambda: [payload(4, size), FailsToUnpickle()],
    }
    return small[name]()


OBJECT_NAMES = (
    ("none", "number", "text", "bytes", "bytearray", "list", "array", "doubles", "two arrays")
    + ("error", "lambda", "lock", "fails to pickle", "fails to unpickle")
)  # fmt: skip


def make_buffer(name: str, size: int) -> Any:
    """Something to give to send_bytes, of `size` bytes or as near as its items allow."""
    data = payload(size, size)
    if name == "bytes":
        return data
    if name == "bytearray":
        return bytearray(data)
    if name == "memoryview":
        return memoryview(b"<<" + data + b">>")[2:-2]
    if name == "read-only char":
        return memoryview(data).cast("c")
    if name == "short":
        return array.array("h", data[: size // 2 * 2])
    if name == "double":
        return memoryview(array.array("d", data[: size // 8 * 8]))
    if name == "rows":
        return numpy.frombuffer(data[: size // 16 * 16].ljust(16), ">i4").reshape(-1, 4)
    if name == "strided":
        return memoryview(data.ljust(4))[::2]
    if name == "strided int":
        return memoryview(array.array("i", data[: size // 4 * 4].ljust(8)))[::-1]
    if name == "pickle":
        return pickle.dumps(("sent as bytes", data))
    if name == "text":
        return "text"
    return None


BUFFER_NAMES = (
    ("bytes", "bytearray", "memoryview", "read-only char", "short", "double", "rows", "pickle")
    + ("strided", "text", "none")
    # The standard library of Python 3.10 copied those.
    + (("strided int",) if sys.version_info >= (3, 11) else ())
)  # fmt: skip


def make_target(name: str, size: int) -> Any:
    """Something for recv_bytes_into to fill."""
    if name == "array":
        return array.array("B", bytes(size))
    if name == "slice":
        return memoryview(bytearray(size + 4))[2 : size + 2]
    if name == "numpy":
        return numpy.zeros(size, numpy.int8)
    if name == "double":
        return array.array("d", bytes(size // 8 * 8))
    return bytearray(size)


# ---------------------------------------------------------------- one link


@dataclass
class InFlight:
    """A message that has been sent and not been received."""

    size: int
    pickled: bool  # its bytes are those of a pickle, which two implementations write differently


class Link:
    """Two ends, what is in flight between them, and what can be done with them."""

    def __init__(self, kind: str, duplex: bool, options: dict[str, Any]) -> None:
        self.kind = kind
        a, b = make_link(kind, duplex, **(options if kind == "shmpipe" else {}))
        self.ends = {"a": a, "b": b}
        self.in_flight: dict[str, list[InFlight]] = {"a": [], "b": []}  # by the end it goes to

    def dispose(self) -> None:
        for end in self.ends.values():
            end.close()

    def do(self, step: Step) -> Outcome:
        """Take one step; what came out of it, in comparable form."""
        try:
            return getattr(self, step[0])(*step[1:])  # type: ignore[no-any-return]
        except BufferTooShort as error:
            return ("BufferTooShort", error.args)
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            # A socket whose peer closed with data unread says so; a pipe, and ours, do not.
            gone = isinstance(error, ConnectionResetError)
            return ("gone",) if gone or not error.args else ("gone", *self._gone(error))
        except (OSError, ValueError) as error:
            return (type(error).__name__, str(error))
        except Exception as error:
            return (type(error).__name__,)

    def _gone(self, error: BaseException) -> tuple[Any, ...]:
        # "Ran out of input" is what unpickling an empty message says; the others end the link.
        return (str(error),) if isinstance(error, EOFError) else ()

    @staticmethod
    def other(name: str) -> str:
        return "b" if name == "a" else "a"

    def _would_block(self, name: str) -> bool:
        """Whether a receive on this end would wait."""
        end, peer = self.ends[name], self.ends[self.other(name)]
        if end.closed or not end.readable or peer.closed:
            return False
        return not self.in_flight[name]

    def _fits(self, name: str, size: int) -> bool:
        """Whether this end can send so much without waiting."""
        waiting = self.in_flight[self.other(name)]
        pages = sum(message.size // 4096 + 2 for message in waiting)
        return len(waiting) < MOST_MESSAGES and pages + size // 4096 + 2 <= MOST_PAGES

    def _sent(self, name: str, size: int, pickled: bool) -> None:
        self.in_flight[self.other(name)].append(InFlight(size, pickled))

    def _front(self, name: str) -> InFlight | None:
        return self.in_flight[name][0] if self.in_flight[name] else None

    def _take(self, name: str) -> None:
        """A receive that got as far as taking a message off has done so."""
        if self.in_flight[name]:
            self.in_flight[name].pop(0)

    # Each step's name is one of these methods; `name` is the end that is called.

    def send(self, name: str, what: str, size: int) -> Outcome:
        if not self._fits(name, 4 * size):
            return NOT_TAKEN
        value = self.ends[name].send(make_object(what, size))
        self._sent(name, 4 * size, True)
        return ("ok", value)

    def send_bytes(
        self, name: str, what: str, length: int, offset: Any, size: Any, by_name: bool
    ) -> Outcome:
        if not self._fits(name, length):
            return NOT_TAKEN
        end, buffer = self.ends[name], make_buffer(what, length)
        if by_name:
            value = end.send_bytes(buf=buffer, size=size, offset=offset)
        elif size is not None:
            value = end.send_bytes(buffer, offset, size)
        elif offset:
            value = end.send_bytes(buffer, offset)
        else:
            value = end.send_bytes(buffer)
        sent = memoryview(buffer).nbytes - offset if size is None else size
        self._sent(name, sent, False)
        return ("ok", value)

    def large(self, name: str, size: int, how: str) -> Outcome:
        """A thread sends what does not fit, while the peer receives that and all before it."""
        sender, receiver = self.ends[name], self.ends[self.other(name)]
        usable = not sender.closed and not receiver.closed
        if not usable or not sender.writable or not receiver.readable:
            return NOT_TAKEN
        data = make_object(how, size) if how in OBJECT_NAMES else payload(size, size)
        call = sender.send if how in OBJECT_NAMES else sender.send_bytes
        thread = threading.Thread(target=call, args=(data,), daemon=True)
        thread.start()
        earlier = [self._receive(self.other(name)) for _ in self.in_flight[self.other(name)][:]]
        if how in OBJECT_NAMES:
            got = receiver.recv()
        elif how == "into":
            target = bytearray(size + 5)
            got = (receiver.recv_bytes_into(target, 3), target)
        else:
            got = receiver.recv_bytes()
        thread.join(30)
        return ("ok", earlier, comparable(got), thread.is_alive())

    def _receive(self, name: str) -> Any:
        """Take the next message off in a way that works whatever it holds."""
        message = self._front(name)
        data = self.ends[name].recv_bytes()
        self._take(name)
        return self._unpickled(data) if message and message.pickled else data

    @staticmethod
    def _unpickled(data: Any) -> Any:
        try:
            return comparable(pickle.loads(data))
        except Exception as error:
            return repr(error)

    def recv(self, name: str) -> Outcome:
        if self._would_block(name):
            return NOT_TAKEN
        try:
            return ("ok", comparable(self.ends[name].recv()))
        finally:
            self._received(name)

    def _received(self, name: str) -> None:
        if not self.ends[name].closed and self.ends[name].readable:
            self._take(name)

    def recv_bytes(self, name: str, maxlength: Any) -> Outcome:
        message = self._front(name)
        if self._would_block(name):
            return NOT_TAKEN
        if message and message.pickled and isinstance(maxlength, int) and maxlength >= 0:
            # Its length is not comparable, so the outcome must not depend on it.
            maxlength = LARGEST * 2
        end = self.ends[name]
        data = end.recv_bytes() if maxlength == "none" else end.recv_bytes(maxlength)
        self._take(name)
        return ("ok", self._unpickled(data) if message and message.pickled else data)

    def recv_bytes_into(self, name: str, what: str, length: int, offset: Any) -> Outcome:
        message = self._front(name)
        if self._would_block(name):
            return NOT_TAKEN
        if message and message.pickled:
            what, length = "bytearray", LARGEST
        if what == "double" and message and (message.size % 8 or (offset or 0) % 8):
            # The standard library leaves out the bytes that do not fill an item.
            what = "bytearray"
        target, end = make_target(what, length), self.ends[name]
        try:
            value = end.recv_bytes_into(target) if offset is None else end.recv_bytes_into(
                target, offset
            )  # fmt: skip
        except BufferTooShort:
            self._take(name)
            raise
        self._take(name)
        data = memoryview(target).tobytes()
        if message and message.pickled:
            start = offset or 0
            return ("ok", self._unpickled(data[start : start + value]))
        return ("ok", value, data)

    def poll(self, name: str, timeout: Any) -> Outcome:
        if timeout is None and self._would_block(name):
            return NOT_TAKEN
        return ("ok", self.ends[name].poll(timeout))

    def states(self, name: str) -> Outcome:
        end = self.ends[name]
        return ("ok", end.closed, end.readable, end.writable)

    def fileno(self, name: str) -> Outcome:
        return ("ok", self.ends[name].fileno() >= 0)

    def close(self, name: str) -> Outcome:
        self.in_flight[name].clear()
        return ("ok", self.ends[name].close())

    def leave_with(self, name: str) -> Outcome:
        with self.ends[name] as end:
            self.in_flight[name].clear()
            return ("ok", end is self.ends[name])


def comparable(value: Any) -> Any:
    """A received object as something that == compares well, its types included."""
    if isinstance(value, numpy.ndarray):
        return ("array", value.dtype.str, value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [comparable(item) for item in value])
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, Exception):
        return (type(value).__name__, value.args)
    return (type(value).__name__, value)
