"""NumPy arrays of every type and layout; what surrounds them is in test_objects.py.

What arrives has to be what pickling with protocol 5 and out-of-band buffers gives in memory; where
the standard library's connections can send the object at all, they prove the test.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from .links import both_kinds, link_of
from .support import run_thread

# Below and above what goes out of band, and what fits the ring.
SMALL, MEDIUM, LARGE = 60, 6_000, 1_200_000


def through(link: tuple[Any, Any], obj: Any) -> Any:
    """Send it from a thread, since it need not fit, and receive it."""
    receiver, sender = link
    thread = run_thread(sender.send, obj)
    received = receiver.recv()
    thread.join()
    return received


def in_memory(obj: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(obj, 5, buffer_callback=buffers.append)
    # Buffers of their own, as after a journey; readable only where the sent ones are.
    own = [bytes(b) if b.raw().readonly else bytearray(b) for b in buffers]
    return pickle.loads(data, buffers=own)


def assert_same_array(received: Any, expected: Any) -> None:
    assert type(received) is type(expected)
    assert received.dtype == expected.dtype
    assert received.dtype.byteorder == expected.dtype.byteorder
    assert received.shape == expected.shape
    assert received.flags.writeable == expected.flags.writeable
    assert received.flags.c_contiguous == expected.flags.c_contiguous
    assert received.flags.f_contiguous == expected.flags.f_contiguous
    if expected.dtype.hasobject or expected.dtype.char in "gG":  # those have undefined bytes
        assert received.tolist() == expected.tolist()
    else:
        assert received.tobytes() == expected.tobytes()


# ---------------------------------------------------------------- types and layouts

DTYPES = (
    ["?", "i1", "u1", "<i2", ">i2", "<u4", ">i8", "f2", "<f4", ">f8", "g", "c8", ">c16", "G"]
    + ["M8[s]", ">M8[ns]", "m8[ms]", "S7", "U3", ">U3", "V5", "O"]
    + [
        [("a", "<i4"), ("b", ">f8")],
        [("nested", [("x", "u1"), ("y", "f4", (2, 3))]), ("text", "U4")],
        [("object", "O"), ("number", "i8")],
        numpy.dtype([("aligned", "u1"), ("gap", "f8")], align=True),
    ]
)


def values(dtype: Any, count: int) -> numpy.ndarray:
    """An array of the type in which the items differ."""
    kind = numpy.dtype(dtype)
    if kind.names:
        result = numpy.zeros(count, kind)
        for name in kind.names:
            field = result[name]
            field[...] = values(field.dtype, field.size).reshape(field.shape)
        return result
    if kind.char == "O":
        result = numpy.empty(count, "O")
        result[:] = [(number, str(number)) for number in range(count)]
        return result
    if kind.kind in "SU":
        return numpy.arange(count).astype(kind)
    if kind.kind == "V":
        return numpy.arange(count * kind.itemsize).astype("u1").view(kind)
    return numpy.arange(count).astype(kind)


@both_kinds
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, SMALL, MEDIUM])
def test_types(kind: str, dtype: Any, count: int) -> None:
    sent = values(dtype, count)
    # Pickling in band, as the standard library's connections do, loses foreign byte orders.
    expected = in_memory(sent) if kind == "shmpipe" else pickle.loads(pickle.dumps(sent))
    with link_of(kind) as link:
        received = through(link, sent)
        assert_same_array(received, expected)
        if count:
            received[0] = received[-1]  # writable indeed
        assert_same_array(sent, values(dtype, count))


@pytest.mark.parametrize("dtype", ["u1", ">f8", [("a", "<i4"), ("b", ">f8")]], ids=str)
def test_large_arrays_of_some_types(dtype: Any) -> None:
    sent = values(dtype, LARGE)
    with link_of("shmpipe") as link:
        received = through(link, sent)
        assert_same_array(received, sent)
        received[1] = received[-1]


def base(count: int) -> numpy.ndarray:
    return numpy.arange(count, dtype=numpy.int32)


def read_only(view: numpy.ndarray) -> numpy.ndarray:
    view.setflags(write=False)
    return view


LAYOUTS: dict[str, Callable[[int], Any]] = {
    "C order": lambda n: base(n).reshape(3, -1, 2),
    "Fortran order": lambda n: numpy.asfortranarray(base(n).reshape(3, -1, 2)),
    "transposed": lambda n: base(n).reshape(6, -1).T,
    "axes swapped": lambda n: base(n).reshape(3, 2, -1).swapaxes(1, 2),
    "strided": lambda n: base(2 * n)[::2],
    "reversed": lambda n: base(n)[::-1],
    "window": lambda n: base(2 * n).reshape(-1, 12)[:, 3:9],
    "offset": lambda n: base(n + 5)[5:],
    "unaligned": lambda n: numpy.zeros(4 * n + 1, "u1")[1:].view("i4"),
    "broadcast": lambda n: numpy.broadcast_to(base(6), (n // 6, 6)),
    "read-only": lambda n: read_only(base(n)),
    "read-only Fortran order": lambda n: read_only(numpy.asfortranarray(base(n).reshape(6, -1))),
    "read-only view": lambda n: read_only(base(n)[:]),
    "over bytes": lambda n: numpy.frombuffer(bytes(4 * n), "i4"),
    "one dimension of no length": lambda n: numpy.zeros((n, 0, 3)),
    "no dimension": lambda n: numpy.array(float(n)),
    "scalar": lambda n: numpy.float64(n),
    "many dimensions": lambda n: base(n).reshape(*[1] * 12, -1, 1, 6),
    "masked": lambda n: numpy.ma.masked_less(base(n), 3),
    "records": lambda n: numpy.rec.fromarrays([base(n), base(n)], names="a,b"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [SMALL, MEDIUM, LARGE])
def test_layouts(layout: str, count: int) -> None:
    sent = LAYOUTS[layout](count)
    expected = in_memory(sent)
    with link_of("shmpipe") as link:
        received = through(link, sent)
        if layout == "scalar":
            assert received == sent and type(received) is type(sent)
            return
        assert_same_array(received, expected)
        if layout == "masked":
            assert (received.mask == expected.mask).all()
        if received.flags.writeable and received.size:
            received.flat[0] = 77
            assert_same_array(in_memory(sent), expected)
        elif received.size:
            with pytest.raises(ValueError):
                received.flat[0] = 77
