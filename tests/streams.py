"""Streams of bytes through a pipe, plainly or in random pieces with random pauses."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from typing import Any

from .support import PAGE

DATA = bytes(range(256)) * 1000
BLOB = random.Random(1).randbytes(1 << 20)
# Nothing arrives for so long only when an edge was lost.
LOST = 15.0


def chunks(total: int, seed: int, largest: int) -> Iterator[memoryview]:
    """`total` bytes of the blob, over and over, cut up at random; mostly small."""
    chance = random.Random(seed)
    view = memoryview(BLOB)
    done = 0
    while done < total:
        size = chance.choice([1, 20, 100, 500, 1000])
        if chance.random() < 0.05:
            size = chance.choice([PAGE, largest])
        size = min(size, total - done)
        start = done % len(BLOB)
        chunk = view[start : start + size]
        yield chunk
        done += len(chunk)


def expected_digest(total: int) -> str:
    digest = hashlib.sha1()
    for chunk in chunks(total, 0, 1 << 16):
        digest.update(chunk)
    return digest.hexdigest()


def now_and_then(chance: random.Random) -> None:
    """Mostly nothing, sometimes a pause: both shorter and longer than a sleeper's first phase."""
    dice = chance.random()
    if dice < 0.02:
        time.sleep(chance.choice([0.0001, 0.001, 0.005]))
    elif dice < 0.022:
        time.sleep(0.03)


def pausing_writer(w: Any, total: int, seed: int) -> None:
    chance = random.Random(seed)
    for chunk in chunks(total, seed, 20000):
        while chunk:
            chunk = chunk[w.write(chunk) :]
        now_and_then(chance)
    w.close()


def pausing_reader(r: Any, seed: int) -> str:
    chance = random.Random(seed)
    digest = hashlib.sha1()
    while data := r.read(chance.choice([100, 4095, 4096, 10000, 1 << 20])):
        digest.update(data)
        now_and_then(chance)
    return digest.hexdigest()


def read_all(reader: Any, *others: Any) -> bytes:
    for other in others:
        other.close()
    with reader:
        data: bytes = reader.read()
        return data


def write_all(writer: Any, data: bytes, *others: Any) -> int:
    for other in others:
        other.close()
    with writer:
        written = 0
        while written < len(data):
            written += writer.write(memoryview(data)[written:])
        return written
