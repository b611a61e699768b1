"""What one call on a connection needs: buffers, copying out, limits of time."""

from __future__ import annotations

from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from . import objects
from .arguments import as_bytes

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def contiguous(buf: ReadableBuffer) -> memoryview:
    try:
        return as_bytes(buf)
    except BufferError:
        raise TypeError("a contiguous buffer is required") from None


def target(buf: WriteableBuffer) -> memoryview:
    """The bytes of a buffer to be filled; if it cannot be, read-only ones of the same length.

    So that the message's length is what is complained about first, as in multiprocessing.
    """
    try:
        view = as_bytes(buf)
    except BufferError:  # not contiguous
        with memoryview(buf) as whole:
            return memoryview(bytes(whole.nbytes))
    if view.readonly:
        memoryview(buf).release()  # ValueError: a format that Python does not know
    return view


def part_of(buf: ReadableBuffer, offset: int, size: int | None) -> memoryview:
    """The bytes from ``offset`` on, checked as multiprocessing does."""
    view = contiguous(buf)
    length = len(view)
    if offset < 0:
        raise ValueError("offset is negative")
    if length < offset:
        raise ValueError("buffer length < offset")
    if size is None:
        return view[offset:] if offset else view
    if size < 0:
        raise ValueError("size is negative")
    if offset + size > length:
        raise ValueError("buffer length < offset + size")
    return view[offset : offset + size]


def plain(message: bytes | objects.Message) -> bytes:
    return message.in_band() if isinstance(message, objects.Message) else message


def load(message: bytes | objects.Message) -> Any:
    if isinstance(message, objects.Message):
        return message.load()
    return reduction.ForkingPickler.loads(message)
