"""Both ends as Python file objects, beside unbuffered file objects over a kernel pipe."""

from __future__ import annotations

import array
import errno
import gc
import io
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shmpipe

from .support import PAGE, kernel_pipe, run_child, run_thread

Pipe = tuple[Any, Any]


def shm_pipe(size: int | None = None, nonblocking: bool = False) -> Pipe:
    return shmpipe.pipe(65536 if size is None else size, flags=os.O_NONBLOCK * nonblocking)


@pytest.fixture(params=[kernel_pipe, shm_pipe], ids=["kernel", "shmpipe"])
def make(request: pytest.FixtureRequest) -> Callable[..., Pipe]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def ends(make: Callable[..., Pipe]) -> Iterator[Pipe]:
    """A blocking pipe of 64 KiB."""
    reader, writer = make()
    with reader, writer:
        yield reader, writer


def test_attributes(ends: Pipe) -> None:
    reader, writer = ends
    assert (reader.readable(), reader.writable(), reader.mode) == (True, False, "rb")
    assert (writer.readable(), writer.writable(), writer.mode) == (False, True, "wb")
    for end in ends:
        assert isinstance(end, io.RawIOBase)
        assert not isinstance(end, io.BufferedIOBase)
        assert end.seekable() is False
        assert end.isatty() is False
        assert end.closed is False
        assert isinstance(end.fileno(), int)
        assert end.fileno() == end.fileno()
        end.flush()


def test_no_position(ends: Pipe) -> None:
    for end in ends:
        for call in (end.tell, lambda end=end: end.seek(0), lambda end=end: end.seek(0, 1)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.ESPIPE


def test_wrong_direction(ends: Pipe) -> None:
    reader, writer = ends
    calls: list[Callable[[], object]] = [
        lambda: reader.write(b"x"),
        lambda: reader.write(b""),
        lambda: reader.writelines([b"x"]),
        lambda: writer.read(1),
        lambda: writer.read(0),
        lambda: writer.read(),
        lambda: writer.readinto(bytearray(1)),
        lambda: writer.readline(),
    ]
    for call in calls:
        with pytest.raises(io.UnsupportedOperation):
            call()
    with pytest.raises(OSError):  # FileIO goes to the kernel here, which says EBADF.
        writer.readall()
    assert writer.write(b"still fine") == 10
    assert reader.read(100) == b"still fine"


def test_closed_end(ends: Pipe) -> None:
    reader, writer = ends
    reader.close()
    writer.close()
    calls: list[Callable[[], object]] = [
        *[getattr(end, name) for end in ends for name in ("fileno", "readable", "writable")],
        *[getattr(end, name) for end in ends for name in ("seekable", "isatty", "flush")],
        lambda: reader.read(1),
        lambda: reader.read(0),
        lambda: reader.readall(),
        lambda: reader.readinto(bytearray(1)),
        lambda: reader.readline(),
        lambda: next(reader),
        lambda: writer.write(b"x"),
        lambda: writer.write(b""),
        lambda: writer.writelines([b"x"]),
        lambda: reader.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()
    for end in ends:
        end.close()
        assert end.closed is True


BUFFERS = {
    "bytes": (lambda: b"abcdef", 6),
    "bytearray": (lambda: bytearray(b"abcdef"), 6),
    "array": (lambda: array.array("H", [1, 2, 3]), 6),
    "memoryview": (lambda: memoryview(b"abcdef")[1:4], 3),
    "cast memoryview": (lambda: memoryview(bytes(48)).cast("Q", shape=[2, 3]), 48),
    "empty": (lambda: b"", 0),
    "empty array": (lambda: array.array("d"), 0),
    "numpy": (lambda: np.arange(100, dtype=np.float64).reshape(10, 10), 800),
    "numpy scalar": (lambda: np.array(7, dtype=np.int32), 4),
    "read-only numpy": (lambda: np.frombuffer(b"abcdef", dtype=np.uint8), 6),
    "anonymous mmap": (lambda: mmap.mmap(-1, PAGE), PAGE),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_write_takes_any_contiguous_buffer(ends: Pipe, kind: str) -> None:
    reader, writer = ends
    maker, count = BUFFERS[kind]
    buffer: Any = maker()
    assert writer.write(buffer) == count
    if count:
        assert reader.read(65536) == memoryview(buffer).tobytes()


@pytest.mark.parametrize("thing", ["text", None, 5, 1.0, [1, 2], object()])
def test_write_refuses_other_things(ends: Pipe, thing: object) -> None:
    reader, writer = ends
    with pytest.raises(TypeError):
        writer.write(thing)
    writer.write(b"x")
    assert reader.read(10) == b"x"


@pytest.mark.parametrize(
    "view", [memoryview(bytes(10))[::2], np.zeros((4, 4), np.uint8).T[::2], memoryview(b"ab")[::-1]]
)
def test_write_refuses_strides(ends: Pipe, view: Any) -> None:
    # CPython's message differs between exporters, and so does the class: NumPy says ValueError.
    with pytest.raises((BufferError, ValueError)):
        ends[1].write(view)


def test_write_refuses_strided_memoryview(ends: Pipe) -> None:
    with pytest.raises(BufferError):
        ends[1].write(memoryview(bytes(10))[::2])


@pytest.mark.parametrize("kind", ["bytearray", "array", "memoryview", "numpy", "mmap"])
def test_readinto_takes_any_writable_buffer(ends: Pipe, kind: str) -> None:
    reader, writer = ends
    buffer: Any = {
        "bytearray": lambda: bytearray(16),
        "array": lambda: array.array("I", [0] * 4),
        "memoryview": lambda: memoryview(bytearray(20))[2:18],
        "numpy": lambda: np.zeros((4, 2), np.uint16),
        "mmap": lambda: mmap.mmap(-1, 16),
    }[kind]()
    writer.write(b"0123456789abcdefgh")
    assert reader.readinto(buffer) == 16
    assert memoryview(buffer).tobytes() == b"0123456789abcdef"
    assert reader.read(10) == b"gh"


@pytest.mark.parametrize(
    "thing", [b"abc", "abc", None, 5, memoryview(b"abc"), memoryview(bytearray(8))[::2]]
)
def test_readinto_refuses_other_things(ends: Pipe, thing: object) -> None:
    reader, writer = ends
    writer.write(b"xyz")
    with pytest.raises((TypeError, BufferError)):
        reader.readinto(thing)
    assert reader.read(10) == b"xyz"


def test_readinto_refuses_bytes(ends: Pipe) -> None:
    with pytest.raises(TypeError):
        ends[0].readinto(b"..")


@pytest.mark.parametrize("count", ["1", 1.0, b""])
def test_read_wants_a_number(ends: Pipe, count: object) -> None:
    ends[1].write(b"x")
    with pytest.raises(TypeError):
        ends[0].read(count)


def test_zero_lengths_never_wait(ends: Pipe) -> None:
    reader, writer = ends  # Blocking, empty and then full.
    assert reader.read(0) == b""
    assert reader.readinto(bytearray()) == 0
    assert writer.write(bytes(65536)) == 65536
    assert writer.write(b"") == 0
    assert reader.read(0) == b""


def test_read_of_everything_needs_end_of_file(ends: Pipe) -> None:
    reader, writer = ends
    thread = run_thread(reader.read)
    for part in (b"one ", b"two ", b"three"):
        writer.write(part)
        thread.wait_asleep()
    writer.close()
    assert thread.join() == b"one two three"
    assert reader.readall() == reader.read() == reader.read(5) == b""


def test_readline_and_iteration(ends: Pipe) -> None:
    reader, writer = ends
    writer.writelines([b"first\n", b"", b"second", b" half\n", b"no end"])
    writer.close()
    assert reader.readline() == b"first\n"
    assert list(reader) == [b"second half\n", b"no end"]
    assert reader.readline() == b""


def write_lines(writer: Any, count: int) -> None:
    with io.TextIOWrapper(io.BufferedWriter(writer), encoding="utf-8", newline="\n") as text:
        for number in range(count):
            print(number, "grüße", file=text)


def test_text_from_another_process(ends: Pipe) -> None:
    reader, writer = ends
    child = run_child(write_lines, writer, 20_000, close=[reader])
    writer.close()
    with io.TextIOWrapper(io.BufferedReader(reader), encoding="utf-8") as text:
        for expected, line in enumerate(text):
            assert line == f"{expected} grüße\n"
    assert expected == 19_999
    child.join()


def test_copyfileobj(ends: Pipe) -> None:
    reader, writer = ends
    data = os.urandom(300_000)

    def send() -> None:
        with writer:
            shutil.copyfileobj(io.BytesIO(data), io.BufferedWriter(writer), 10_000)

    thread = run_thread(send)
    target = io.BytesIO()
    shutil.copyfileobj(reader, target)
    thread.join()
    assert target.getvalue() == data


def test_buffered_writer_keeps_what_a_full_pipe_refuses(make: Callable[..., Pipe]) -> None:
    reader, writer = make(PAGE, nonblocking=True)
    with reader:
        buffered = io.BufferedWriter(writer, buffer_size=PAGE)
        buffered.write(bytes(PAGE))
        buffered.write(b"later")
        # Its errno is whatever the C library's was, so only an end written in C has EAGAIN there.
        with pytest.raises(BlockingIOError):
            buffered.flush()
        assert reader.read(PAGE) == bytes(PAGE)
        buffered.flush()
        assert reader.read(10) == b"later"
        buffered.close()
        assert writer.closed


def test_buffered_reader_on_nothing(make: Callable[..., Pipe]) -> None:
    reader, writer = make(PAGE, nonblocking=True)
    with writer, io.BufferedReader(reader) as buffered:
        assert buffered.read(5) is None
        writer.write(b"0123456789")
        assert buffered.peek(1)[:1] == b"0"
        assert buffered.read1(4) == b"0123"
        assert buffered.read(100) == b"456789"


def test_context_manager_closes(make: Callable[..., Pipe]) -> None:
    reader, writer = make()
    with writer as same:
        assert same is writer
        writer.write(b"x")
    assert writer.closed
    with reader as same:
        assert same is reader
        assert reader.read(5) == b"x"
        assert reader.read(5) == b""
    assert reader.closed


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_ends_are_closed(make: Callable[..., Pipe]) -> None:
    reader, writer = make()
    writer.write(b"left over")
    del writer
    gc.collect()
    assert reader.read() == b"left over"
    reader.close()
    reader, writer = make()
    del reader
    gc.collect()
    with writer, pytest.raises(BrokenPipeError):
        writer.write(b"x")


def test_failed_construction_leaves_nothing() -> None:
    for _ in range(50):
        with pytest.raises(OSError):
            shmpipe.pipe(write_size=0)
        with pytest.raises(ValueError):
            shmpipe.pipe(wake="no such policy")
