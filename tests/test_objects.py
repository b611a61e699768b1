"""Objects that hold large buffers: nested arrays, bytearrays, PickleBuffers; and their fate.

The same objects as bytes, independent of what was sent, and let go of when they are done with.
"""

from __future__ import annotations

import array
import copy
import gc
import pickle
import struct
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import BufferTooShort
from typing import Any

import numpy
import pytest

from .links import MiB, both_kinds, both_ways, link_of
from .support import run_child, run_thread
from .test_arrays import LARGE, MEDIUM, SMALL, assert_same_array, base, read_only, through

# ---------------------------------------------------------------- objects around them


@dataclass
class Holder:
    name: str
    image: numpy.ndarray
    parts: dict[str, list[Any]]


class Subclass(numpy.ndarray):
    pass


def nested() -> Holder:
    image = numpy.arange(90_000, dtype=numpy.float32).reshape(300, -1)
    parts = {"list": [image[:5], bytearray(b"x" * 50_000), (b"y" * 50_000, 3)], "none": [None]}
    return Holder("nested", image.T, parts)


@both_kinds
def test_nested(kind: str) -> None:
    with link_of(kind) as link:
        received = through(link, nested())
    expected = nested()
    assert (received.name, set(received.parts)) == ("nested", {"list", "none"})
    assert_same_array(received.image, expected.image)
    assert_same_array(received.parts["list"][0], expected.parts["list"][0])
    text, pair = received.parts["list"][1:]
    assert text == b"x" * 50_000 and type(text) is bytearray
    assert pair == (b"y" * 50_000, 3) and type(pair[0]) is bytes


@both_kinds
@pytest.mark.parametrize("size", [100, 9000, 70_000, 5_000_000])
def test_same_object_twice_in_one_message(kind: str, size: int) -> None:
    for make in (numpy.zeros, bytearray, bytes):
        thing: Any = make(size)
        with link_of(kind) as link:
            first, second, others = through(link, [thing, thing, {"again": thing}])
        assert first is second is others["again"]
        assert type(first) is type(thing)
        assert bytes(first) == bytes(thing)


@pytest.mark.parametrize("size", [100, 9000, 5_000_000])
def test_two_views_of_one_array_arrive_as_two(size: int) -> None:
    whole = numpy.zeros(size, numpy.uint8)
    with link_of("shmpipe") as link:
        first, second = through(link, [whole, whole[:]])
    first[0] = 1
    assert second[0] == 0


def test_subclass_and_array_in_an_object_array() -> None:
    sent = numpy.empty(2, "O")
    sent[0] = numpy.arange(10_000).view(Subclass)
    sent[1] = [numpy.ones(10_000)]
    with link_of("shmpipe") as link:
        received = through(link, sent)
    assert_same_array(received[0], sent[0])
    assert_same_array(received[1][0], sent[1][0])
    assert received.flags.writeable


def test_hundreds_of_arrays_in_one_message() -> None:
    sent = [numpy.full(number * 40, number, numpy.int16) for number in range(400)]
    with link_of("shmpipe") as link:
        received = through(link, sent)
    for ours, expected in zip(received, sent, strict=True):
        assert_same_array(ours, expected)


@both_kinds
@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 65_535, 65_536, 66_000, 5_000_000])
@pytest.mark.parametrize("make", [bytes, bytearray, str])
def test_bytes_bytearray_and_text(kind: str, make: Callable[[bytes], Any], size: int) -> None:
    data = (b"\x96\x42\x8e\x97\x98 " * (size // 6 + 1))[:size]
    thing: Any = data.decode("latin-1") if make is str else make(data)
    sent = ["before", thing, {"list": [thing[: size // 2], thing]}]
    with link_of(kind) as link:
        received = through(link, sent)
    assert received == sent
    assert type(received[1]) is make and type(received[2]["list"][0]) is make
    assert received[1] is received[2]["list"][1]
    if make is bytearray:
        received[1].append(5)  # nobody else holds its buffer


class Writes(list[bytes]):
    """What a pickler writes, one by one."""

    def write(self, data: Any) -> None:
        self.append(bytes(data))


def writes_of(thing: Any) -> list[bytes]:
    writes = Writes()
    pickle.Pickler(writes, 5).dump(thing)
    return list(writes)


def opcode_of(size: int) -> bytes:
    """What stands before so many bytes in a pickle."""
    return b"B" + size.to_bytes(4, "little")


def colliding_texts() -> list[Any]:
    """A large text that ends as what stands before bytes, of the length of what comes next."""
    for count in range(3000, 9000):
        rest = list(range(count))
        following = writes_of(["x" * 70_005, rest])[2]
        ending = opcode_of(len(following))
        if max(ending) < 0x80:
            return ["x" * 70_000 + ending.decode(), rest]
    raise AssertionError("no such length")


def colliding_numbers() -> list[Any]:
    """The same in a list of numbers, which is written frame by frame."""
    number = 1.5
    for _ in range(3):
        following = writes_of([number] * 30_000)[1]
        packed = struct.pack(">d", 1.5)[:3] + opcode_of(len(following))
        number = struct.unpack(">d", packed)[0]
    return [number] * 30_000


def colliding_bytes() -> list[Any]:
    """Large bytes that end so, and others that begin as a frame does."""
    framed = b"\x95" + (50_000).to_bytes(8, "little") + bytes(70_000)
    return [b"x" * 70_000 + opcode_of(len(framed)), framed, bytearray(framed), framed[:65_536]]


@both_kinds
@pytest.mark.parametrize("make", [colliding_texts, colliding_numbers, colliding_bytes])
def test_content_that_looks_like_a_pickle(kind: str, make: Callable[[], list[Any]]) -> None:
    """The opcode of bytes and just their length, by chance: frames are not taken for them."""
    sent = make()
    with link_of(kind) as link:
        assert through(link, sent) == sent


class Bytes(bytes):
    pass


class ByteArray(bytearray):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.extra = "attribute"


@both_kinds
@pytest.mark.parametrize("size", [10, 9000, 200_000])
def test_subclasses_of_bytes_and_arrays_of_numbers(kind: str, size: int) -> None:
    sent = [Bytes(size), ByteArray(size), array.array("h", bytes(size)), memoryview]
    with link_of(kind) as link:
        received = through(link, sent)
    assert received == sent
    assert [type(item) for item in received] == [type(item) for item in sent]
    assert received[1].extra == "attribute"
    received[2].append(1)
    received[1].append(1)


@pytest.mark.parametrize("size", [0, 10, 8191, 8192, 200_000, 5_000_000])
def test_pickle_buffers(size: int) -> None:
    data = bytes(range(200)) * (size // 200 + 1)
    with link_of("shmpipe") as link:
        for make in (bytes, bytearray):
            thing = pickle.PickleBuffer(make(data[:size]))
            received = through(link, [thing, thing, pickle.PickleBuffer(make(b"other"))])
            # As pickling in band gives: what was read-only is bytes, the rest is writable.
            assert type(received[0]) is make and received[0] == data[:size]
            assert received[1] == data[:size] and received[2] == b"other"


class OutOfBand:
    """Offers a buffer of its own, as data frames do, and keeps what it is given."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce_ex__(self, protocol: int) -> Any:
        if protocol < 5:
            raise AssertionError("protocol 5 is wanted")
        return OutOfBand, (pickle.PickleBuffer(self.buffer),)


@pytest.mark.parametrize("size", [10, 8192, 5_000_000])
def test_object_that_offers_its_buffer(size: int) -> None:
    with link_of("shmpipe") as link:
        for make, read_only_one in ((bytes, True), (bytearray, False)):
            received = through(link, OutOfBand(make(b"x" * size))).buffer
            with memoryview(received) as view:
                assert view.readonly is read_only_one
                assert bytes(view) == b"x" * size


# ---------------------------------------------------------------- as bytes, and from bytes


@both_ways
@pytest.mark.parametrize("count", [SMALL, MEDIUM, LARGE])
def test_frame_received_as_bytes_is_a_pickle_of_the_same(duplex: bool, count: int) -> None:
    sent = [base(count), read_only(base(count)), bytearray(count), b"z" * count, "text"]
    sent += [sent[0], pickle.PickleBuffer(bytearray(b"p" * count))]
    with link_of("shmpipe", duplex) as (receiver, sender):
        for how in ("bytes", "into", "too short"):
            thread = run_thread(sender.send, sent)
            if how == "bytes":
                data = receiver.recv_bytes()
                assert type(data) is bytes
            elif how == "into":
                target = bytearray(30 * count + 1000)
                data = bytes(target[: receiver.recv_bytes_into(target)])
            else:
                with pytest.raises(BufferTooShort) as caught:
                    receiver.recv_bytes_into(bytearray(50))
                data = caught.value.args[0]
            thread.join()
            received = pickle.loads(data)
            for ours, expected in zip(received[:2], sent[:2], strict=True):
                assert (ours == expected).all() and ours.dtype == expected.dtype
            assert received[0] is received[5]
            assert received[2:5] == sent[2:5]
            assert [type(item) for item in received[2:5]] == [bytearray, bytes, str]
            assert received[6] == b"p" * count
            # Whoever passes it on passes on the same object.
            thread = run_thread(sender.send_bytes, data)
            again = receiver.recv()
            thread.join()
            assert (again[0] == sent[0]).all() and again[2:5] == sent[2:5]


@both_kinds
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("count", [SMALL, MEDIUM])
def test_pickle_sent_as_bytes_is_received_as_object(kind: str, protocol: int, count: int) -> None:
    sent = {"array": base(count), "bytes": bytes(count)}
    with link_of(kind) as (receiver, sender):
        thread = run_thread(sender.send_bytes, pickle.dumps(sent, protocol))
        received = receiver.recv()
        thread.join()
    assert_same_array(received["array"], sent["array"])
    assert received["bytes"] == sent["bytes"]
    assert received["array"].flags.writeable


# ---------------------------------------------------------------- independence


@both_kinds
@pytest.mark.parametrize("count", [SMALL, 5_000])
def test_received_arrays_are_independent(kind: str, count: int) -> None:
    with link_of(kind) as (receiver, sender):
        sent = base(count)
        sender.send(sent)
        sent[:] = 0  # after send() the sender may do with it what it likes
        first = receiver.recv()
        assert (first == base(count)).all()
        kept = first.copy()
        sender.send(sent)
        first[:] = -1
        second = receiver.recv()
        assert (second == 0).all()
        assert (sent == 0).all()
        for number in range(20):
            sender.send(numpy.full(count, number, numpy.int32))
            assert (receiver.recv() == number).all()
        assert (first == -1).all() and (second == 0).all() and (kept == base(count)).all()


def test_received_array_outlives_the_link() -> None:
    with link_of("shmpipe") as link:
        arrays = [through(link, base(count)) for count in (SMALL, MEDIUM, LARGE)]
    del link
    gc.collect()
    for received, count in zip(arrays, (SMALL, MEDIUM, LARGE), strict=True):
        received += 1
        assert (received == base(count) + 1).all()


@both_ways
def test_array_of_eight_megabytes_from_a_child(duplex: bool) -> None:
    def send() -> None:
        sender.send({"frame": numpy.arange(MiB, dtype=numpy.int64)})

    with link_of("shmpipe", duplex) as (receiver, sender):
        child = run_child(send, close=[receiver])
        received = receiver.recv()["frame"]
        child.join()
    assert_same_array(received, numpy.arange(MiB, dtype=numpy.int64))
    received[::2] = 0


# ---------------------------------------------------------------- nothing is kept


class Tracked(numpy.ndarray):
    """An array that can be referred to weakly."""


@both_kinds
@pytest.mark.parametrize("count", [SMALL, 5_000, 500_000])
def test_sent_and_received_objects_are_let_go(kind: str, count: int) -> None:
    gc.collect()
    gc.disable()
    try:
        with link_of(kind) as link:
            sent = base(count).view(Tracked)
            text = bytearray(4 * count)
            message = [sent, text]
            before = [sys.getrefcount(thing) for thing in (sent, text, message)]
            received = through(link, message)
            assert [sys.getrefcount(thing) for thing in (sent, text, message)] == before
            text.append(1)  # no view of it is left, either
            fates = [weakref.ref(received[0]), weakref.ref(sent)]
            received[1].append(1)
            del received, sent, message
            assert [fate() for fate in fates] == [None, None]
    finally:
        gc.enable()


def test_failed_sends_let_go_of_their_objects() -> None:
    gc.collect()
    gc.disable()
    try:
        with link_of("shmpipe", size=65536) as (receiver, sender):
            sent = base(LARGE).view(Tracked)
            with pytest.raises(TimeoutError):
                sender.send([sent], timeout=0.01)
            with pytest.raises(TypeError):
                sender.send([sent, copy.copy(sys.stdin), (n for n in ())], timeout=0.01)
            receiver.close()
            with pytest.raises(BrokenPipeError):
                sender.send([sent])
            fate = weakref.ref(sent)
            del sent
            assert fate() is None
    finally:
        gc.enable()
