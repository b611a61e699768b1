"""``send_array`` and ``recv_array``: arrays from memory to memory, and in the pipe's own."""

from __future__ import annotations

import errno
import pickle
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import pytest

from shmpipe import Connection, PartlyReceived, Pipe, layouts
from shmpipe.frames import OBJECT
from shmpipe.segment import RD_LENT, RD_TURN_BY, WR_LENT, WR_TURN_BY

from .links import KiB, link_of
from .loops import AsyncioLoop, loop
from .support import run_child, run_thread
from .test_arrays import DTYPES, LARGE, LAYOUTS, MEDIUM, SMALL, values

__all__ = ["loop"]

NO_OBJECTS = [dtype for dtype in DTYPES if not numpy.dtype(dtype).hasobject]
PLAIN = [name for name in LAYOUTS if name not in ("masked", "records", "scalar")]
SIZES = [SMALL, MEDIUM, LARGE]


def words_of(end: Connection) -> Any:
    part = end._receiver or end._sender
    assert part is not None
    return part.ring.view


def nothing_is_lent(end: Connection) -> bool:
    words = words_of(end)
    return not any(words[word] for word in (RD_LENT, WR_LENT, RD_TURN_BY, WR_TURN_BY))


def same(received: Any, sent: Any) -> None:
    assert type(received) is numpy.ndarray
    assert received.dtype == sent.dtype and received.dtype.byteorder == sent.dtype.byteorder
    assert received.dtype.isalignedstruct == sent.dtype.isalignedstruct
    assert received.shape == sent.shape
    assert received.flags.f_contiguous == (sent.flags.f_contiguous or sent.size == 0)
    assert received.tobytes() == sent.tobytes()


def through(link: Any, sent: Any, receive: Callable[[], Any]) -> Any:
    thread = run_thread(link[1].send_array, sent)
    received = receive()
    thread.join()
    return received


# ---------------------------------------------------------------- types and layouts


@pytest.mark.parametrize("dtype", NO_OBJECTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE // 20])
def test_types(dtype: Any, count: int) -> None:
    sent = values(dtype, count)
    with link_of("shmpipe", False, size=64 * KiB) as link:
        received = through(link, sent, link[0].recv_array)
        same(received, sent)
        assert received.flags.writeable
        same(through(link, sent, link[0].recv), sent)
        out = numpy.empty_like(sent)
        assert through(link, sent, lambda: link[0].recv_array(out)) is out
        same(out, sent)


STRUCTURES: list[Any] = [
    {"names": ["b", "a"], "formats": ["<i4", ">i2"], "offsets": [4, 0]},
    {"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]},
    {"names": ["a"], "formats": ["u1"], "offsets": [3], "itemsize": 9},
    [(("title", "a"), "f4"), ("b", "u1")],
    [("deep", [("er", [("x", "S3", (2,))])])],
    [("", "i4"), ("f ' \" \\", "i4"), ("ä", "i4")],
    [],
]


@pytest.mark.parametrize("dtype", STRUCTURES, ids=str)
def test_structures(dtype: Any) -> None:
    sent = numpy.zeros(3, numpy.dtype(dtype))
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_array(sent)
        received = receiver.recv_array()
        assert received.dtype == sent.dtype and received.dtype.fields == sent.dtype.fields


@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize("count", SIZES)
def test_layouts(layout: str, count: int) -> None:
    sent = LAYOUTS[layout](count)
    with link_of("shmpipe", False) as link:
        received = through(link, sent, link[0].recv_array)
        assert received.shape == sent.shape and received.tobytes() == sent.tobytes()
        assert received.flags.writeable
        fortran = sent.flags.f_contiguous and not sent.flags.c_contiguous
        assert received.flags.f_contiguous == (fortran or received.T.flags.c_contiguous)
        assert not fortran or received.flags.f_contiguous


def test_what_asarray_takes() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for obj in ([1, 2.5], 7, numpy.float32(2), (b"a", b"bc"), memoryview(b"xyz"), range(3)):
            sender.send_array(obj)
            expected = numpy.asarray(obj)
            received = receiver.recv_array()
            assert (received == expected).all() and received.dtype == expected.dtype
        sender.send_array(numpy.rec.fromarrays([[1, 2]]))
        assert type(receiver.recv_array()) is numpy.ndarray


def test_refused() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for array in (
            numpy.array([None, 1]),
            numpy.zeros(2, [("a", "O"), ("b", "i4")]),
            numpy.ma.masked_less(numpy.arange(5), 2),
            numpy.zeros(3, [("a", "S"), ("b", "i4")])["a"],  # which a new array would not be
        ):
            for call in (sender.send_array, sender.begin_send_array):
                with pytest.raises(TypeError, match=r"send\(\) takes it|send both"):
                    call(array)
        things: list[Any] = [{"a": 1}, (number for number in range(3)), [None], {1, 2}, None]
        for thing in things:
            with pytest.raises(TypeError, match=f"not {type(thing).__name__}: send"):
                sender.send_array(thing)
        with pytest.raises(TypeError, match="objects"):
            sender.reserve_array(3, "O")
        if hasattr(numpy, "dtypes") and hasattr(numpy.dtypes, "StringDType"):
            with pytest.raises(TypeError, match=r"send\(\) takes it"):
                sender.send_array(numpy.array(["a"], numpy.dtypes.StringDType()))
        with pytest.raises(OSError, match="read-only"):
            receiver.send_array([1])
        with pytest.raises(OSError, match="write-only"):
            sender.recv_array()
        assert receiver.poll() is False


# ---------------------------------------------------------------- beside other messages


def test_other_calls_receive_arrays() -> None:
    sent = numpy.arange(5000.0).reshape(50, 100)
    with link_of("shmpipe", False) as (receiver, sender):
        for _ in range(6):
            sender.send_array(sent)
        assert (receiver.recv() == sent).all()
        assert (pickle.loads(receiver.recv_bytes()) == sent).all()
        buffer = bytearray(50_000)
        assert (pickle.loads(buffer[: receiver.recv_bytes_into(buffer)]) == sent).all()
        with receiver.recv_view() as view:
            assert (pickle.loads(view) == sent).all()
        assert (receiver.recv_many(1)[0] == sent).all()
        assert (receiver.recv_packed()() == sent).all()


@pytest.mark.parametrize("size", [10, 20_000, 300_000])
@pytest.mark.parametrize("call", ["recv_array", "recv_array_view"])
def test_other_messages_are_left_there(size: int, call: str) -> None:
    """Whole ones and streams, in one piece or with buffers."""

    def receive(receiver: Connection) -> None:
        enter = receiver.recv_array_view().__enter__
        with pytest.raises(TypeError, match="not an array"):
            (receiver.recv_array if call == "recv_array" else enter)()

    obj = [b"x" * size, bytearray(b"y" * size), "z", numpy.arange(size)]
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        for _ in range(3):
            thread = run_thread(sender.send, obj)
            receive(receiver)
            receive(receiver)
            received = receiver.recv()
            assert received[:3] == obj[:3] and type(received[0]) is bytes
            assert type(received[1]) is bytearray and (received[3] == obj[3]).all()
            thread.join()
            thread = run_thread(sender.send_bytes, b"x" * size)
            receive(receiver)
            receive(receiver)
            assert receiver.recv_bytes() == b"x" * size
            thread.join()
        assert nothing_is_lent(receiver) and not receiver.stats().frames_dropped


@pytest.mark.parametrize("count", SIZES)
def test_out_that_does_not_fit(count: int) -> None:
    sent = numpy.arange(count)
    with link_of("shmpipe", False, size=256 * KiB) as (receiver, sender):
        thread = run_thread(sender.send_array, sent)
        for out in (numpy.zeros(count + 1, sent.dtype), numpy.zeros((1, count), sent.dtype)):
            with pytest.raises(ValueError, match="of shape"):
                receiver.recv_array(out)
            assert not out.any()
        for other in ("u8", ">i8", "f8"):
            with pytest.raises(TypeError, match="array of int64, out of"):
                receiver.recv_array(numpy.zeros(count, other))
        with pytest.raises(TypeError, match="must be a NumPy array"):
            receiver.recv_array(bytearray(8 * count))
        read_only = numpy.zeros(count, sent.dtype)
        read_only.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            receiver.recv_array(read_only)
        with receiver.recv_array_view() as view:
            assert (view == sent).all()
        thread.join()
        assert not receiver.poll()


@pytest.mark.parametrize("count", [SMALL, MEDIUM, LARGE // 10])
def test_out_of_other_layouts(count: int) -> None:
    outs = [
        numpy.empty((3, count), order="F"),
        numpy.empty((3, 2 * count))[:, ::2],
        numpy.empty((count, 3)).T,
        numpy.empty((3, count))[::-1],
    ]
    with link_of("shmpipe", False) as link:
        for sent in (numpy.arange(3.0 * count).reshape(3, -1), numpy.ones((count, 3)).T):
            for out in outs:
                assert through(link, sent, lambda: link[0].recv_array(out)) is out  # noqa: B023
                assert (out == sent).all()


@pytest.mark.slow
def test_no_copy_on_the_way_where_it_can_be() -> None:
    """Memory of the size of the array is had once, for the array itself; for `out` not at all."""
    program = """
import shmpipe, numpy, threading
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
receiver, sender = shmpipe.Pipe(False)
array = numpy.ones(1 << 26, 'u1')
out = numpy.full(1 << 26, 7, 'u1')
def through(**options):
    thread = threading.Thread(target=sender.send_array, args=(array,))
    thread.start()
    result = receiver.recv_array(**options)
    thread.join()
    return result
before = peak()
assert (through(out=out)[::999] == 1).all()
assert peak() - before < 1 << 24, peak() - before
result = through()
assert peak() - before < (1 << 26) + (1 << 24), peak() - before
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- large ones, cut short


def test_time_limits() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        with pytest.raises(TimeoutError):
            receiver.recv_array(timeout=0.01)
        with pytest.raises(TimeoutError):
            receiver.recv_array_view(timeout=0.01).__enter__()
        with pytest.raises(TimeoutError):
            sender.send_array(numpy.zeros(100_000), timeout=0.01)
        with pytest.raises(ValueError, match="NaN"):
            sender.send_array([1], timeout=float("nan"))
        assert not receiver.poll()  # what had been sent of it is thrown away
        sender.send_array(numpy.zeros(5000), timeout=1)
        with pytest.raises(TimeoutError):
            sender.reserve_array(5000, "f8", timeout=0.01).__enter__()
        assert receiver.recv_array(timeout=1).size == 5000


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("after", ["recv_array", "out", "recv", "recv_array_view", "recv_bytes"])
def test_interrupted_in_the_middle(order: str, after: str) -> None:
    """What has come is kept; `out` is the caller's again, and what it holds does not matter."""
    sent = numpy.asarray(numpy.arange(120_000).reshape(300, 400), order=order)  # type: ignore[call-overload]
    for out in (None, numpy.zeros_like(sent), numpy.zeros((300, 400), sent.dtype)):
        with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
            stepped = sender.begin_send_array(sent)
            stepped.step()
            for _ in range(3):
                with pytest.raises(PartlyReceived) as caught:
                    receiver.recv_array(out, timeout=0.0)
                assert caught.value.kept > 0
                stepped.step()
            if out is not None:
                out[:] = 7
            thread = run_thread(go_on, stepped, sender)
            last = numpy.zeros_like(sent)
            if after == "recv_array_view":
                with receiver.recv_array_view() as view:
                    last[:] = view
            elif after == "out":
                assert receiver.recv_array(last) is last
            elif after == "recv_bytes":
                last = pickle.loads(receiver.recv_bytes())
            else:
                last = getattr(receiver, after)()
            thread.join()
            assert (last == sent).all() and (out is None or (out == 7).all())


def go_on(stepped: Any, sender: Connection) -> None:
    import select

    while not stepped.step():
        select.select([], [sender.outgoing], [], 20)


@pytest.mark.parametrize("pickled", [300, 40_000])
def test_interrupted_before_it_is_known_what_it_is(pickled: int) -> None:
    """A pickle so long that it comes in several parts, of which one has come."""
    obj = ["x" * pickled, b"y" * 70_000, bytearray(70_000)]
    with link_of("shmpipe", False, size=4 * KiB) as (receiver, sender):
        stepped = sender.begin_send(obj)
        stepped.step()
        if pickled > 4 * KiB:
            with pytest.raises(TimeoutError):
                receiver.recv_array(timeout=0.0)
        thread = run_thread(go_on, stepped, sender)
        with pytest.raises(TypeError, match="not an array"):
            receiver.recv_array()
        assert receiver.recv() == obj
        thread.join()


def test_description_in_parts() -> None:
    """A type whose text is longer than the pipe."""
    dtype = numpy.dtype([(f"field {number} with a long name", "<i4") for number in range(300)])
    sent = numpy.zeros(100, dtype)
    sent["field 7 with a long name"] = numpy.arange(100)
    out = numpy.empty_like(sent)
    with link_of("shmpipe", False, size=4 * KiB) as link:
        assert (through(link, sent, link[0].recv_array) == sent).all()
        assert through(link, sent, lambda: link[0].recv_array(out)) is out and (out == sent).all()
        assert (through(link, sent, link[0].recv) == sent).all()


@pytest.mark.slow
def test_mixed_at_random() -> None:
    """Every way to send, every way to receive, with time limits that are far too short."""
    choice = random.Random(3)
    sent = []
    for number in range(1500):
        count = choice.choice([0, 3, 300, 5000, 40_000])
        kind = choice.choice(["array", "array", "object", "bytes", "reserved"])
        sent.append((kind, numpy.arange(number, number + (min(count, 5000) or 1))))

    def send(sender: Connection) -> None:
        for kind, array in sent:
            if kind == "array":
                sender.send_array(array)
            elif kind == "object":
                sender.send(array)
            elif kind == "bytes":
                sender.send_bytes(array.tobytes())
            else:
                with sender.reserve_array(array.shape, array.dtype) as view:
                    view[:] = array
        sender.close()

    receiver, sender = Pipe(False, size=64 * KiB)
    child = run_child(send, sender, close=[receiver])
    sender.close()
    with receiver:
        for kind, array in sent:
            received: Any = None
            while received is None:
                how = choice.randrange(5)
                timeout = choice.choice([0.0, 0.001, None])
                out = numpy.empty(array.shape if how == 1 else (7, 7), array.dtype)
                try:
                    if how == 0:
                        received = receiver.recv_array(timeout=timeout)
                    elif how in (1, 2):
                        received = receiver.recv_array(out, timeout=timeout)
                    elif how == 3:
                        with receiver.recv_array_view(timeout=timeout) as view:
                            received = view.copy()
                    elif kind == "bytes":
                        received = numpy.frombuffer(receiver.recv_bytes(timeout=timeout), "i8")
                    else:
                        received = receiver.recv(timeout=timeout)
                except TimeoutError:
                    assert timeout is not None
                except TypeError:
                    assert kind in ("object", "bytes")
                except ValueError:
                    assert how == 2 and kind in ("array", "reserved")
            assert (received == array).all()
        with pytest.raises(EOFError):
            receiver.recv_array()
        with pytest.raises(EOFError):
            receiver.recv_array_view().__enter__()
    child.join()


def test_several_receivers() -> None:
    """One refuses what another waits for."""
    with link_of("shmpipe", False) as (receiver, sender):
        waiting = [run_thread(receiver.recv) for _ in range(2)]
        for thread in waiting:
            thread.wait_asleep()
        refusing = run_thread(receiver.recv_array)
        refusing.wait_asleep()
        sender.send(1)
        sender.send(2)
        results = []
        for thread in [*waiting]:
            results.append(thread.join())
        assert sorted(results) == [1, 2]
        sender.send_array([3])
        try:
            assert refusing.join() == [3]
        except TypeError:
            assert receiver.recv() == [3]


# ---------------------------------------------------------------- hostile peers


def description(text: bytes, *shape: int, version: int = 1, order: int = 0) -> bytes:
    fixed = struct.pack("<8sBBHI", b"\x93ndarray", version, order, len(shape), len(text))
    return fixed + struct.pack(f"<{len(shape)}Q", *shape) + text


def frame(head: bytes, *buffers: bytes) -> bytes:
    words = struct.pack(
        f"<{2 + len(buffers)}Q", len(buffers), len(head), *[len(b) << 1 for b in buffers]
    )
    message = words + head
    for buffer in buffers:
        message += bytes(-len(message) % 16) + buffer
    return message


HOSTILE = {
    "pointers": frame(description(b"O", 1), bytes(8)),
    "pointers in a structure": frame(description(b"{'names':['a'],'formats':['O']}", 1), bytes(8)),
    "too few bytes": frame(description(b"<f8", 2), bytes(8)),
    "too many bytes": frame(description(b"<f8", 2), bytes(24)),
    "a product that overflows": frame(description(b"<f8", 1 << 62, 4), bytes(8)),
    "no items in too many dimensions": frame(description(b"<f8", 0, *[1] * 70), b""),
    "nothing of something huge": frame(description(b"<f8", 1 << 63, 0), b""),
    "much text of no length": frame(description(b"|S0", 1 << 40), b""),
    "another version": frame(description(b"<f8", 1, version=2), bytes(8)),
    "another order": frame(description(b"<f8", 1, order=2), bytes(8)),
    "no type": frame(description(b"what", 1), bytes(8)),
    "no text": frame(description(b"\xff\xfe", 1), bytes(8)),
    "code": frame(description(b"{'names': __import__('os').abort()}", 1), bytes(8)),
    "deep": frame(description(b"(" * 5000, 1), bytes(8)),
    "offsets outside": frame(
        description(b"{'names':['a'],'formats':['<f8'],'offsets':[90],'itemsize':8}", 1), bytes(8)
    ),
    "a negative offset": frame(
        description(b"{'names':['a'],'formats':['<f8'],'offsets':[-8],'itemsize':8}", 1), bytes(8)
    ),
    "cut off": frame(description(b"<f8", 1)[:20], bytes(8)),
    "text that is longer": frame(description(b"<f8", 1) + b" ", bytes(8)),
    "two buffers": frame(description(b"<f8", 1), bytes(8), bytes(8)),
    "no buffer": frame(description(b"<f8", 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("call", ["recv_array", "out", "recv", "recv_array_view", "recv_bytes"])
def test_descriptions_that_lie(name: str, call: str) -> None:
    message = HOSTILE[name]
    out = numpy.zeros(1)
    with link_of("shmpipe", False) as (receiver, sender):
        sender._sender.send(OBJECT, message, len(message), None)  # type: ignore[union-attr]
        calls = {
            "out": lambda: receiver.recv_array(out),
            "recv_array_view": lambda: receiver.recv_array_view().__enter__(),
        }
        with pytest.raises(OSError, match="damaged") as caught:
            calls.get(call, lambda: getattr(receiver, call)())()
        assert caught.value.errno == errno.EBADMSG
        assert nothing_is_lent(receiver)


# ---------------------------------------------------------------- lent


@pytest.mark.parametrize("dtype", NO_OBJECTS, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_lent(dtype: Any, order: Any) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for shape in [(), (0,), (7,), (3, 5), (2, 0, 4), 6]:
            sent = numpy.zeros(shape, dtype, order)
            if sent.size:
                flat = values(dtype, sent.size)
                sent[...] = flat.reshape(sent.shape)
            with sender.reserve_array(shape, dtype, order) as array:
                assert array.flags.writeable and array.shape == sent.shape
                array[...] = sent
            assert array.shape == (0,)
            with receiver.recv_array_view() as view:
                assert not view.flags.writeable
                assert repr(view) == repr(sent)  # not the bytes: gaps are not written to
                assert order == "C" or view.flags.f_contiguous
            assert view.shape == (0,)
        assert nothing_is_lent(receiver) and nothing_is_lent(sender)


def produce_frames(sender: Connection, count: int) -> None:
    for number in range(count):
        with sender.reserve_array((100, 100), "u2") as frame:
            frame[:] = number
    sender.close()


def test_frames_between_processes() -> None:
    receiver, sender = Pipe(False)
    child = run_child(produce_frames, sender, 500, close=[receiver])
    sender.close()
    with receiver:
        for number in range(500):
            with receiver.recv_array_view() as frame:
                assert (frame == number).all()
    child.join()


def test_larger_than_the_pipe() -> None:
    sent = numpy.arange(100_000)
    with link_of("shmpipe", False, size=64 * KiB) as link:

        def receive() -> None:
            with link[0].recv_array_view() as view:
                assert (view == sent).all() and not view.flags.writeable
            assert view.shape == (0,)

        through(link, sent, receive)
        with pytest.raises(ValueError, match="cannot be reserved"):
            link[1].reserve_array(100_000, "f8")


@contextmanager
def wrapped(block: Any) -> Iterator[Any]:
    with block as array:
        yield array


def in_a_generator(block: Any) -> Iterator[int]:
    with block as array:
        yield int(array[0])


WITH: dict[str, Callable[[Any], None]] = {}


def way(function: Callable[[Any], None]) -> Callable[[Any], None]:
    WITH[function.__name__] = function
    return function


@way
def plain(block: Any) -> None:
    with block as array:
        array.sum()


@way
def deleted(block: Any) -> None:
    with block as array:
        del array


@way
def no_name(block: Any) -> None:
    with block:
        pass


@way
def two_names(block: Any) -> None:
    with block as array:
        other = array
    assert other.shape == (0,)


@way
def passed_on(block: Any) -> None:
    def inner(value: Any) -> Any:
        return value[1:].copy() + value[:-1]

    with block as array:
        inner(array)


@way
def context_manager(block: Any) -> None:
    with wrapped(block) as array:
        array.sum()


@way
def exit_stack(block: Any) -> None:
    with ExitStack() as stack:
        array = stack.enter_context(block)
        array.sum()


@way
def generator(block: Any) -> None:
    assert len(list(in_a_generator(block))) == 1


@way
def closure(block: Any) -> None:
    with block as array:
        assert (lambda: array.sum() or 1)()


@way
def slices_that_are_gone(block: Any) -> None:
    with block as array:
        part = array[2:]
        copied = part.copy()
        del part
    assert len(copied) == len(range(2, 50))


@way
def loops(block: Any) -> None:
    with block as array:
        for _ in array:
            pass
        assert [x for x in array] == list(array)  # noqa: C416


@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("which", ["recv_array_view", "reserve_array"])
def test_ways_to_use_the_array(name: str, which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for _ in range(3):
            if which == "recv_array_view":
                sender.send_array(numpy.arange(50))
                WITH[name](receiver.recv_array_view())
            else:
                WITH[name](sender.reserve_array(50, "i8"))
                assert receiver.recv_array().shape == (50,)
        assert nothing_is_lent(receiver) and nothing_is_lent(sender)


class Kept:
    def __init__(self, array: Any) -> None:
        self.array = array


KEEP: dict[str, Callable[[Any], Any]] = {
    "slice": lambda array: array[1:],
    "view": lambda array: array.view("u1"),
    "reshaped": lambda array: array.reshape(5, -1),
    "transposed": lambda array: array.T,
    "attribute": Kept,
    "list": lambda array: [array],
    "memoryview": memoryview,
    "frombuffer": lambda array: numpy.frombuffer(array, "u1"),
    "asarray": lambda array: numpy.asarray(array)[:],
    "iterator": lambda array: array.flat,
    "method": lambda array: array.sum,
}


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("same_name", [False, True])
@pytest.mark.parametrize("which", ["recv_array_view", "reserve_array"])
def test_what_is_kept_has_nothing_of_the_ring(keep: str, same_name: bool, which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for _ in range(2):
            block: Any
            if which == "recv_array_view":
                sender.send_array(numpy.arange(1, 51))
                block = receiver.recv_array_view()
            else:
                block = sender.reserve_array(50, "i8")
            kept: Any = None

            def use(keep: Callable[[Any], Any], block: Any = block) -> None:
                nonlocal kept
                if same_name:
                    with block as kept:
                        kept = keep(kept)
                else:
                    with block as array:
                        kept = keep(array)

            with pytest.raises(BufferError, match="still refers"):
                use(KEEP[keep])
            for number in range(20):
                sender.send_array(numpy.full(50, number + 100))
                assert (receiver.recv_array() == number + 100).all()
            if keep in ("slice", "view", "reshaped", "transposed", "frombuffer", "asarray"):
                assert not kept.any()
                if kept.flags.writeable:
                    kept[...] = 5
            del kept
        sender.send_array([1])
        assert receiver.recv_array() == [1] and not receiver.poll()


def test_dropped_on_an_exception() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(KeyError), sender.reserve_array(3, "f8") as array:
            {}[array[:1].tobytes()]
        assert array.shape == (0,) and not receiver.poll()
        sender.send_array([1, 2])
        with pytest.raises(KeyError), receiver.recv_array_view() as array:
            raise KeyError
        assert not receiver.poll()
        kept = []
        with pytest.raises(TypeError), sender.reserve_array(3, "f8") as array:
            kept.append(array[1:], 2)  # type: ignore[call-arg]
        assert not kept and nothing_is_lent(sender)


def test_bad_arguments_of_a_reservation() -> None:
    with link_of("shmpipe", False) as (_, sender):
        with pytest.raises(ValueError, match="order"):
            sender.reserve_array(3, "f8", "K")
        assert nothing_is_lent(sender)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        *((shape, TypeError) for shape in ("12", None, 1.5, (2, 1.5), (2, None), [[1]], print)),
        *((shape, ValueError) for shape in (-1, (3, -1), (0, 1 << 62), (0, 1 << 70), (1,) * 70)),
    ],
    ids=str,
)
def test_no_shapes(shape: Any, error: type[Exception]) -> None:
    with link_of("shmpipe", False) as (_, sender), pytest.raises(error, match=r"\bshape\b"):
        sender.reserve_array(shape, "f8")


@pytest.mark.parametrize("shape", [(1 << 62,), (1 << 62, 1 << 62), (1 << 70,)], ids=str)
def test_shapes_beyond_everything(shape: Any) -> None:
    wrong = pytest.raises(ValueError, match="bytes cannot be reserved")
    with link_of("shmpipe", False) as (_, sender), wrong:
        sender.reserve_array(shape, "f8")


@pytest.mark.parametrize(
    "dtype", ["what", 5, (1, 2), {"a": 1}, "f8,,", [("a", "f8"), ("a", "f8")], "M8[xx]"], ids=str
)
def test_no_types(dtype: Any) -> None:
    wrong = pytest.raises(TypeError, match=r"dtype must be .*, not .*: \S")
    with link_of("shmpipe", False) as (_, sender), wrong:
        sender.reserve_array(3, dtype)


@pytest.mark.parametrize("dtype", ["S", "U", str, bytes, numpy.dtype("S0")], ids=str)
def test_text_of_no_length(dtype: Any) -> None:
    """NumPy makes it one of length 1, so there would be no space for what is written."""
    wrong = pytest.raises(TypeError, match="say how long")
    with link_of("shmpipe", False) as (_, sender), wrong:
        sender.reserve_array(3, dtype)


def test_what_else_is_a_shape() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for shape in (numpy.int64(3), numpy.array(3), numpy.array([2, 3]), [2, 3], range(2, 4), ()):
            with sender.reserve_array(shape, "u1") as array:
                array[...] = 7
            assert numpy.array_equal(receiver.recv_array(), numpy.full(shape, 7, "u1"))


def test_while_lent() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_array([1])
        sender.send_array([2])
        with receiver.recv_array_view() as view:
            with pytest.raises(OSError, match="lent"):
                receiver.recv_array()
            with pytest.raises(BufferError):
                receiver.close()
            other = run_thread(receiver.recv_array)
            assert view == [1]
        assert other.join() == [2]


# ---------------------------------------------------------------- in event loops


def test_asynchronous(loop: Any) -> None:
    sent = numpy.arange(300_000).reshape(3, -1)

    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=64 * KiB))

        async def send() -> None:
            for _ in range(2):
                await sender.send_array(sent)
            await sender.send_array([1, 2, 3])
            for number in range(30):
                async with sender.reserve_array((20, 30), "i4") as array:
                    array[:] = number
                assert array.shape == (0,)

        async def receive() -> None:
            assert (await receiver.recv_array() == sent).all()
            out = numpy.empty_like(sent)
            assert await receiver.recv_array(out) is out
            assert (out == sent).all()
            with pytest.raises(ValueError, match="shape"):
                await receiver.recv_array(out[0, :1])
            assert (await receiver.recv_array() == [1, 2, 3]).all()
            for number in range(30):
                async with receiver.recv_array_view() as view:
                    await loop.sleep(0)
                    assert (view == number).all()
                assert view.shape == (0,)

        async with receiver, sender:
            await loop.together(send, receive)

    loop.run(main)


def test_asynchronous_views_that_are_kept() -> None:
    async def main() -> None:
        receiver, sender = (loop_.wrap(end) for end in Pipe(False))
        async with receiver, sender:
            await sender.send_array([1, 2, 3])
            with pytest.raises(BufferError):
                async with receiver.recv_array_view() as view:
                    kept = view[1:]
            assert not kept.any()

    loop_ = AsyncioLoop()
    loop_.run(main)


def test_numpy_is_imported_when_it_is_used() -> None:
    program = """
import sys, shmpipe
receiver, sender = shmpipe.Pipe(False)
sender.send([1])
assert receiver.recv() == [1]
assert "numpy" not in sys.modules and "shmpipe.layouts" not in sys.modules
sender.send_array([1])
assert "numpy" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("rows", [2, 4000])
def test_out_of_a_subclass(rows: int) -> None:
    """A matrix does not become flat: a message larger than the pipe stayed half received."""
    sent = numpy.arange(rows * 250, dtype=float).reshape(rows, 250)
    receiver, sender = Pipe(False, size=1 << 16)
    with receiver, sender:
        child = run_child(sender.send_array, sent, close=[receiver])
        masked = numpy.ma.zeros(sent.shape)
        with pytest.raises(TypeError, match="masked"):
            receiver.recv_array(masked, timeout=10)
        out = numpy.matrix(numpy.zeros(sent.shape))
        assert receiver.recv_array(out, timeout=10) is out
        assert (numpy.asarray(out) == sent).all()
        child.join()


# ---------------------------------------------------------------- interrupted


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception]]:
    """A signal comes while an array's words are read; its handler raises what is in the list."""
    errors: list[Exception] = []
    type_of = layouts.type_of

    def interrupted(text: str) -> Any:
        signal.raise_signal(signal.SIGUSR2)
        return type_of(text)

    def handler(*_: Any) -> None:
        if errors:
            raise errors.pop()

    before = signal.signal(signal.SIGUSR2, handler)
    monkeypatch.setattr(layouts, "type_of", interrupted)
    yield errors
    signal.signal(signal.SIGUSR2, before)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "recv_array": lambda end: end.recv_array(),
    "recv": lambda end: end.recv(),
    "recv_many": lambda end: end.recv_many(),
    "recv_array_view": lambda end: end.recv_array_view().__enter__(),
}


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, SyntaxError, KeyError])
@pytest.mark.parametrize("call", TAKEN)
def test_what_a_handler_raises_is_no_damage(
    call: str, error: type[Exception], interrupting: list[Exception]
) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_array(numpy.arange(3))
        interrupting.append(error("the handler's"))
        with pytest.raises(error, match="the handler's"):
            TAKEN[call](receiver)
        while receiver.poll():
            receiver.recv_bytes()
        sender.send_array(numpy.arange(4))
        assert receiver.recv_array().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, SyntaxError, KeyError])
def test_what_a_handler_raises_is_not_the_types_fault(
    error: type[Exception], interrupting: list[Exception]
) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        array = numpy.zeros(3, [(f"of its own for {error.__name__}", "u2")])
        interrupting.append(error("the handler's"))
        with pytest.raises(error, match="the handler's"):
            sender.send_array(array)
        assert not receiver.poll()
        sender.send_array(array)
        assert receiver.recv_array().tolist() == array.tolist()
