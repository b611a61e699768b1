"""What is sent: every message says who has sent it and its number, under a checksum of all of it.

Messages of less than SMALLEST bytes have no room for that: they are counted by their length.
Through a byte stream go *cells* instead, 8-byte words which count up, so that any piece of the
stream tells where in it it belongs.
"""

from __future__ import annotations

import pickle
import random
import struct
import zlib
from typing import Any

import numpy

_HEAD = struct.Struct("<II")  # sender << 24 | number; checksum
SMALLEST = _HEAD.size
LARGEST = 4 << 20
MOST_NUMBERS = 1 << 24
_NOISE = random.Random(1).randbytes(LARGEST)
_TINY = [bytes(range(0xA0, 0xA0 + size)) for size in range(SMALLEST)]

STOP = -1000
"""In place of a sender: the round is over."""
_STOP_SENDER = 255


class Spoilt(Exception):
    """Something was lost, doubled, torn or out of order."""


def make(who: int, number: int, size: int) -> bytes:
    """A message of ``size`` bytes."""
    if size < SMALLEST:
        return _TINY[size]
    mark = who << 24 | number
    count = size - SMALLEST
    start = mark * 104_729 % (LARGEST - count)
    body = _NOISE[start : start + count]
    return _HEAD.pack(mark, zlib.crc32(body, mark)) + body


def make_stop() -> bytes:
    return make(_STOP_SENDER, 0, SMALLEST)


def check(data: Any) -> tuple[int, int]:
    """(sender, number) of a message; of one that is too small for that, (-1, its length)."""
    size = len(data)
    if size < SMALLEST:
        if bytes(data) != _TINY[size]:
            raise Spoilt(f"a message of {size} bytes came as {bytes(data)!r}")
        return -1, size
    mark, checksum = _HEAD.unpack_from(data)
    if zlib.crc32(memoryview(data)[SMALLEST:], mark) != checksum:
        name = f"{mark >> 24}/{mark & 0xFFFFFF}"
        raise Spoilt(f"torn: {size} bytes which say to be message {name}")
    who = mark >> 24
    return (STOP if who == _STOP_SENDER else who), mark & 0xFFFFFF


def wrapped(data: bytes, form: int) -> Any:
    """An object which holds a message, in one of several forms."""
    if form == 0:
        return data
    if form == 1:
        return bytearray(data)
    if form == 2:
        return numpy.frombuffer(data, numpy.uint8)
    return {"number": form, "data": [data]}


def pickled(data: bytes) -> bytes:
    return pickle.dumps(data, 5)


def unwrapped(obj: Any) -> Any:
    """The message in an object, as a buffer."""
    return obj["data"][0] if type(obj) is dict else obj


def unpickled(raw: bytes) -> Any:
    return unwrapped(pickle.loads(raw))


# ---------------------------------------------------------------- cells

CELL = 8


def cells(epoch: int, start: int, count: int) -> bytes:
    """``count`` bytes from byte ``start`` on of the stream that is the ``epoch``-th writer's."""
    first = start // CELL
    words = numpy.arange(first, (start + count - 1) // CELL + 1 if count else first, dtype="<u8")
    skip = start - first * CELL
    return (words << 24 | epoch).tobytes()[skip : skip + count]


def cell(data: bytes, at: int) -> tuple[int, int]:
    """(epoch, where in its stream) of the whole cell at ``at``."""
    word = int.from_bytes(data[at : at + CELL], "little")
    return word & 0xFFFFFF, (word >> 24) * CELL
