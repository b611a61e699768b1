"""What callers may pass: checked here, with the exceptions the standard library would raise."""

from __future__ import annotations

import operator
import pickle
from errno import EINVAL
from typing import Any

from . import control
from .policies import POLICIES


def as_bytes(buffer: Any) -> memoryview:
    """The bytes of a C-contiguous buffer of any format and shape.

    TypeError: not a buffer.  BufferError: not contiguous.  ValueError: a released memoryview, or
    whatever else does not give its buffer away.
    """
    try:
        view = memoryview(buffer)
    except ValueError as error:
        try:  # a format that Python does not know (NumPy's dates): the bytes alone
            return memoryview(b"".join((buffer,)))
        except TypeError:
            raise error from None
    if not view.c_contiguous:
        view.release()
        raise BufferError("memoryview: underlying buffer is not C-contiguous")
    if view.ndim == 1 and view.format == "B":
        return view
    try:
        return view.cast("B")
    except TypeError:  # a format or a shape that cannot be cast: structures, zeros in the shape
        return pickle.PickleBuffer(buffer).raw()


def check_int(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def check_spin(spin: Any) -> float | None:
    if spin is None:
        return None
    if not isinstance(spin, (int, float)):
        raise TypeError(f"spin must be a number of seconds or None, not {type(spin).__name__}")
    if not 0 <= spin <= 1:
        raise ValueError(f"spin is {spin}: allowed are 0 (off) to 1 seconds, or None (automatic)")
    return float(spin)


def check_wake(wake: Any) -> int:
    """The number of a wake policy."""
    if not isinstance(wake, str):
        raise TypeError(f"wake must be a string, not {type(wake).__name__}")
    if wake not in POLICIES:
        raise ValueError(f"wake is {wake!r}: allowed are {', '.join(map(repr, POLICIES))}")
    return POLICIES[wake]


def check_sizes(size: Any, write_size: Any, max_size: Any) -> tuple[int, int, int]:
    """A new pipe's size, write size and largest size, in pages.

    As if a kernel pipe were made and F_SETPIPE_SZ and F_SETPIPE_WRITE_SZ were called on it.
    """
    pages = _pages("size", size)
    if max_size is None:
        max_pages = max(pages, control.round_size(control.system_max_size()))
    else:
        max_pages = _pages("max_size", max_size)
    if pages > control.NEW_PIPE_PAGES:
        control.check_growth(pages, max_pages)
    return pages, control.round_write_size(check_int("write_size", write_size), pages), max_pages


def _pages(name: str, value: Any) -> int:
    """A size in pages.  (fcntl() cuts its argument to 32 bits; for a new pipe that is no help.)"""
    size = check_int(name, value)
    if not 0 <= size <= control.LARGEST:
        raise OSError(EINVAL, f"{name} {size}: allowed are 0 to {control.LARGEST} bytes")
    return control.round_size(size)
