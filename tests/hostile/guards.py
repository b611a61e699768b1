"""Mappings with forbidden memory on both sides: whoever leaves the segment dies of it."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from shmpipe import segment

GUARD = 1 << 26  # bytes on each side: no physical memory

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
_libc.mmap.restype = ctypes.c_void_p
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = _libc.mprotect.argtypes
_FIXED = 0x10


class Mapping(np.ndarray):  # type: ignore[type-arg]
    """Bytes in the middle of a reservation; as much of ``mmap.mmap`` as a segment uses."""

    def madvise(self, option: int, start: int, length: int) -> None:
        if _libc.madvise(self.ctypes.data + start, length, option):
            number = ctypes.get_errno()
            raise OSError(number, "madvise")


def _reserved(size: int) -> Mapping:
    whole = mmap.mmap(-1, size + 2 * GUARD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(whole, np.uint8)
    start = array.ctypes.data
    for at in (start, start + GUARD + size):
        if _libc.mprotect(at, GUARD, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return array[GUARD : GUARD + size].view(Mapping)


def _put(fd: int, at: int, size: int, offset: int) -> None:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(at, size, protection, mmap.MAP_SHARED | _FIXED, fd, offset) != at:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size} bytes")


def map_shared(fd: int, size: int) -> Mapping:
    made = _reserved(size)
    _put(fd, made.ctypes.data, size, 0)
    return made


def map_twice(fd: int, offset: int, size: int) -> Mapping:
    made = _reserved(2 * size)
    for half in range(2):
        _put(fd, made.ctypes.data + half * size, size, offset)
    return made


def install() -> None:
    """From now on this process maps segments that way."""
    segment.map_shared = map_shared
    segment.map_twice = map_twice
