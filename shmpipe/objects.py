"""Objects as messages: pickles whose large buffers travel beside them, uncopied.

An OBJECT message holds, all numbers unsigned 64-bit little-endian:

    count of buffers, length of the pickle, one word per buffer (its size times 2, plus 1 if it is
    read-only), the pickle, then the buffers, each from a multiple of ALIGNMENT on

The pickle is of protocol 5 and refers to its buffers out of band.  An object without large buffers
is a DATA message holding a plain pickle, as if sent with ``send_bytes(pickle.dumps(obj))``.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .ring import damaged

OUT_OF_BAND = 8192
"""Bytes from which on a buffer that offers itself (a NumPy array's, a PickleBuffer) goes beside."""

ALIGNMENT = 16
_PROTOCOL = 5
_NEXT_BUFFER, _READONLY_BUFFER = b"\x97", b"\x98"
_BYTEARRAY8, _BINBYTES, _BINBYTES8 = b"\x96", b"B", b"\x8e"


class _Collector:
    """The file a pickler writes to, and its callback for buffers.

    The pickler hands over large bytes and bytearray objects as they are, right behind a write that
    ends with their opcode and length; those are turned into out-of-band buffers as well.
    """

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.buffers: list[memoryview] = []

    def write(self, data: Any) -> None:
        kind = type(data)
        if (kind is bytes or kind is bytearray) and len(data) >= OUT_OF_BAND and self.parts:
            size = len(data)
            before = self.parts[-1]
            opcode = (
                _BYTEARRAY8 + size.to_bytes(8, "little")
                if kind is bytearray
                else _BINBYTES8 + size.to_bytes(8, "little")
                if size >> 32
                else _BINBYTES + size.to_bytes(4, "little")
            )
            if type(before) is bytes and before.endswith(opcode):
                reference = _NEXT_BUFFER + (b"" if kind is bytearray else _READONLY_BUFFER)
                self.parts[-1] = before[: -len(opcode)] + reference
                self.buffers.append(memoryview(data))
                return
        self.parts.append(data)

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True  # in band
        self.buffers.append(raw)
        return False


def dump(obj: Any) -> tuple[list[memoryview], int, bool]:
    """Pickle ``obj`` as multiprocessing does: (the message in pieces, its size, is it OBJECT)."""
    collector = _Collector()
    ForkingPickler(collector, _PROTOCOL, True, collector.buffer).dump(obj)
    parts = [memoryview(part) for part in collector.parts]
    length = sum(map(len, parts))
    buffers = collector.buffers
    if not buffers:
        return parts, length, False
    words = [len(buffers), length, *(len(b) << 1 | b.readonly for b in buffers)]
    head = memoryview(struct.pack(f"<{len(words)}Q", *words))
    pieces = [head, *parts]
    size = len(head) + length
    for buffer in buffers:
        padding = -size % ALIGNMENT
        pieces += (memoryview(bytes(padding)), buffer)
        size += padding + len(buffer)
    return pieces, size, True


class Message:
    """An OBJECT message, taken apart: the pickle and its buffers."""

    def __init__(self, size: int, windows: Sequence[memoryview | bytes], keep: bool) -> None:
        """``keep``: the windows are the caller's own memory, and buffers may stay in it."""
        reader = _Windows(windows)
        count, length = struct.unpack("<2Q", reader.read(16))
        if count > size // 8 or length > size:
            raise damaged(f"a message of {size} bytes with {count} buffers")
        sizes = struct.unpack(f"<{count}Q", reader.read(8 * count))
        self.pickle = reader.read(length)
        self.buffers: list[Any] = []
        for word in sizes:
            reader.skip(-reader.at % ALIGNMENT)
            self.buffers.append(reader.buffer(word >> 1, bool(word & 1), keep))
        if reader.at != size:
            raise damaged(f"a message of {size} bytes that ends after {reader.at}")

    def load(self) -> Any:
        return pickle.loads(self.pickle, buffers=self.buffers)

    def in_band(self) -> bytes:
        """The same object as one plain pickle, without unpickling it.

        Frames are left out: they are optional, and their lengths would no longer be right.
        """
        import pickletools  # rarely needed, and slow to import

        out: list[Any] = []
        buffers = iter(self.buffers)
        operations = list(pickletools.genops(self.pickle))
        ends = [position for _, _, position in operations[1:]] + [len(self.pickle)]
        pending: Any = None
        for (opcode, _, position), end in zip(operations, ends, strict=True):
            code = opcode.code.encode("latin-1")
            assert position is not None and end is not None
            if pending is not None and code != _READONLY_BUFFER:
                out += (_BYTEARRAY8, len(pending).to_bytes(8, "little"), pending)
            if code == _NEXT_BUFFER:
                pending = next(buffers)
                continue
            if code == _READONLY_BUFFER and pending is not None:
                out += (_BINBYTES8, len(pending).to_bytes(8, "little"), pending)
            elif opcode.name != "FRAME":
                out.append(self.pickle[position:end])
            pending = None
        return b"".join(out)


class _Windows:
    """Reads through one or two windows as if they were one."""

    def __init__(self, windows: Sequence[memoryview | bytes]) -> None:
        self._views = [memoryview(window) for window in windows]
        self._first = len(self._views[0])
        self._total = sum(map(len, self._views))
        self.at = 0

    def _take(self, count: int) -> list[memoryview]:
        start, end = self.at, self.at + count
        if count < 0 or end > self._total:
            raise damaged(f"a message of {self._total} bytes that is to hold {end}")
        self.at = end
        if end <= self._first:
            return [self._views[0][start:end]]
        if start >= self._first:
            return [self._views[1][start - self._first : end - self._first]]
        return [self._views[0][start:], self._views[1][: end - self._first]]

    def read(self, count: int) -> bytes:
        return b"".join(self._take(count))

    def skip(self, count: int) -> None:
        self._take(count)

    def buffer(self, count: int, read_only: bool, keep: bool) -> Any:
        views = self._take(count)
        if keep and len(views) == 1:
            return views[0].toreadonly() if read_only else views[0]
        return b"".join(views) if read_only else bytearray().join(views)
