"""Numbered records with a checksum, to tell lost, doubled and torn writes apart."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator

# Size of the whole record, who wrote it, its number, checksum of the rest.
_HEADER = struct.Struct("<HHII")
SMALLEST = _HEADER.size


def record(who: int, number: int, size: int = SMALLEST) -> bytes:
    """A record of `size` bytes in all."""
    payload = random.Random(f"{who}/{number}").randbytes(size - SMALLEST)
    checksum = zlib.crc32(payload, who << 20 ^ number)
    return _HEADER.pack(size, who, number, checksum) + payload


def records(stream: bytes) -> Iterator[tuple[int, int]]:
    """(writer, number) of each record in a stream which has to consist of whole records."""
    offset = 0
    while offset < len(stream):
        assert len(stream) - offset >= SMALLEST, f"torn header at {offset} of {len(stream)}"
        size, who, number, checksum = _HEADER.unpack_from(stream, offset)
        payload = stream[offset + SMALLEST : offset + size]
        whole = size >= SMALLEST and len(payload) == size - SMALLEST
        assert whole, f"torn record at {offset} of {len(stream)}"
        assert zlib.crc32(payload, who << 20 ^ number) == checksum, f"damaged record at {offset}"
        yield who, number
        offset += size


def numbers_of(who: int, found: list[tuple[int, int]]) -> list[int]:
    """The numbers of one writer's records, in the order in which they were found."""
    return [number for writer, number in found if writer == who]
