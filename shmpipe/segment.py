"""The shared segment: a sealed memfd, where everything lies in it, and the windows onto it.

The layout is written down once, here, and grouped by *who writes a word*: a cache line has one
writing side, so a side that only works never takes a line away from the other one.

    byte 0     header: magic, layout version, page size, number of rings, most pages of a ring, a
               random word, inodes of both ends' doorbells
    1024       control block of ring 0: LINES cache lines of eight 64-bit words
    1024 + k   control block of ring k
    4096       places: a cache line for each process that uses the segment (see places)
    20480      slot tables: one 32-bit fill per page, for each ring
    ...        page-aligned data of each ring
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from errno import EBADMSG
from typing import Any

from .descriptors import Descriptor, owned
from .filelock import exclusively
from .living import Living
from .places import PLACE_BYTES, PLACES, Places
from .primitives import SEM_BYTES, Sleepable, address_of, map_shared, map_twice, semaphore_image

PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT
"""Bytes of a pipe page: the unit of slots, merging, sizes and PIPE_BUF."""

MASK = PAGE - 1
ALIGN = 8
"""Bytes: frames start at multiples of it, so that a header never wraps around the end of a ring."""

WORD = (1 << 64) - 1
LAST = (1 << 63) - 1
"""The last position.  No pipe gets there, so one beyond has been forged; and none overflows."""

LINE = 8  # words of a cache line

# --- control words: index = line * LINE + place --------------------------------------------------
# Configuration: written by fcntl calls under both side locks, read by everybody.
PAGES, WRITE_PAGES, POLICY, RD_FLAGS, WR_FLAGS, LIMIT = range(0, 6)
# Set by a closing reader (writer), cleared by the writer (reader) that asks the doorbell about it.
RD_LEFT, WR_LEFT = 6, 7
# Writers, under the writers' lock.
WPOS, W_BYTES, WRITES, SKIP, W_OPEN = range(8, 13)
# Readers, under the readers' lock; who is named by R_KEEPER writes the last four also without.
RPOS, R_BYTES, READS, DROPPED, R_KEEPER, R_BEGAN, R_LOST = range(16, 23)
# Writers that wait for space, under the writers' lock.
WR_ARM, WR_SLEEPERS, WR_LONG, WR_WATCH, PLUG, W_SLEEPS, W_SPINS, WR_WANT = range(24, 32)
# Readers that wait for data, under the readers' lock.
RD_ARM, RD_SLEEPERS, RD_LONG, RD_WATCH, R_SLEEPS, R_SPINS, RD_STALE = range(32, 39)
# Writers that wake readers.
RD_RUNG, R_WAKES, TELLS = range(40, 43)
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
# Under the turn: who has bytes of the ring lent (see lending); cleared by whoever comes next.
RD_LENT, WR_LENT = 93, 101
RD_TURN_DOOR, WR_TURN_DOOR = 104, 112  # semaphores of those who wait for a turn
LINES = 16

# Header words, for tools that look from outside who holds which end; the first end, which reads
# ring 0 and writes ring 1, comes first.
FIRST_DOOR, SECOND_DOOR = 6, 7

_MAGIC = int.from_bytes(b"shmpipe\x01", "little")
_VERSION = 1
_RING0 = 1024
_RING_BYTES = LINES * LINE * 8
_PLACES = 4096
_TABLES = _PLACES + PLACES * PLACE_BYTES
_MAX_RINGS = 2

_FREE = semaphore_image(1)
_TAKEN = semaphore_image(0)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def damaged(what: str) -> OSError:
    """The error for shared words that contradict each other."""
    return OSError(EBADMSG, f"damaged pipe: {what}")


class Segment:
    """A segment as this process has it: one mapping for all ends that it holds of the pipe.

    The mapping goes when the last window or semaphore on it goes.  ``drop()`` of the last end gives
    up only the descriptor, so a thread that is still inside a call never touches unmapped memory.
    """

    def __init__(
        self, memory: Descriptor, rings: int, max_pages: int, closed: Callable[[], Exception]
    ) -> None:
        """``closed`` makes the error of a call on a closed end."""
        self.memory: Descriptor | None = memory
        self.rings = rings
        self.max_pages = max_pages
        self.closed = closed
        self.map = map_shared(memory.fileno(), _size(rings, max_pages))
        self.address = address_of(self.map)
        self._bytes = memoryview(self.map)
        self.header = self._bytes[:64].cast("Q")
        self.places = Places(self._bytes[_PLACES:_TABLES])
        self.sides: Living[Any] = Living()  # of the open ends in this process, by id
        self.parts: Living[Any] = Living()  # what these share, by ring
        self._lent: dict[int, Descriptor] = {}  # what each end hands over, by id
        self.key = (0, 0, 0)

    @classmethod
    def create(cls, rings: int, max_pages: int, closed: Callable[[], Exception]) -> Segment:
        """A new segment for ``rings`` rings of up to ``max_pages`` pages; memory comes on use."""
        memory = owned(os.memfd_create, "shmpipe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory.fileno(), _size(rings, max_pages))
        # No holder can truncate the file under another one, which would be SIGBUS there.
        fcntl.fcntl(memory.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        self = cls(memory, rings, max_pages, closed)
        # Inode numbers come round again on a machine that runs for long.
        mark = int.from_bytes(os.urandom(8), "little")
        self.header[:6] = memoryview(
            b"".join(
                x.to_bytes(8, "little") for x in (_MAGIC, _VERSION, PAGE, rings, max_pages, mark)
            )
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
        self.key = _key(os.fstat(memory.fileno()), mark)
        return _segments.add(self.key, self)

    @classmethod
    def attach(cls, memory: Descriptor, closed: Callable[[], Exception]) -> Segment:
        """The segment that ``memory`` is, which another process may have made; see ``keep``."""
        fd = memory.fileno()
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError(EBADMSG, "not a shmpipe segment: it is not sealed against truncation")
        status = os.fstat(fd)
        size = status.st_size
        head = memoryview(os.pread(fd, 48, 0)).cast("Q") if size >= _TABLES else [0] * 6
        magic, version, page, rings, max_pages, mark = head
        if (magic, version, page) != (_MAGIC, _VERSION, PAGE):
            raise OSError(EBADMSG, "not a shmpipe segment, or one of another layout version")
        if not 1 <= rings <= _MAX_RINGS or max_pages < 1 or _size(rings, max_pages) != size:
            raise OSError(EBADMSG, "damaged shmpipe segment: its header contradicts its size")
        key = _key(status, mark)
        known = _segments.get(key)
        if known is not None:
            return known
        self = cls(memory, rings, max_pages, closed)
        self.key = key
        return _segments.add(key, self)

    def name_doors(self, first: int, second: int) -> None:
        """Note whose descriptors the ends' doorbells are, before anybody else has the segment."""
        self.header[FIRST_DOOR] = os.fstat(first).st_ino
        self.header[SECOND_DOOR] = os.fstat(second).st_ino

    def place(self, lock: int, deadline: float | None = None) -> int:
        """Where this process keeps its number for ``lock``; it is given a place if it has none.

        TimeoutError as ``exclusively``.
        """
        if not self.places.taken():
            self.exclusively(self.places.take, deadline)
        return self.places.number(lock)

    def exclusively(self, act: Callable[[], None], deadline: float | None = None) -> None:
        """Do something that only one thread of all processes may do at a time; see filelock.

        TimeoutError: others were at it until ``deadline``.
        """
        memory = self.memory
        if memory is None:
            raise self.closed()
        exclusively(memory, self.key, act, deadline)

    def words(self, ring: int) -> memoryview:
        """The control words of one ring, as unsigned 64-bit integers."""
        base = self._words_at(ring)
        return self._bytes[base : base + _RING_BYTES].cast("Q")

    def lock_word(self, ring: int, word: int) -> memoryview:
        """The one word of a lock's semaphore that is ever read."""
        base = self._words_at(ring) + word * 8
        return self._bytes[base : base + 8].cast("Q")

    def ends(self, ring: int) -> memoryview:
        """The slot table of one ring: how many bytes of each page have been filled."""
        base = _TABLES + self._checked(ring) * self.max_pages * 4
        return self._bytes[base : base + self.max_pages * 4].cast("I")

    def data(self, ring: int) -> memoryview:
        """The pages of one ring."""
        base = self._data_at(ring)
        return self._bytes[base : base + self.max_pages * PAGE]

    def twice(self, ring: int, pages: int) -> mmap.mmap:
        """The first ``pages`` pages of one ring, mapped anew and twice in a row.

        OSError: the system has no memory for that, or pages larger than the ring's.
        """
        memory = self.memory
        if memory is None:
            raise self.closed()
        return map_twice(memory.fileno(), self._data_at(ring), pages * PAGE)

    def semaphore(self, ring: int, word: int, kind: Any = Sleepable) -> Any:
        """The semaphore that starts at a control word."""
        return kind.at(self.address + self._words_at(ring) + word * 8, self.map)

    def give_back(self, ring: int, first_page: int, pages: int) -> None:
        """Return the memory of pages that a shrunken ring no longer uses."""
        self.map.madvise(mmap.MADV_REMOVE, self._data_at(ring) + first_page * PAGE, pages * PAGE)

    def lend(self, end: object) -> Descriptor:
        """The descriptor for an end to hand over, good until the end is dropped: each has its own.

        (Python refuses to pass one and the same descriptor to a child twice.)
        """
        lent = self._lent.get(id(end))
        if lent is None:
            memory = self.memory
            if memory is None:
                raise self.closed()
            mine = owned(os.dup, memory.fileno()) if self._lent else memory
            lent = self._lent.setdefault(id(end), mine)
        return lent

    def keep(self, memory: Descriptor) -> None:
        """After an end was attached: the last other one may have been dropped meanwhile."""
        if self.memory is None:
            self.memory = memory

    def drop(self, end: object) -> None:
        """An end has been closed; with the last one in this process the descriptor goes."""
        self._lent.pop(id(end), None)
        if not self.sides.all():
            memory, self.memory = self.memory, None
            # One that another thread attaches now is among the sides before it looks at memory.
            if self.sides.all():
                self.memory = memory

    def _words_at(self, ring: int) -> int:
        return _RING0 + self._checked(ring) * _RING_BYTES

    def _data_at(self, ring: int) -> int:
        first = _data_start(self.rings, self.max_pages)
        return first + self._checked(ring) * self.max_pages * PAGE

    def _checked(self, ring: int) -> int:
        """How many rings there are stands in the header, where anybody may have changed it."""
        if not 0 <= ring < self.rings:
            raise OSError(EBADMSG, f"damaged shmpipe segment: no ring {ring} of {self.rings}")
        return ring


_segments: Living[Segment] = Living()  # those that this process has, by key


def all_segments() -> list[Segment]:
    """The segments that this process has."""
    return _segments.all()


def _key(status: os.stat_result, mark: int) -> tuple[int, int, int]:
    """What no other segment in use has.  (The mark alone another process could copy.)"""
    return status.st_dev, status.st_ino, mark


def _data_start(rings: int, max_pages: int) -> int:
    return -(-(_TABLES + rings * max_pages * 4) // mmap.PAGESIZE) * mmap.PAGESIZE


def _size(rings: int, max_pages: int) -> int:
    size = _data_start(rings, max_pages) + rings * max_pages * PAGE
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
