"""The shared segment: a sealed memfd, where everything lies in it, and the windows onto it.

The layout is written down once, here, and grouped by *who writes a word*: a cache line has one
writing side, so a side that only works never takes a line away from the other one.

    byte 0     header: magic, layout version, page size, number of rings, most pages of a ring
    1024       control block of ring 0: LINES cache lines of eight 64-bit words
    1024 + k   control block of ring k
    4096       places: a cache line for each process that uses the segment (see locking)
    20480      slot tables: one 32-bit fill per page, for each ring
    ...        page-aligned data of each ring
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from errno import EAGAIN, EBADMSG
from typing import Any

from . import identity
from .primitives import SEM_BYTES, Semaphore, address_of, map_shared, semaphore_image
from .recordlock import RecordLock

PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT
"""Bytes of a pipe page: the unit of slots, merging, sizes and PIPE_BUF."""

MASK = PAGE - 1
ALIGN = 8
"""Bytes: frames start at multiples of it, so that a header never wraps around the end of a ring."""

WORD = (1 << 64) - 1
LINE = 8  # words of a cache line

# --- control words: index = line * LINE + place --------------------------------------------------
# Configuration: written by fcntl calls under both side locks, read by everybody.
PAGES, WRITE_PAGES, POLICY, RD_FLAGS, WR_FLAGS, LIMIT = range(0, 6)
# Set by a closing reader, cleared by the writer that has asked the doorbell about it.
RD_LEFT = 6
# Writers, under the writers' lock.
WPOS, W_BYTES, WRITES, SKIP, W_OPEN = range(8, 13)
# Readers, under the readers' lock.
RPOS, R_BYTES, READS, DROPPED, R_KEEPER = range(16, 21)
# Writers that wait for space, under the writers' lock.
WR_ARM, WR_SLEEPERS, WR_LONG, WR_WATCH, PLUG, W_SLEEPS, W_SPINS, WR_WANT = range(24, 32)
# Readers that wait for data, under the readers' lock.
RD_ARM, RD_SLEEPERS, RD_LONG, RD_WATCH, R_SLEEPS, R_SPINS = range(32, 38)
# Writers that wake readers.
RD_RUNG, R_WAKES = range(40, 42)
# Readers that wake writers.
WR_RUNG, UNPLUG, W_WAKES, W_WITHHELD = range(48, 52)
# The side locks.
RD_LOCK, WR_LOCK = 56, 64
# The semaphores that sleepers sleep on.
RD_WAIT, WR_WAIT = 72, 80
# The turns: locks like the side locks, held for as long as a frame takes that needs several rounds;
# beside each, who has it, for those who would otherwise not even look at the lock.
RD_TURN, RD_TURN_BY = 88, 92
WR_TURN, WR_TURN_BY = 96, 100
RD_TURN_DOOR, WR_TURN_DOOR = 104, 112  # semaphores of those who wait for a turn
LINES = 16

_MAGIC = int.from_bytes(b"shmpipe\x01", "little")
_VERSION = 1
_RING0 = 1024
_RING_BYTES = LINES * LINE * 8
_PLACES = 4096
_MAX_PLACES = 256
_TABLES = _PLACES + _MAX_PLACES * 64
_MAX_RINGS = 2

_EMPTY_PLACE = memoryview(bytes(56)).cast("Q")
_FREE = semaphore_image(1)
_TAKEN = semaphore_image(0)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """One mapping of a segment, with its file descriptor.

    The mapping goes when the last window or semaphore on it goes; ``close()`` gives up only the
    descriptor, so a thread that is still inside a call never touches unmapped memory.
    """

    my_place = -1
    fd = -1  # all also for an object whose construction failed
    _lent: dict[int, int] = {}  # noqa: RUF012

    def __init__(self, fd: int, rings: int, max_pages: int) -> None:
        self.rings = rings
        self.max_pages = max_pages
        self.map = map_shared(fd, _size(rings, max_pages))
        self.parts: dict[int, Any] = {}  # what the ends in this process share, by ring
        self._lent = {}
        self.fd = fd  # from here on ours to close
        self.address = address_of(self.map)
        self._bytes = memoryview(self.map)
        self.header = self._bytes[:64].cast("Q")
        self.numbers = self._bytes[_PLACES:_TABLES].cast("I")
        self.my_place = -1
        self.sides: weakref.WeakSet[Any] = weakref.WeakSet()  # the open ends in this process

    @classmethod
    def create(cls, rings: int, max_pages: int) -> Segment:
        """A new segment for ``rings`` rings of up to ``max_pages`` pages; memory comes on use."""
        fd = os.memfd_create("shmpipe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, _size(rings, max_pages))
            # No holder can truncate the file under another one, which would be SIGBUS there.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self = cls(fd, rings, max_pages)
        except BaseException:
            os.close(fd)
            raise
        self.header[:5] = memoryview(
            b"".join(x.to_bytes(8, "little") for x in (_MAGIC, _VERSION, PAGE, rings, max_pages))
        ).cast("Q")
        for ring in range(rings):
            base = _RING0 + ring * _RING_BYTES
            for word, image in (
                (RD_LOCK, _FREE),
                (WR_LOCK, _FREE),
                (RD_WAIT, _TAKEN),
                (WR_WAIT, _TAKEN),
                (RD_TURN, _FREE),
                (WR_TURN, _FREE),
                (RD_TURN_DOOR, _TAKEN),
                (WR_TURN_DOOR, _TAKEN),
            ):
                self._bytes[base + word * 8 : base + word * 8 + SEM_BYTES] = image
        return self

    @classmethod
    def attach(cls, fd: int) -> Segment:
        """Map a segment that another process made; takes ``fd`` over once it has succeeded."""
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError(EBADMSG, "not a shmpipe segment: it is not sealed against truncation")
        size = os.fstat(fd).st_size
        head = memoryview(os.pread(fd, 40, 0)).cast("Q") if size >= _TABLES else [0] * 5
        magic, version, page, rings, max_pages = head
        if (magic, version, page) != (_MAGIC, _VERSION, PAGE):
            raise OSError(EBADMSG, "not a shmpipe segment, or one of another layout version")
        if not 1 <= rings <= _MAX_RINGS or max_pages < 1 or _size(rings, max_pages) != size:
            raise OSError(EBADMSG, "damaged shmpipe segment: its header contradicts its size")
        return cls(fd, rings, max_pages)

    def place(self, lock: int) -> int:
        """Where this mapping keeps its number for ``lock``; it is given a place if it has none."""
        if self.my_place < 0:
            tokens = self._bytes[_PLACES:_TABLES].cast("Q")
            with RecordLock(self.fd):
                self.my_place = self._free_place(tokens)
                tokens[self.my_place * 8 + 1 : self.my_place * 8 + 8] = _EMPTY_PLACE
                tokens[self.my_place * 8] = identity.token
        return self.my_place * 16 + 2 + lock

    def _free_place(self, tokens: memoryview) -> int:
        for place in range(_MAX_PLACES):
            token = tokens[place * 8]
            if not token:
                return place
            # The place of a process that may have died holding a lock still has to tell so.
            numbers = self.numbers[place * 16 + 2 : place * 16 + 16]
            if not identity.is_alive(token) and not any(number & 1 for number in numbers):
                return place
        raise OSError(EAGAIN, f"more than {_MAX_PLACES} processes share one pipe")

    def users(self) -> list[int]:
        """The identities of all processes that have a place, dead ones included."""
        tokens = self._bytes[_PLACES:_TABLES].cast("Q")
        return [tokens[n * 8] for n in range(_MAX_PLACES) if tokens[n * 8]]

    def numbers_of(self, lock: int) -> list[tuple[int, int]]:
        """(identity, where its number for ``lock`` is) of every process that has a place."""
        tokens = self._bytes[_PLACES:_TABLES].cast("Q")
        places = range(_MAX_PLACES)
        return [(tokens[n * 8], n * 16 + 2 + lock) for n in places if tokens[n * 8]]

    def words(self, ring: int) -> memoryview:
        """The control words of one ring, as unsigned 64-bit integers."""
        base = _RING0 + ring * _RING_BYTES
        return self._bytes[base : base + _RING_BYTES].cast("Q")

    def ends(self, ring: int) -> memoryview:
        """The slot table of one ring: how many bytes of each page have been filled."""
        base = _TABLES + ring * self.max_pages * 4
        return self._bytes[base : base + self.max_pages * 4].cast("I")

    def data(self, ring: int) -> memoryview:
        """The pages of one ring."""
        base = self._data_at(ring)
        return self._bytes[base : base + self.max_pages * PAGE]

    def semaphore(self, ring: int, word: int, kind: Any = Semaphore) -> Any:
        """The semaphore that starts at a control word."""
        return kind.at(self.address + _RING0 + ring * _RING_BYTES + word * 8, self.map)

    def give_back(self, ring: int, first_page: int, pages: int) -> None:
        """Return the memory of pages that a shrunken ring no longer uses."""
        self.map.madvise(mmap.MADV_REMOVE, self._data_at(ring) + first_page * PAGE, pages * PAGE)

    def lend(self, end: object) -> int:
        """The descriptor for an end to hand over: each has its own.

        (Python refuses to pass one and the same descriptor to a child twice.)
        """
        if id(end) not in self._lent:
            self._lent[id(end)] = os.dup(self.fd) if self._lent else self.fd
        return self._lent[id(end)]

    def drop(self, end: object) -> None:
        """An end has been closed; with the last one in this process the descriptor goes."""
        if not self.sides:
            self.parts.clear()  # they refer back to this object
            self.close()
            return
        lent = self._lent.pop(id(end), self.fd)
        if lent != self.fd:
            os.close(lent)

    def close(self) -> None:
        for lent in self._lent.values():
            if lent != self.fd:
                os.close(lent)
        self._lent.clear()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
        # Only now: a thread that is still in a call uses its place to the end.
        if self.my_place >= 0:
            self._bytes[_PLACES + self.my_place * 64 : _PLACES + self.my_place * 64 + 8] = bytes(8)

    def _data_at(self, ring: int) -> int:
        return _data_start(self.rings, self.max_pages) + ring * self.max_pages * PAGE


def _data_start(rings: int, max_pages: int) -> int:
    return -(-(_TABLES + rings * max_pages * 4) // mmap.PAGESIZE) * mmap.PAGESIZE


def _size(rings: int, max_pages: int) -> int:
    size = _data_start(rings, max_pages) + rings * max_pages * PAGE
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
