"""What one call on a connection needs: buffers, copying out, limits of time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from . import objects
from .arguments import as_bytes
from .bytering import Piece
from .frames import DATA, OBJECT
from .receiving import Taker
from .sending import Sender
from .waiting import NOT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def deadline_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def contiguous(buf: ReadableBuffer) -> memoryview:
    try:
        return as_bytes(buf)
    except BufferError:
        raise TypeError("a contiguous buffer is required") from None


def transmit(
    sender: Sender, kind: int, pieces: Sequence[Piece], size: int, deadline: float | None
) -> None:
    """Send; and if that fails, leave no views of the caller's buffers in the traceback's frames.

    (They would keep a bytearray from being resized; and CPython before 3.13 crashes on a view of a
    view that its garbage collector finds in a cycle, as an exception's frames often are.)
    """
    try:
        sender.send(kind, pieces, size, deadline)
    except BaseException:
        sender.side.recover(NOT)
        for piece in pieces:
            if isinstance(piece, memoryview):
                piece.release()
        raise


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


def assemble(kind: int, size: int) -> objects.Message | objects.Plain:
    return objects.Message(size) if kind == OBJECT else objects.Plain(size)


def take(kind: int, size: int, windows: list[memoryview]) -> bytes | objects.Message:
    """Copy a message out of the ring."""
    if kind == OBJECT:
        message = objects.Message(size)
        at = 0
        for window in windows:
            message.add(window, at)
            at += len(window)
        return message.finished()
    return bytes(windows[0]) if len(windows) == 1 else b"".join(windows)


def taker_into(room: memoryview) -> Taker:
    """Copies a message into ``room`` if it fits there, and returns its length."""

    def into(kind: int, size: int, windows: list[memoryview]) -> Any:
        if kind != DATA or size > len(room):
            return take(kind, size, windows)
        at = 0
        for window in windows:
            room[at : at + len(window)] = window
            at += len(window)
        return size

    return into


def plain(message: bytes | objects.Message) -> bytes:
    return message.in_band() if isinstance(message, objects.Message) else message


def load(message: bytes | objects.Message) -> Any:
    if isinstance(message, objects.Message):
        return message.load()
    return reduction.ForkingPickler.loads(message)
