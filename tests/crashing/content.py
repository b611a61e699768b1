"""Numbered contents of which every byte can be checked."""

from __future__ import annotations

import random
import struct

_HEADER = struct.Struct("<III")  # who, number, size
SMALLEST = _HEADER.size
_NOISE = random.Random(1).randbytes(1 << 18)


class Torn(Exception):
    """Bytes that are not what anybody has written."""


def content(who: int, number: int, size: int) -> bytes:
    """``size`` bytes that tell who wrote them; no two numbers' bytes are alike."""
    start = (who * 7919 + number * 10_007) % (len(_NOISE) - size)
    return _HEADER.pack(who, number, size) + _NOISE[start + SMALLEST : start + size]


def check(data: bytes | memoryview) -> tuple[int, int]:
    """(who, number) of a content, which has to be whole.  Torn: it is not."""
    if len(data) < SMALLEST:
        raise Torn(f"{len(data)} bytes are not a whole one")
    who, number, size = _HEADER.unpack_from(data)
    if size != len(data) or data != content(who, number, size):
        raise Torn(f"{len(data)} bytes that begin as number {number} of {who}, {size} bytes")
    return who, number


def stream(start: int, count: int) -> bytes:
    """The bytes of an endless stream from ``start`` on."""
    at = start % len(_NOISE)
    again = -(-(at + count) // len(_NOISE))
    return (_NOISE * again)[at : at + count]
