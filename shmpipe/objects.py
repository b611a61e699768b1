"""Objects as messages: pickles whose large buffers travel beside them, uncopied.

An OBJECT message holds, all numbers unsigned 64-bit little-endian:

    count of buffers, length of the pickle, one word per buffer (its size times 2, plus 1 if it is
    read-only), the pickle, then the buffers, each from a multiple of ALIGNMENT on

The pickle is of protocol 5 and refers to its buffers out of band.  An object without large buffers
is a DATA message holding a plain pickle, as if sent with ``send_bytes(pickle.dumps(obj))``.

What ``send_array()`` sends has one buffer, and in place of the pickle a description that begins
with ARRAY_MAGIC (see ``arrays``).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import pickletools  # here: an import that fails later would cost a message
import struct
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .assembling import Assembly
from .frames import DATA, OBJECT
from .primitives import AT_ONCE
from .segment import damaged

OUT_OF_BAND = 8192
"""Bytes from which on a buffer that offers itself (a NumPy array's, a PickleBuffer) goes beside."""

ALIGNMENT = 16
ARRAY_MAGIC = b"\x93ndarray"  # no pickle begins like this
_FIRST_TWO = 16  # bytes of the two numbers that say how long the rest of the head is
_PROTOCOL = 5
_NEXT_BUFFER, _READONLY_BUFFER = b"\x97", b"\x98"
_NEXT, _READONLY, _FRAME, _STOP = 0x97, 0x98, 0x95, ord(".")
_HEAD = 9  # bytes of a frame's opcode and length
_BYTEARRAY8, _BINBYTES, _BINBYTES8 = b"\x96", b"B", b"\x8e"


class _Collector:
    """The file a pickler writes to, and its callback for buffers.

    The pickler hands over large bytes and bytearray objects as they are, right behind a write that
    ends with their opcode and length; those are turned into out-of-band buffers as well.  All else
    that it writes at once and is large are whole frames, so what begins like one is left alone: the
    bytes before it may be anything.  A view of a bytearray is only taken when all is pickled: what
    comes behind it may still resize it.
    """

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.buffers: list[tuple[Any, int]] = []  # with the bytes that the pickle counts on

    def write(self, data: Any) -> None:
        kind = type(data)
        size = len(data)
        large = (kind is bytes or kind is bytearray) and size >= OUT_OF_BAND
        if large and self.parts and not _begins_with_frame(data):
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
                self.buffers.append((data, size))
                return
        self.parts.append(bytes(data) if kind is bytearray else data)

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True  # in band
        self.buffers.append((raw, raw.nbytes))
        return False

    def views(self) -> list[memoryview]:
        """The buffers.  BufferError: one is shorter now."""
        return [memoryview(self._cut(source, size)) for source, size in self.buffers]

    def _cut(self, source: Any, size: int) -> Any:
        if len(source) == size:
            return source
        if len(source) < size:
            raise BufferError("a bytearray has become shorter while it was being pickled")
        return source[:size]


def _begins_with_frame(data: bytes | bytearray) -> bool:
    return data[0] == _FRAME and int.from_bytes(data[1:_HEAD], "little") <= len(data) - _HEAD


class _Pickling:
    """A pickler and what it writes to, used for one object after the other.

    To make a ForkingPickler takes longer than to pickle a small object.  It copies the tables of
    registered reducers, so it serves for as long as they are what they were.
    """

    def __init__(self) -> None:
        self.collector = _Collector()
        self.copyreg = copyreg.dispatch_table.copy()
        self.extra = ForkingPickler._extra_reducers.copy()  # type: ignore[attr-defined]
        self.pickler = ForkingPickler(self.collector, _PROTOCOL, True, self.collector.buffer)

    def serves(self) -> bool:
        extra = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        return bool(self.copyreg == copyreg.dispatch_table and self.extra == extra)


_idle: list[_Pickling] = []  # that no call is using
_MOST_IDLE = 8


def _pickled(obj: Any) -> tuple[list[Any], list[memoryview]]:
    """The pickle in parts, and the buffers beside it."""
    try:
        pickling = _idle.pop()
        if not pickling.serves():
            pickling = _Pickling()
    except IndexError:
        pickling = _Pickling()
    pickling.pickler.dump(obj)  # one that raises is not used again
    pickling.pickler.clear_memo()  # which refers to what was pickled
    collector = pickling.collector
    parts, buffers = collector.parts, collector.views()
    collector.parts, collector.buffers = [], []
    if len(_idle) < _MOST_IDLE:
        _idle.append(pickling)
    return parts, buffers


def dump(obj: Any) -> tuple[int, Any, int]:
    """Pickle ``obj`` as multiprocessing does: what ``Sender.send`` takes (kind, content, size)."""
    parts, buffers = _pickled(obj)
    if not buffers:
        if len(parts) == 1:
            return DATA, parts[0], len(parts[0])
        return DATA, parts, sum(map(len, parts))
    length = sum(map(len, parts))
    words = [len(buffers), length, *(len(b) << 1 | b.readonly for b in buffers)]
    head = memoryview(struct.pack(f"<{len(words)}Q", *words))
    pieces = [head, *parts]
    size = len(head) + length
    for buffer in buffers:
        padding = -size % ALIGNMENT
        pieces += (memoryview(bytes(padding)), buffer)
        size += padding + len(buffer)
    return OBJECT, pieces, size


class Message(Assembly):
    """An OBJECT message on its way in: its pickle and its buffers, each in memory of its own."""

    kind = OBJECT

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.pickle: Any = b""
        self.buffers: list[Any] = []
        self._head = bytearray()  # the numbers in front, as far as they have come
        self._places: list[tuple[int, int, Any]] | None = None  # (start, end, where to)
        self._next = 0  # the first place that is not full yet

    def put(self, piece: memoryview, position: int) -> None:
        if self._places is None:
            self._read_head(piece, position)
            if self._places is None:
                return
        end = position + len(piece)
        number = self._next
        while number < len(self._places):
            start, stop, store = self._places[number]
            here, there = max(position, start), min(stop, end)
            if here < there:
                part = piece[here - position : there - position]
                if isinstance(store, io.BytesIO):
                    store.seek(here - start)
                    store.write(part)
                else:
                    store[here - start : there - start] = part
            if stop > end:
                break
            number += 1
        self._next = number

    def whole(self) -> Message:
        if self._places is None:
            raise damaged(f"a message of {self.size} bytes that is all numbers")
        self.buffers = [b.getvalue() if isinstance(b, io.BytesIO) else b for b in self.buffers]
        return self

    def _read_head(self, piece: memoryview, position: int) -> None:
        head = self._head
        _fill(head, _FIRST_TWO, piece, position)
        if len(head) >= _FIRST_TWO:
            count = int.from_bytes(head[:8], "little")
            if count > 1 + self.size // OUT_OF_BAND:  # (an array may be small)
                raise damaged(f"a message of {self.size} bytes with {count} buffers")
            size = _FIRST_TWO + 8 * count
            _fill(head, size, piece, position)
            if len(head) == size:
                self._lay_out(struct.unpack(f"<{count + 2}Q", head))

    def _lay_out(self, numbers: tuple[int, ...]) -> None:
        """Make room for the pickle and the buffers.

        A message is as large as it says only when all of it is there.  So for one that says it is
        very large the room grows with what comes.
        """
        prepared = self.size <= AT_ONCE
        at = 8 * len(numbers)
        if not 0 < numbers[1] <= self.size:
            raise damaged(f"a message of {self.size} bytes with a pickle of {numbers[1]}")
        pickled = bytearray(numbers[1] if prepared else 0)
        places: list[tuple[int, int, Any]] = [(at, at + numbers[1], pickled)]
        for word in numbers[2:]:
            size = word >> 1
            start = places[-1][1]
            start += -start % ALIGNMENT
            if start + size > self.size:
                raise damaged(f"a message of {self.size} bytes with a part of {size} at {start}")
            room = self.room(size if prepared else 0, bool(word & 1))
            places.append((start, start + size, room))
        if places[-1][1] != self.size:
            raise damaged(f"a message of {self.size} bytes whose parts make {places[-1][1]}")
        self.pickle = pickled
        self.buffers = [store for _, _, store in places[1:]]
        self._places = places  # from here on all that is needed is there

    def room(self, size: int, readonly: bool) -> Any:
        """Where a buffer's bytes go: what can be assigned to by slices, or a BytesIO."""
        return io.BytesIO() if readonly else bytearray(size)

    def sizes(self) -> list[int]:
        """How many bytes each buffer has."""
        return [stop - start for start, stop, _ in (self._places or [])[1:]]

    def load(self) -> Any:
        if self.pickle.startswith(ARRAY_MAGIC):
            from . import arrays  # which needs NumPy

            return arrays.array_of(self)
        return pickle.loads(self.pickle, buffers=self.buffers)

    def in_band(self) -> bytes:
        """The same object as one plain pickle, without unpickling it.

        Frames are left out: they are optional, and their lengths would no longer be right.  OSError
        EBADMSG: what should be a pickle is none.
        """
        if self.pickle.startswith(ARRAY_MAGIC):
            return pickle.dumps(self.load(), _PROTOCOL)
        pickled, buffers = memoryview(self.pickle), iter(self.buffers)
        out: list[Any] = []
        pending: Any = None
        start = 0  # of what has not been copied yet
        for code, at, end in operations(self.pickle):
            if pending is not None:
                readonly = code == _READONLY
                out += (_BINBYTES8 if readonly else _BYTEARRAY8, len(pending).to_bytes(8, "little"))
                out.append(pending)
                pending = None
                if readonly:
                    start = end
                    continue
            if code == _NEXT:
                pending = next(buffers, None)
                if pending is None:
                    raise damaged("a pickle with more buffers than were sent")
            elif code != _FRAME:
                continue
            out.append(pickled[start:at])
            start = end
        out.append(pickled[start:])
        return b"".join(out)


def operations(pickled: bytearray) -> Iterator[tuple[int, int, int]]:
    """(opcode, where it is, where the next one is) of a pickle, up to STOP; nothing is decoded."""
    lengths = _lengths()
    at, size = 0, len(pickled)
    while at < size:
        code = pickled[at]
        length = lengths[code]
        end = at + 1
        if length is None:
            raise damaged(f"a pickle with an opcode {code}")
        fixed, prefix, lines = length
        if prefix:
            fixed += int.from_bytes(pickled[end : end + prefix], "little")
        end += fixed
        for _ in range(lines):
            end = pickled.find(b"\n", end) + 1 or size + 1
        if end > size:
            break
        yield code, at, end
        if code == _STOP:
            return
        at = end
    raise damaged("a pickle without an end")


@lru_cache(maxsize=1)
def _lengths() -> list[tuple[int, int, int] | None]:
    """Of what follows each opcode: bytes, of which the first so many say how many more; lines."""
    found: list[tuple[int, int, int] | None] = [None] * 256
    for opcode in pickletools.opcodes:
        count = opcode.arg.n if opcode.arg else 0
        prefix = {
            pickletools.TAKEN_FROM_ARGUMENT1: 1,
            pickletools.TAKEN_FROM_ARGUMENT4: 4,
            pickletools.TAKEN_FROM_ARGUMENT4U: 4,
            pickletools.TAKEN_FROM_ARGUMENT8U: 8,
        }.get(count, 0)
        lines = 0
        if opcode.arg and count == pickletools.UP_TO_NEWLINE:
            lines = 2 if opcode.arg.name.endswith("_pair") else 1
        found[ord(opcode.code)] = prefix or max(count, 0), prefix, lines
    return found


def _fill(head: bytearray, size: int, piece: memoryview, position: int) -> None:
    """Put into ``head`` what is missing of ``size`` bytes, as far as ``piece`` has it."""
    at = len(head)
    if at < size:
        head += piece[at - position : size - position]
