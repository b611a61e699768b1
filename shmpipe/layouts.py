"""What an array message says of its array: type, order and shape, in words that are not a pickle.

In place of the pickle of an OBJECT message (see ``objects``), numbers little-endian:

    MAGIC, 8 bytes, with which no pickle begins
    u8 version   u8 order (0: C, 1: Fortran)   u16 dimensions   u32 length of the type's text
    u64 for each dimension
    the type as text: ``dtype.str``, or for structures the Python literal of what ``dtype()`` takes

Of what is received nothing is believed: a description that does not fit its bytes is EBADMSG.
"""

from __future__ import annotations

import ast
import math
import struct
from functools import lru_cache
from typing import Any, TypeAlias

import numpy

from .objects import ALIGNMENT, ARRAY_MAGIC
from .segment import damaged

_VERSION = 1
_FIXED = struct.Struct("<8sBBHI")
_MOST_TEXT = 1 << 20  # characters of a type
_READERS = ("shmpipe", "numpy", "ast")  # whose code runs while a description is read

Array: TypeAlias = "numpy.ndarray[Any, Any]"


class Layout:
    """What a description says."""

    __slots__ = ("dtype", "order", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: numpy.dtype[Any], order: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.order: Any = order
        self.size = math.prod(shape) * dtype.itemsize

    def over(self, buffer: Any) -> Array:
        """An array of the memory of ``buffer``."""
        return numpy.ndarray(self.shape, self.dtype, buffer, order=self.order)

    def empty(self) -> Array:
        return numpy.empty(self.shape, self.dtype, self.order)

    def check(self, out: Array) -> None:
        if self.dtype != out.dtype:
            raise TypeError(f"the message is an array of {self.dtype}, out of {out.dtype}")
        if self.shape != out.shape:
            raise ValueError(f"the message is an array of shape {self.shape}, out of {out.shape}")


def bytes_of(array: Array) -> memoryview:
    """The memory of an array that is contiguous in either order."""
    if not array.nbytes:
        return memoryview(b"")
    flat: Any = array.reshape(-1, order="A")  # of what is contiguous: a view
    return memoryview(flat.view(numpy.uint8))


def head_of(shape: tuple[int, ...], dtype: numpy.dtype[Any], order: str) -> bytes:
    """What lies before the items.  TypeError: the type cannot be described."""
    # (Types that differ in this alone are equal.)
    return _head_of(shape, dtype, order, bool(dtype.isalignedstruct))


@lru_cache(maxsize=256)
def _head_of(shape: tuple[int, ...], dtype: numpy.dtype[Any], order: str, _: bool) -> bytes:
    if dtype.hasobject:
        raise TypeError(f"an array of {dtype} refers to objects: send() takes it")
    described = _described(dtype)
    text = described if isinstance(described, str) else repr(described)
    try:
        same = type_of(text) == dtype
    except Exception as error:
        if not _is_of_the_words(error):
            raise
        same = False
    if not same:
        raise TypeError(f"the type {dtype!r} cannot be described in plain words: send() takes it")
    encoded = text.encode()
    words = struct.pack(f"<{len(shape)}Q", *shape)
    fixed = _FIXED.pack(ARRAY_MAGIC, _VERSION, order == "F", len(shape), len(encoded))
    description = fixed + words + encoded
    size = math.prod(shape) * dtype.itemsize
    head = struct.pack("<3Q", 1, len(description), size << 1) + description
    return head + bytes(-len(head) % ALIGNMENT)


def _described(dtype: numpy.dtype[Any]) -> Any:
    """A type as strings, numbers, lists and dictionaries, from which ``_type_of`` makes it."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_described(base), tuple(shape))
    if dtype.names is None:
        return dtype.str
    fields: Any = dtype.fields
    found = [fields[name] for name in dtype.names]
    described: dict[str, Any] = {
        "names": list(dtype.names),
        "formats": [_described(field[0]) for field in found],
        "offsets": [int(field[1]) for field in found],
        "itemsize": dtype.itemsize,
    }
    if any(len(field) > 2 for field in found):
        described["titles"] = [field[2] if len(field) > 2 else None for field in found]
    if dtype.isalignedstruct:
        described["align"] = True
    return described


@lru_cache(maxsize=256)
def type_of(text: str) -> numpy.dtype[Any]:
    """The type of that description; whatever exception if it is none."""
    dtype = _type_of(ast.literal_eval(text) if text[:1] in ("{", "(") else text)
    if dtype.hasobject:
        raise TypeError("a type of objects")  # whose pointers would be of somewhere else
    if grows(dtype):
        raise TypeError("a type that no array has which is made of it")
    return dtype


def grows(dtype: numpy.dtype[Any]) -> bool:
    """Whether it is text of no length, for which NumPy takes one of length 1 in a new array."""
    return not dtype.itemsize and numpy.empty(0, dtype).itemsize > 0


def _type_of(described: Any) -> numpy.dtype[Any]:
    made: Any = described
    align = False
    if isinstance(described, tuple):
        base, shape = described
        made = _type_of(base), shape
    elif isinstance(described, dict):
        align = described.pop("align", False)
        made = {**described, "formats": [_type_of(field) for field in described["formats"]]}
    elif not isinstance(described, str):
        raise TypeError(f"a type described by {described!r}")
    dtype: numpy.dtype[Any] = numpy.dtype(made, align=align)
    return dtype


def layout_of(description: Any, size: int | None) -> Layout:
    """What a description says.

    size: the bytes that are there for the items, None for a message that has not one buffer.
    TypeError: it is a pickle.  OSError: it is nothing, or does not fit the size.
    """
    if not description.startswith(ARRAY_MAGIC):
        raise not_an_array()
    try:
        _, version, order, dimensions, length = _FIXED.unpack_from(description)
        at = _FIXED.size + 8 * dimensions
        if version != _VERSION or order > 1 or length > _MOST_TEXT:
            raise ValueError
        if at + length != len(description):
            raise ValueError
        shape = struct.unpack_from(f"<{dimensions}Q", description, _FIXED.size)
        dtype = type_of(bytes(description[at:]).decode())
        layout = Layout(shape, dtype, "F" if order else "C")
        if layout.size != size:
            raise ValueError
        if not size:
            layout.empty()  # other dimensions may be too large for it
        return layout
    except Exception as error:
        if isinstance(error, MemoryError) or not _is_of_the_words(error):
            raise
        raise damaged("an array with a description that does not fit it") from None


def _is_of_the_words(error: Exception) -> bool:
    """Whether reading a description has failed, and not a signal's handler has raised meanwhile."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    module: str = trace.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in _READERS


def found_in(view: memoryview) -> tuple[Layout, int]:
    """The layout of a message that is an array, and where in its bytes the items begin."""
    count, length = struct.unpack_from("<2Q", view) if len(view) >= 16 else (0, 0)
    start = 16 + 8 * count
    at = start + length
    at += -at % ALIGNMENT
    if at > len(view):
        raise damaged(f"a message of {len(view)} bytes whose items begin at {at}")
    layout = layout_of(bytes(view[start : start + length]), len(view) - at if count == 1 else None)
    return layout, at


def not_an_array() -> TypeError:
    return TypeError("the next message is not an array: recv() and recv_bytes() take it")
