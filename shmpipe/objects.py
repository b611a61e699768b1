"""Objects as messages: pickles whose large buffers travel beside them, uncopied.

An OBJECT message holds, all numbers unsigned 64-bit little-endian:

    count of buffers, length of the pickle, one word per buffer (its size times 2, plus 1 if it is
    read-only), the pickle, then the buffers, each from a multiple of ALIGNMENT on

The pickle is of protocol 5 and refers to its buffers out of band.  An object without large buffers
is a DATA message holding a plain pickle, as if sent with ``send_bytes(pickle.dumps(obj))``.
"""

from __future__ import annotations

import io
import pickle
import struct
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
    """An OBJECT message on its way in: its pickle and its buffers, each in memory of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pickle: Any = b""
        self.buffers: list[Any] = []
        self._at = 0  # how much has been added
        self._words: bytearray | None = None  # the numbers in front, until they are known
        self._places: list[tuple[int, int, Any]] = []  # (start, end, where to), still to be filled
        self._numbers(2)

    def add(self, piece: memoryview, position: int) -> None:
        """The bytes from ``position`` on; a piece may be added again after an interruption."""
        end = position + len(piece)
        while self._at < end:
            if not self._places:
                raise damaged(f"a message of {self.size} bytes that ends after {self._at}")
            start, stop, store = self._places[0]
            here = max(self._at, start)
            if here >= end:
                self._at = end
                return
            there = min(stop, end)
            part = piece[here - position : there - position]
            if isinstance(store, io.BytesIO):
                store.seek(here - start)
                store.write(part)
            else:
                store[here - start : there - start] = part
            self._at = there
            if there == stop:
                del self._places[0]
                if self._words is not None:
                    self._numbers_known()

    def finished(self) -> Message:
        if self._places or self._at != self.size:
            raise damaged(f"a message of {self.size} bytes that ends in the middle")
        self.buffers = [b.getvalue() if isinstance(b, io.BytesIO) else b for b in self.buffers]
        return self

    def _numbers(self, count: int) -> None:
        self._words = bytearray(8 * count)
        self._place(self._at, 8 * count, self._words)

    def _numbers_known(self) -> None:
        """The two numbers in front are there, or the sizes of the buffers after them."""
        assert self._words is not None
        numbers = memoryview(self._words).cast("Q")
        if not self.buffers and not self.pickle:
            count, length = numbers
            if count > self.size // 8 or not 0 < length <= self.size:
                raise damaged(f"a message of {self.size} bytes with {count} buffers")
            self.pickle = bytearray(length)
            self._numbers(count)
            return
        self._words = None
        at = self._at
        self._place(at, len(self.pickle), self.pickle)
        at += len(self.pickle)
        for word in numbers:
            at += -at % ALIGNMENT
            self.buffers.append(io.BytesIO() if word & 1 else bytearray(self._checked(word >> 1)))
            self._place(at, word >> 1, self.buffers[-1])
            at += word >> 1
        if at != self.size:
            raise damaged(f"a message of {self.size} bytes whose parts make {at}")

    def _place(self, start: int, size: int, store: Any) -> None:
        if size:
            self._places.append((start, start + self._checked(size), store))

    def _checked(self, size: int) -> int:
        if size > self.size:
            raise damaged(f"a message of {self.size} bytes with a part of {size}")
        return size

    def load(self) -> Any:
        return pickle.loads(self.pickle, buffers=self.buffers)

    def in_band(self) -> bytes:
        """The same object as one plain pickle, without unpickling it.

        Frames are left out: they are optional, and their lengths would no longer be right.
        """
        import pickletools  # rarely needed, and slow to import

        out: list[Any] = []
        buffers = iter(self.buffers)
        operations = list(pickletools.genops(bytes(self.pickle)))
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
