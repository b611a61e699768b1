"""The pipes of running processes, found through /proc and read from outside.

Nothing is disturbed: a segment is opened for reading alone and copied by read calls, which unlike
a mapping give no memory to pages that nobody has used yet; no lock is taken, and since an end's
life is told by its doorbell, which is not touched, nobody takes us for a holder. What lies in a
segment may be anything: every number is bounded before it is used.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from errno import EBADMSG

from .. import identity, places, segment
from ..policies import POLICIES
from ..segment import PAGE

LINK = "/memfd:shmpipe (deleted)"
LOCKS = ("reader", "writer", "reader's turn", "writer's turn")
"""In the order of a process's numbers for one ring."""

_POLICY_NAMES = {number: name for name, number in POLICIES.items()}
_PLACE_NUMBERS = 16  # 32-bit words of a place, of which the first two are its token


@dataclass(frozen=True)
class Direction:
    """One ring of a segment: what it is set to and what has been counted."""

    size: int
    """Bytes, as F_GETPIPE_SZ."""
    write_size: int
    policy: str
    used: int
    """Bytes of the ring in use, gaps in pages and headers of frames included."""
    counts: dict[str, int]
    """Everything that only grows, by the names that ``stats()`` uses."""


@dataclass
class Holder:
    """A living process that has the segment open."""

    pid: int
    command: str
    reads: list[bool] = field(default_factory=list)
    """For each ring: whether it holds the reading end."""
    writes: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Dead:
    """A process that used the segment and ended without closing it."""

    pid: int
    locks: list[str]
    """What it may have had when it ended; the next who wants that takes it over."""


@dataclass(frozen=True)
class Pipe:
    """One segment."""

    inode: int
    directions: list[Direction]
    holders: list[Holder]
    dead: list[Dead]


@dataclass
class _Process:
    pid: int
    segments: dict[int, int]  # inode -> a descriptor of that process
    sockets: set[int]


def look(pids: Collection[int] = ()) -> list[Pipe]:
    """The pipes that the given processes hold (none given: all processes of this user).

    ProcessLookupError, PermissionError: a process that was asked for is not there, or another
    user's.  This very process is never looked at.
    """
    processes = list(_processes(pids))
    wanted = [process for process in processes if not pids or process.pid in pids]
    found: dict[int, Pipe] = {}
    for process in wanted:
        for inode, fd in process.segments.items():
            if inode not in found:
                pipe = _read(process.pid, fd, inode, processes)
                if pipe is not None:
                    found[inode] = pipe
    return sorted(found.values(), key=lambda pipe: pipe.inode)


def _processes(pids: Collection[int]) -> Iterator[_Process]:
    """All of this user's processes with a shmpipe, and those asked for."""
    for pid in pids:
        os.listdir(f"/proc/{_existing(pid)}/fd")  # so that what is wrong is told
    # Opening a segment and closing it again would drop this process's own record locks on it.
    mine = {os.getpid()}
    own = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - mine
    for pid in sorted(own | set(pids) - mine):
        try:
            if pid not in pids and os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            process = _Process(pid, {}, set())
            for name in os.listdir(f"/proc/{pid}/fd"):
                _sort_in(process, name)
        except OSError:  # it has ended, or does not let itself be looked at
            continue
        if process.segments:
            yield process


def _existing(pid: int) -> int:
    if not os.path.isdir(f"/proc/{pid}"):
        raise ProcessLookupError(f"there is no process {pid}")
    return pid


def _sort_in(process: _Process, name: str) -> None:
    path = f"/proc/{process.pid}/fd/{name}"
    try:
        target = os.readlink(path)
        if target == LINK:
            process.segments[os.stat(path).st_ino] = int(name)
        elif target.startswith("socket:["):
            process.sockets.add(int(target[8:-1]))
    except OSError:
        pass  # closed meanwhile


def _read(pid: int, fd: int, inode: int, processes: list[_Process]) -> Pipe | None:
    """None: it is gone, or is no segment of ours."""
    try:
        # Should the number mean another file by now: do not wait for a FIFO, take no terminal.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(f"/proc/{pid}/fd/{fd}", flags)
        try:
            status = os.fstat(opened)
            if status.st_ino != inode or not stat.S_ISREG(status.st_mode):
                return None
            view = View(opened)
        finally:
            os.close(opened)
    except OSError:
        return None
    return _pipe(view, inode, [process for process in processes if inode in process.segments])


class View:
    """A copy of the control part of a segment."""

    def __init__(self, fd: int) -> None:
        """OSError EBADMSG: not a segment of this layout.  The descriptor may be closed again."""
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
            raise OSError(EBADMSG, "not sealed against shrinking")
        size = os.fstat(fd).st_size
        # Twice: a read position from the first copy is never newer than the rest from the second.
        before = memoryview(os.pread(fd, segment._PLACES, 0))
        copy = memoryview(os.pread(fd, segment._TABLES, 0))
        if len(before) < segment._PLACES or len(copy) < segment._TABLES:
            raise OSError(EBADMSG, "too short for a segment")
        self._before = before.cast("Q")
        self._words, self._numbers = copy.cast("Q"), copy.cast("I")
        magic, version, page, rings, max_pages = self._words[:5]
        if (
            (magic, version, page) != (segment._MAGIC, segment._VERSION, PAGE)
            or not 1 <= rings <= segment._MAX_RINGS
            or max_pages < 1
            or segment._size(rings, max_pages) != size
        ):
            raise OSError(EBADMSG, "not a segment, or one of another layout")
        self.rings = rings
        self.max_pages = max_pages

    def doors(self) -> tuple[int, int]:
        """The inodes of both ends' doorbells, that of the end which reads ring 0 first."""
        return self._words[segment.FIRST_DOOR], self._words[segment.SECOND_DOOR]

    def direction(self, ring: int) -> Direction:
        base = (segment._RING0 + ring * segment._RING_BYTES) // 8

        def word(index: int) -> int:
            return self._words[base + index]

        pages = min(max(word(segment.LIMIT), 1), self.max_pages)
        rpos = self._before[base + segment.RPOS]  # an old one only makes the ring look fuller
        used = word(segment.WPOS) - rpos
        counts = {
            "bytes_written": segment.W_BYTES,
            "bytes_read": segment.R_BYTES,
            "writes": segment.WRITES,
            "reads": segment.READS,
            "reader_sleeps": segment.R_SLEEPS,
            "writer_sleeps": segment.W_SLEEPS,
            "reader_wakes": segment.R_WAKES,
            "writer_wakes": segment.W_WAKES,
            "writer_wakes_withheld": segment.W_WITHHELD,
            "frames_dropped": segment.DROPPED,
        }
        return Direction(
            size=pages * PAGE,
            write_size=min(max(word(segment.WRITE_PAGES), 1), pages) * PAGE,
            policy=_POLICY_NAMES.get(word(segment.POLICY), "?"),
            used=min(max(used, 0), pages * PAGE),
            counts={name: word(index) for name, index in counts.items()},
        )

    def places(self) -> list[tuple[int, list[int]]]:
        """(identity, numbers for the locks of all rings) of every process that has a place."""
        found = []
        for place in range(places.PLACES):
            at = segment._PLACES + place * _PLACE_NUMBERS * 4
            token = self._words[at // 8]
            if token:
                first = at // 4 + 2
                count = self.rings * len(LOCKS)
                found.append((token, list(self._numbers[first : first + count])))
        return found


def _pipe(view: View, inode: int, processes: list[_Process]) -> Pipe:
    doors = view.doors()
    dead = []
    for token, numbers in view.places():
        if not identity.is_alive(token):
            held = [_lock_name(at, view.rings) for at, number in enumerate(numbers) if number & 1]
            dead.append(Dead(token >> identity._TIME_BITS, held))
    holders = []
    for process in processes:
        holder = Holder(process.pid, _command(process.pid))
        for ring in range(view.rings):
            # An end lives as long as its doorbell: that is what the other side's EOF comes from.
            holder.reads.append(doors[ring] in process.sockets)
            holder.writes.append(doors[1 - ring] in process.sockets)
        holders.append(holder)
    directions = [view.direction(ring) for ring in range(view.rings)]
    return Pipe(inode, directions, holders, dead)


def _lock_name(index: int, rings: int) -> str:
    name = LOCKS[index % len(LOCKS)]
    return f"{name}, ring {index // len(LOCKS)}" if rings > 1 else name


def _command(pid: int) -> str:
    """A process's name as the kernel has it; what would move a terminal's cursor is replaced."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read(64).rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return "?"
    return "".join(letter if letter.isprintable() else "?" for letter in name)
