"""send_bytes, recv_bytes and recv_bytes_into as the standard library has them, and a bit better."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import pickle
import sys
from collections.abc import Callable
from multiprocessing import BufferTooShort
from typing import Any

import numpy
import pytest

from .links import MiB, both_kinds, both_ways, fill_link, link_of, numbered
from .support import run_child, run_thread
from .test_connection_api import raises_os_error

# ---------------------------------------------------------------- send_bytes

INTEGERS = array.array("i", range(1, 6))
BUFFERS: dict[str, Any] = {
    "nothing": b"",
    "bytes": b"some bytes",
    "bytearray": bytearray(b"a bytearray"),
    "array of int": INTEGERS,
    "array of double": array.array("d", [1.5, -2.5]),
    "memoryview": memoryview(b"0123456789")[2:7],
    "memoryview of signed char": memoryview(b"\x80\x7f").cast("b"),
    "memoryview of char": memoryview(b"abc").cast("c"),
    "memoryview of bool": memoryview(b"\0\1\1").cast("?"),
    "memoryview of int": memoryview(INTEGERS)[1:4],
    "memoryview of two dimensions": memoryview(bytes(range(24))).cast("i", (2, 3)),
    "array of no dimension": numpy.array(3.5),
    "array of three dimensions": numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4),
    "foreign byte order": numpy.arange(5, dtype=">i4"),
    "ctypes": (ctypes.c_int * 3)(1, 2, 3),
    "transposed twice": numpy.arange(6.0).reshape(2, 3).T.T,
}

BAD_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "text": ("text",),
    "None": (None,),
    "number": (3,),
    "list": ([1, 2],),
    "strided": (memoryview(b"abcdef")[::2],),
    "strided, of int": (memoryview(INTEGERS)[::2],),
    "reversed": (memoryview(b"abcdef")[::-1],),
    "Fortran order, of int": (numpy.zeros((3, 4), "i4", "F"),),
    "offset None": (b"abc", None),
    "offset text": (b"abc", "1"),
    "offset float": (b"abc", 1.0),
    "size text": (b"abc", 0, "1"),
    "size float": (b"abc", 0, 1.0),
}


def raw(buffer: Any) -> bytes:
    return bytes(memoryview(buffer).tobytes())


@both_kinds
@both_ways
@pytest.mark.parametrize("name", BUFFERS)
def test_buffers(kind: str, duplex: bool, name: str) -> None:
    buffer = BUFFERS[name]
    data = raw(buffer)
    with link_of(kind, duplex) as (receiver, sender):
        assert sender.send_bytes(buffer) is None
        received = receiver.recv_bytes()
        assert received == data and type(received) is bytes
        # Offset and size count bytes, whatever the items are.
        if len(data) >= 2:
            sender.send_bytes(buffer, 1)
            sender.send_bytes(buffer, 1, len(data) - 2)
            sender.send_bytes(buffer, offset=len(data))
            sender.send_bytes(buf=buffer, size=1)
            parts = [receiver.recv_bytes() for _ in range(4)]
            assert parts == [data[1:], data[1:-1], b"", data[:1]]


# The standard library counts rows where it should count bytes, or refuses.
@both_ways
@pytest.mark.parametrize(
    "buffer",
    [
        numpy.arange(12, dtype=numpy.uint8).reshape(3, 4),
        numpy.zeros((3, 0), numpy.uint8),
        numpy.array(7, numpy.uint8),
        numpy.zeros(3, [("a", "i4"), ("b", "f8")]),
        numpy.arange(3, dtype="<u8").view("<c8"),
    ],
    ids=["rows of bytes", "empty rows", "one byte", "structures", "complex"],
)
def test_buffers_that_only_ours_takes(duplex: bool, buffer: Any) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        sender.send_bytes(buffer)
        assert receiver.recv_bytes() == raw(buffer)
        if buffer.nbytes > 1:
            sender.send_bytes(buffer, 1, buffer.nbytes - 2)
            assert receiver.recv_bytes() == raw(buffer)[1:-1]


@both_kinds
@both_ways
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((b"abc", -1), "offset is negative"),
        ((b"abc", 4), "buffer length < offset"),
        ((b"", 1), "buffer length < offset"),
        ((b"abc", 0, -1), "size is negative"),
        ((b"abc", -1, -1), "offset is negative"),
        ((b"abc", 0, 4), "buffer length < offset + size"),
        ((b"abc", 3, 1), "buffer length < offset + size"),
        ((b"abc", 4, 0), "buffer length < offset"),
        ((INTEGERS, 21), "buffer length < offset"),
        ((INTEGERS, 19, 2), "buffer length < offset + size"),
        ((b"abc", 1, 1 << 70), "buffer length < offset + size"),
    ],
)
def test_bad_offset_or_size(kind: str, duplex: bool, arguments: Any, text: str) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        with pytest.raises(ValueError, match=f"^{text.replace('+', '[+]')}$"):
            sender.send_bytes(*arguments)
        assert not receiver.poll()


@both_kinds
@both_ways
@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_types(kind: str, duplex: bool, name: str) -> None:
    if kind == "stdlib" and "of int" in name and sys.version_info < (3, 11):
        pytest.skip("the standard library copied those in Python 3.10")
    with link_of(kind, duplex) as (receiver, sender):
        with pytest.raises(TypeError):
            sender.send_bytes(*BAD_ARGUMENTS[name])
        assert not receiver.poll()


@both_ways
def test_large_strided_buffer_leaves_the_link_whole(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        for buffer in (memoryview(bytes(200_000))[::2], numpy.zeros((300, 300)).T):
            with pytest.raises(TypeError):
                sender.send_bytes(buffer)
        sender.send_bytes(b"next")
        assert receiver.recv_bytes() == b"next"


@both_kinds
@both_ways
def test_sent_buffer_may_change_afterwards(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        buffer = bytearray(b"before")
        sender.send_bytes(buffer)
        buffer[:] = b"after"  # also: nobody holds a view of it, so it may be resized
        assert receiver.recv_bytes() == b"before"


@both_kinds
@both_ways
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4095, 4096, 4097, 16384, 16385, 65536, 5 * MiB])
def test_sizes(kind: str, duplex: bool, size: int) -> None:
    data = numbered(size, size)
    with link_of(kind, duplex) as (receiver, sender):
        thread = run_thread(lambda: [sender.send_bytes(data) for _ in range(3)])
        assert receiver.recv_bytes() == data
        assert receiver.recv_bytes(size) == data
        room = bytearray(size + 3)
        assert receiver.recv_bytes_into(room, 1) == size
        assert room[1 : size + 1] == data and room[size + 1 :] == b"\0\0" and room[0] == 0
        thread.join()


# ---------------------------------------------------------------- recv_bytes


@both_kinds
@both_ways
def test_maxlength(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for maxlength in (10, 11, 1 << 40, None):
            sender.send_bytes(b"0123456789")
            assert receiver.recv_bytes(maxlength) == b"0123456789"
        sender.send_bytes(b"")
        assert receiver.recv_bytes(maxlength=0) == b""
        with pytest.raises(ValueError, match=r"^negative maxlength$"):
            receiver.recv_bytes(-1)
        with pytest.raises(TypeError):
            receiver.recv_bytes("10")
        sender.send_bytes(b"still works")
        assert receiver.recv_bytes() == b"still works"


@both_kinds
@both_ways
@pytest.mark.parametrize("size", [10, 40_000])
def test_message_beyond_maxlength(kind: str, duplex: bool, size: int) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(bytes(size))
        sender.send_bytes(b"behind it")
        with raises_os_error("bad message length"):
            receiver.recv_bytes(5)
        assert receiver.closed is not duplex
        if duplex:
            # Nothing can be received any more, but the other direction works.
            assert (receiver.readable, receiver.writable) == (False, True)
            for call in (receiver.recv, receiver.recv_bytes, receiver.poll):
                with raises_os_error("connection is write-only"):
                    call()
            receiver.send("other way")
            assert sender.recv() == "other way"
        else:
            with raises_os_error("handle is closed"):
                receiver.recv_bytes()
            with pytest.raises(BrokenPipeError):
                sender.send("x")


# ---------------------------------------------------------------- recv_bytes_into


def shared_map() -> mmap.mmap:
    return mmap.mmap(-1, 16)


TARGETS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(16),
    "array of int": lambda: array.array("i", [0] * 4),
    "array of double": lambda: array.array("d", [0.0] * 2),
    "memoryview": lambda: memoryview(bytearray(20))[2:18],
    "memoryview of int": lambda: memoryview(bytearray(16)).cast("i"),
    "memoryview of char": lambda: memoryview(bytearray(16)).cast("c"),
    "mmap": shared_map,
    "ctypes": lambda: (ctypes.c_short * 8)(),
    "numpy": lambda: numpy.zeros(4, numpy.float32),
}


@both_kinds
@both_ways
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("size", "offset"), [(0, 0), (0, 16), (8, 0), (8, 8), (16, 0)])
def test_into(kind: str, duplex: bool, name: str, size: int, offset: int) -> None:
    target = TARGETS[name]()
    data = bytes(range(1, size + 1))
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(data)
        assert receiver.recv_bytes_into(target, offset) == size
        expected = (bytes(offset) + data).ljust(16, b"\0")
        assert raw(target) == expected
        assert not receiver.poll()


@both_kinds
@both_ways
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("size", "offset"), [(17, 0), (16, 8), (1, 16), (40_000, 0), (40_000, 16)])
def test_into_too_short(kind: str, duplex: bool, name: str, size: int, offset: int) -> None:
    target = TARGETS[name]()
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(numbered(size, size))
        sender.send_bytes(b"next")
        with pytest.raises(BufferTooShort) as caught:
            receiver.recv_bytes_into(target, offset)
        assert caught.value.args == (numbered(size, size),)
        assert raw(target) == bytes(16)
        assert receiver.recv_bytes() == b"next"


@both_kinds
@both_ways
def test_into_with_bad_arguments(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(b"waits")
        for target, offset, text in [
            (bytearray(5), -1, "negative offset"),
            (bytearray(5), 6, "offset too large"),
            (bytearray(), 1, "offset too large"),
            (array.array("i", [0, 0]), 9, "offset too large"),
        ]:
            with pytest.raises(ValueError, match=f"^{text}$"):
                receiver.recv_bytes_into(target, offset)
        for target in ("text", None, 3, [0] * 10):
            with pytest.raises(TypeError):
                receiver.recv_bytes_into(target)
        for offset in (None, "0"):
            with pytest.raises(TypeError):
                receiver.recv_bytes_into(bytearray(10), offset)
        assert receiver.recv_bytes() == b"waits"


@both_kinds
@both_ways
@pytest.mark.parametrize(
    "target",
    [
        b"read-only",
        memoryview(bytearray(20)).toreadonly(),
        memoryview(bytearray(20))[::2],
        memoryview(bytearray(40)).cast("i")[::2],
    ],
    ids=["bytes", "read-only memoryview", "strided", "strided int"],
)
def test_into_what_cannot_be_written(kind: str, duplex: bool, target: Any) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(b"the data")
        sender.send_bytes(b"next")
        with pytest.raises(TypeError):
            receiver.recv_bytes_into(target)
        # The standard library has taken the message by then; ours need not.
        assert receiver.recv_bytes() in (b"the data", b"next")


@both_ways
def test_into_rows_of_bytes(duplex: bool) -> None:
    target = numpy.zeros((3, 4), numpy.uint8)
    with link_of("shmpipe", duplex) as (receiver, sender):
        sender.send_bytes(bytes(range(1, 11)))
        assert receiver.recv_bytes_into(target, 2) == 10
        assert raw(target) == bytes(2) + bytes(range(1, 11))


@both_ways
def test_into_items_that_are_filled_in_part(duplex: bool) -> None:
    target = array.array("i", [0] * 3)
    with link_of("shmpipe", duplex) as (receiver, sender):
        sender.send_bytes(b"\1\2\3\4\5")
        assert receiver.recv_bytes_into(target, 3) == 5
        assert raw(target) == b"\0\0\0\1\2\3\4\5\0\0\0\0"


# ---------------------------------------------------------------- garbage


def collect_cycles_of_failed_calls() -> None:
    """Leave views of buffers in cycles that only the collector can free.

    A memoryview that was exported from another one crashes CPython before 3.13 when both become
    garbage in one cycle, so no call may keep such a pair in its frame when it raises.
    """
    with link_of("shmpipe", size=65536) as (receiver, sender):
        fill_link(sender)
        with link_of("shmpipe") as (left, right):
            right.close()
            failing: list[Callable[[Any], Any]] = [
                lambda buffer: sender.send_bytes(buffer, timeout=0),
                lambda buffer: sender.send(pickle.PickleBuffer(bytearray(10_000)), timeout=0),
                lambda buffer: sender.recv_bytes_into(buffer, timeout=0),
                lambda buffer: receiver.recv_bytes_into(buffer),
                lambda buffer: left.send_bytes(buffer),
                lambda buffer: left.recv_bytes_into(buffer),
            ]
            for fail in failing:
                items = array.array("i", range(20))
                for buffer in (items, memoryview(items), numpy.arange(20), bytearray(80)):
                    try:
                        fail(buffer)
                    except (TimeoutError, BrokenPipeError, EOFError, BufferTooShort) as error:
                        error.itself = error  # type: ignore[union-attr]
                gc.collect()


def test_failed_calls_leave_ordinary_garbage() -> None:
    run_child(collect_cycles_of_failed_calls).join()
