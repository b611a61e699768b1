"""Frames as a hostile sender makes them: headers, streams and tables of buffers that lie."""

from __future__ import annotations

import random
from collections.abc import Sequence

from shmpipe.frames import ABORT, BEGIN_DATA, BEGIN_OBJECT, DATA, OBJECT, PART

from .values import ALL_ONES, number

KINDS = (DATA, OBJECT, BEGIN_DATA, BEGIN_OBJECT, PART, ABORT)


def word(value: int) -> bytes:
    return (value & ALL_ONES).to_bytes(8, "little")


def framed(kind: int, content: bytes, size: int | None = None) -> bytes:
    """A frame; ``size`` instead of its true one."""
    length = len(content) if size is None else size
    header = (kind & 0xFF) << 56 | (length & ((1 << 56) - 1))
    return word(header) + content + bytes(-len(content) % 8)


def frames(rng: random.Random, near: Sequence[int]) -> bytes:
    """Some frames in a row, whole ones or a stream, in which nearly everything may be wrong."""
    return rng.choice((_whole, _whole, _object, _stream, _stream, _noise))(rng, near)


def _lie(rng: random.Random, truth: int, near: Sequence[int]) -> int:
    return truth if rng.random() < 0.6 else number(rng, near)


def _whole(rng: random.Random, near: Sequence[int]) -> bytes:
    content = rng.randbytes(rng.choice((0, 1, 7, 8, 100, 3000)))
    kind = rng.choice(KINDS) if rng.random() < 0.3 else DATA
    return framed(kind, content, _lie(rng, len(content), near))


def _noise(rng: random.Random, near: Sequence[int]) -> bytes:
    return rng.randbytes(8 * rng.randrange(1, 40))


def table(rng: random.Random, near: Sequence[int]) -> bytes:
    """An OBJECT's numbers, its pickle and its buffers."""
    pickled = rng.choice((b"\x80\x05\x97.", b"\x80\x05\x97\x98\x85.", b"N.", rng.randbytes(40)))
    buffers = [bytes(rng.choice((0, 8, 8192, 9000))) for _ in range(rng.choice((0, 1, 1, 2)))]
    numbers = [len(buffers), len(pickled)]
    numbers += [len(buffer) << 1 | rng.randrange(2) for buffer in buffers]
    made = b"".join(word(_lie(rng, value, near)) for value in numbers) + pickled
    for buffer in buffers:
        made += bytes(-len(made) % 16) + buffer
    return made


def _object(rng: random.Random, near: Sequence[int]) -> bytes:
    content = table(rng, near)
    return framed(OBJECT, content, _lie(rng, len(content), near))


def _stream(rng: random.Random, near: Sequence[int]) -> bytes:
    is_object = rng.random() < 0.5
    content = table(rng, near) if is_object else rng.randbytes(rng.randrange(1, 9000))
    kind = BEGIN_OBJECT if is_object else BEGIN_DATA
    total = _lie(rng, len(content), near)
    made = framed(kind, word(total), 8 if rng.random() < 0.95 else number(rng, near))
    at = 0
    while at < len(content):
        count = rng.choice((1, 8, 64, 1000, 4000, len(content)))
        piece = content[at : at + count]
        made += framed(PART, word(_lie(rng, total - at, near)) + piece)
        at += count
        if rng.random() < 0.05:
            made += framed(rng.choice(KINDS), word(number(rng, near)))
    return made + (framed(ABORT, b"") if rng.random() < 0.2 else b"")
