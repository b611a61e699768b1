"""The primitives, in plain Python: semaphores in a segment, fences, copies, waits, spinning.

Nothing here knows what it is used for.  The compiled engine's are in ``primitives.pyx``, with the
same names and meanings; everything else is one source for both.

A semaphore is an unnamed, process-shared POSIX ``sem_t`` at an address inside shared memory, so it
has no name that could leak and costs nothing to create.  ``_multiprocessing.SemLock`` is CPython's
own wrapper around ``sem_t``; handed an address instead of a name it takes and posts in about 20 ns,
which no other pure-Python route comes near.  Its C methods are also atomic with respect to Python's
signal handlers, and it knows which thread holds it: both matter in ``locking``.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import threading
import time

# CPython's own module; type checkers do not know it.
from _multiprocessing import SemLock  # type: ignore[import-not-found]
from collections.abc import Sequence
from ctypes import CDLL, byref, c_int, c_long, c_short, c_size_t, c_uint, c_ulong, c_void_p
from math import ceil
from typing import Any

SEM_BYTES = 32
"""Room for one ``sem_t``, in bytes (its size with glibc on every 64-bit machine)."""

AT_ONCE = 1 << 26
"""Bytes that are set aside for a message because it says so; for more, they have to come."""

WOKEN, TIMED_OUT, INTERRUPTED = 1, 0, -1
"""What a wait returns; INTERRUPTED means that a signal came and its handler has run."""

POLLIN, POLLOUT, POLLERR, POLLHUP = 0x01, 0x04, 0x08, 0x10
ELSEWHERE = 0x10000  # beyond what poll(2) can show

SIGNALS_ANYWHERE = True
"""Whether a signal's handler may run between any two steps of ours, and not only while we wait."""

ThreadLock = threading.RLock
"""A lock of this process that knows which thread has it (``_is_owned``)."""

COMPILED = False

_SEMAPHORE_KIND = 1
_MAP_FIXED = 0x10
_SEM_VALUE_MAX = 2**31 - 1
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_SHARED = 128  # in a sem_t behind its word: the kind of futex

if not os.confstr("CS_GNU_LIBC_VERSION"):
    raise ImportError("shmpipe's pure-Python engine needs glibc; build the compiled engine instead")

_libc: Any = CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", c_long), ("tv_nsec", c_long))


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", c_int), ("events", c_short), ("revents", c_short))


_libc.sem_init.argtypes = (c_void_p, c_int, c_uint)
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_libc.mmap.restype = c_void_p
_libc.poll.argtypes = (c_void_p, c_ulong, c_int)
_libc.clock_gettime.argtypes = (c_int, c_void_p)
if hasattr(_libc, "sem_clockwait"):
    # The monotonic clock: a sleeper must not oversleep because somebody set the time back.
    _libc.sem_clockwait.argtypes = (c_void_p, c_int, c_void_p)
    _WAIT_CLOCK = _CLOCK_MONOTONIC

    def _sem_timedwait(address: int, until: _Timespec) -> Any:
        return _libc.sem_clockwait(address, _CLOCK_MONOTONIC, byref(until))
else:  # glibc before 2.30
    _libc.sem_timedwait.argtypes = (c_void_p, c_void_p)
    _WAIT_CLOCK = _CLOCK_REALTIME

    def _sem_timedwait(address: int, until: _Timespec) -> Any:
        return _libc.sem_timedwait(address, byref(until))


def semaphore_image(value: int) -> bytes:
    """The SEM_BYTES bytes of a process-shared semaphore at ``value``, to be copied into a segment.

    A ``sem_t`` that nobody has used yet holds no addresses, so a copy of one is one.
    """
    image = ctypes.create_string_buffer(SEM_BYTES)
    if _libc.sem_init(image, 1, value):
        number = ctypes.get_errno()
        raise OSError(number, f"sem_init: {os.strerror(number)}")
    return image.raw


def address_of(buffer: mmap.mmap) -> int:
    """Where a writable mapping lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def map_shared(fd: int, size: int) -> mmap.mmap:
    """Map ``size`` bytes of a file, shared and writable, without keeping a descriptor.

    ``mmap.mmap(fd, ...)`` would duplicate it.  So memory is reserved under the care of a ``mmap``
    object, which unmaps it when its last view goes, and the file is then mapped over it.
    """
    reserved = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = address_of(reserved)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {size} bytes: {os.strerror(number)}")
    return reserved


def map_twice(fd: int, offset: int, size: int) -> mmap.mmap:
    """Map ``size`` bytes of a file from ``offset`` on twice in a row, as ``map_shared`` does."""
    reserved = mmap.mmap(-1, 2 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = address_of(reserved)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    for at in (address, address + size):
        if _libc.mmap(at, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, offset) != at:
            number = ctypes.get_errno()
            raise OSError(number, f"mapping {size} bytes twice: {os.strerror(number)}")
    return reserved


def cut_off(mapping: mmap.mmap) -> None:
    """Put zeros of this process's own in the file's place: who has a view sees no more of it."""
    address, size = address_of(mapping), len(mapping)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if _libc.mmap(address, size, protection, flags, -1, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"replacing {size} bytes: {os.strerror(number)}")


class Semaphore(SemLock):  # type: ignore[misc]
    """A semaphore at ``address`` inside ``keep``, which is kept mapped as long as this lives.

    ``acquire(False)`` and ``release()`` are inherited C methods: full barriers on x86-64.
    """

    address: int
    keep: object

    @classmethod
    def at(cls, address: int, keep: object) -> Any:
        self = cls._rebuild(address, _SEMAPHORE_KIND, _SEM_VALUE_MAX, None)
        self.address = address
        self.keep = keep
        return self

    def wait(self, seconds: float) -> int:
        """Take the semaphore, sleeping up to ``seconds``: WOKEN, TIMED_OUT or INTERRUPTED."""
        _check(self.address)
        until = _Timespec()
        _libc.clock_gettime(_WAIT_CLOCK, byref(until))
        nanoseconds = until.tv_nsec + int(seconds * 1e9)
        until.tv_sec += nanoseconds // 1_000_000_000
        until.tv_nsec = nanoseconds % 1_000_000_000
        if not _sem_timedwait(self.address, until):
            return WOKEN
        number = ctypes.get_errno()
        if number == errno.ETIMEDOUT:
            return TIMED_OUT
        if number == errno.EINTR:
            return INTERRUPTED
        raise OSError(number, f"waiting for a semaphore: {os.strerror(number)}")


def _check(address: int) -> None:
    """OSError EBADMSG: somebody has overwritten a semaphore.

    With another kind of futex glibc would ask the kernel for another operation, and end the process
    when it refuses.  (Compiled, no semaphore goes through glibc.  Here who writes just between this
    look and glibc's own has his way.)
    """
    if c_int.from_address(address + 8).value != _SHARED:
        raise OSError(errno.EBADMSG, "damaged pipe: a semaphore is none")


class Sleepable(Semaphore):
    """A semaphore that is slept on, and which may have sleepers to wake when it is posted."""

    def release(self) -> None:
        _check(self.address)
        try:
            super().release()
        except ValueError:
            raise OSError(errno.EBADMSG, "damaged pipe: a semaphore is full") from None


def poll_fd(fd: int, events: int, seconds: float | None, others: Sequence[int] = ()) -> int:
    """Sleep until ``fd`` shows ``events``, an error or a hang-up; None: without a time limit.

    Returns what it shows; ELSEWHERE if only one of ``others`` has become readable; INTERRUPTED if a
    signal came (``select.poll`` would resume by itself).
    """
    wanted = [_PollFd(fd, events, 0), *(_PollFd(other, POLLIN, 0) for other in others)]
    entries = (_PollFd * len(wanted))(*wanted)
    # Rounded up: a poll that ends before its time would be done again and again.
    milliseconds = -1 if seconds is None else min(ceil(max(seconds, 0) * 1000), 2**31 - 1)
    ready = _libc.poll(entries, len(entries), milliseconds)
    if ready >= 0:
        return int(entries[0].revents) or (ELSEWHERE if ready else 0)
    number = ctypes.get_errno()
    if number == errno.EINTR:
        return INTERRUPTED
    raise OSError(number, f"poll: {os.strerror(number)}")


# --- shared memory -------------------------------------------------------------------------------


def as_words(view: memoryview) -> memoryview:
    """64-bit words, to be loaded and stored by index.  (Compiled: a pointer to volatile words.)"""
    return view


def as_numbers(view: memoryview) -> memoryview:
    """32-bit words, likewise."""
    return view


def as_memory(view: memoryview) -> memoryview:
    """Bytes, for the copies below.  (Compiled: a pointer; whoever keeps it keeps the mapping.)"""
    return view


def copy_in(memory: memoryview, at: int, source: bytes | memoryview) -> None:
    """Copy all of ``source`` to the bytes from ``at`` on."""
    memory[at : at + len(source)] = source


def copy_out(memory: memoryview, at: int, count: int) -> bytes:
    """``count`` bytes from ``at`` on."""
    return bytes(memory[at : at + count])


def copy_two(memory: memoryview, at: int, first: int, second: int) -> bytes:
    """``first`` bytes from ``at`` on and ``second`` from the beginning, as one."""
    return b"".join((memory[at : at + first], memory[:second]))


def copy_into(memory: memoryview, at: int, count: int, room: memoryview, start: int) -> None:
    """Copy ``count`` bytes from ``at`` on into ``room``, from ``start`` on."""
    room[start : start + count] = memory[at : at + count]


class Store:
    """Bytes that come in pieces and are then handed over without another copy."""

    def __init__(self, size: int) -> None:
        self._bytes = io.BytesIO()

    def add(self, piece: memoryview, position: int) -> None:
        """The bytes from ``position`` on."""
        self._bytes.seek(position)
        self._bytes.write(piece)

    def finished(self) -> bytes:
        return self._bytes.getvalue()


def acquire_fence() -> None:
    """Behind the load of a position: nothing that it covers is loaded before it.

    (Nothing to do here: x86-64 keeps that order, and so does the interpreter.)
    """


def release_fence() -> None:
    """Before the store of a position: everything that it covers is stored before it (as above)."""


def spin(words: memoryview, index: int, target: int, seconds: float) -> bool:
    """Wait without sleeping until a word that only grows has reached ``target``; False: it has not.

    (Compiled: other threads may run meanwhile.)
    """
    until = time.monotonic() + seconds
    while words[index] < target:
        if time.monotonic() > until:
            return False
    return True


def idle(seconds: float) -> None:
    """Do nothing for less than a millisecond, without sleeping.  (As with ``spin``.)"""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def check_signals() -> None:
    """Run the handlers of signals that have come.  (The interpreter does so by itself.)"""


coarse_time = time.monotonic
"""Seconds on the monotonic clock; may be up to 10 ms late where that is faster."""

_fence_memory = mmap.mmap(-1, mmap.PAGESIZE)
_fence_memory[:SEM_BYTES] = semaphore_image(1)
_fence = Semaphore.at(address_of(_fence_memory), _fence_memory)


def fence() -> None:
    """A full barrier: the locked instruction in ``sem_post``, on a semaphore of our own."""
    _fence.release()
    _fence.acquire(False)
