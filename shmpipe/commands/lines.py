"""What ``seq`` writes and what ``wc`` counts, with NumPy: cheap beside what a pipe costs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LOW_DIGITS = 4
BLOCK = 10**LOW_DIGITS  # numbers per block of text: such a block fits a core's own cache

WHITE_SPACE = np.zeros(256, np.bool_)
WHITE_SPACE[list(b" \t\n\v\f\r")] = True


def text_size(count: int) -> int:
    """How many bytes the numbers 1 to `count` take, one per line."""
    size, first = count, 1  # the newlines
    while first <= count:
        size += count - first + 1  # each number from here on has one digit more
        first *= 10
    return size


def number_chunks(count: int, size: int = 4096) -> Iterator[memoryview]:
    """The numbers 1 to `count`, one per line, in pieces of `size` bytes; the last may be shorter.

    The pieces are views of one buffer: each is overwritten once the next is asked for.
    """
    buffer = bytearray(size + BLOCK * (len(str(count)) + 1))
    view = memoryview(buffer)
    text = np.frombuffer(buffer, np.uint8)
    held = 0
    for block in _blocks(count):
        end = held + len(block)
        text[held:end] = block
        for start in range(0, end - size + 1, size):
            yield view[start : start + size]
        held = end % size
        text[:held] = text[end - held : end]
    if held:
        yield view[:held]


def _blocks(count: int) -> Iterator[Bytes]:
    """The text in blocks, each overwritten by the next."""
    short = range(1, min(count, BLOCK - 1) + 1)
    yield np.frombuffer("".join(f"{number}\n" for number in short).encode(), np.uint8)
    first = BLOCK
    while first <= count:
        yield from _equally_long(first, min(count, 10 * first - 1))
        first *= 10


def _equally_long(first: int, last: int) -> Iterator[Bytes]:
    """The numbers `first` to `last`, all with as many digits, where `first` begins a block.

    A block is a table with one line of text per row. From block to block only the upper digits
    change, usually one of them, and that is the only column written.
    """
    digits = len(str(first))
    upper = digits - LOW_DIGITS
    table = np.empty((BLOCK, digits + 1), np.uint8)
    low = np.arange(BLOCK)
    for place in range(LOW_DIGITS):
        table[:, digits - 1 - place] = low // 10**place % 10 + ord("0")
    table[:, digits] = ord("\n")
    flat = table.reshape(-1)
    shown = bytes(upper)
    for number in range(first, last + 1, BLOCK):
        wanted = b"%d" % (number // BLOCK)
        for column in range(upper):
            if wanted[column] != shown[column]:
                table[:, column] = wanted[column]
        shown = wanted
        yield flat[: min(BLOCK, last + 1 - number) * (digits + 1)]


@functools.cache
def text_digest(count: int) -> str:
    """What `Counter.digest` is after the numbers 1 to `count`."""
    digest = hashlib.blake2b()
    for piece in number_chunks(count, 1 << 16):
        digest.update(piece)
    return digest.hexdigest()


class Counter:
    """Counts lines, words and bytes of what is read into a buffer, piece by piece, like ``wc``.

    A word is a run of bytes other than the white space of the C locale. (Some versions of ``wc``
    count only words with a printable character in them; for text that is the same.)

    It also takes a digest, since counts alone do not show whether all came in the right order.
    """

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = memoryview(buffer)
        self._digest = hashlib.blake2b()
        self.lines = 0
        self.words = 0
        self.bytes = 0
        self._data: Bytes = np.frombuffer(buffer, np.uint8)
        self._flags = np.empty(len(buffer), np.bool_)
        # Whether each byte is white space, after one place for the last byte of the piece before.
        self._space = np.ones(len(buffer) + 1, np.bool_)

    def digest(self) -> str:
        """The BLAKE2b digest of all bytes so far."""
        return self._digest.hexdigest()

    def feed(self, size: int) -> None:
        """Count the first `size` bytes of the buffer."""
        self._digest.update(self._buffer[:size])
        data, flags = self._data[:size], self._flags[:size]
        before, space = self._space[:size], self._space[1 : size + 1]
        np.take(WHITE_SPACE, data, out=space, mode="wrap")  # needs no check of each index
        np.greater(before, space, out=flags)  # a word starts where white space ends
        self.words += int(np.count_nonzero(flags))
        np.equal(data, ord("\n"), out=flags)
        self.lines += int(np.count_nonzero(flags))
        self.bytes += size
        self._space[0] = self._space[size]
