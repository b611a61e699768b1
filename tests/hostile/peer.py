"""The hostile peer's hands: a mapping of its own, its socket, and the segment's descriptor."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import socket
from collections import Counter
from typing import Any

from shmpipe import places, segment

from . import forging, values

PAGE = segment.PAGE
_NAMES = [
    "PAGES",
    "WRITE_PAGES",
    "POLICY",
    "RD_FLAGS",
    "WR_FLAGS",
    "LIMIT",
    "RD_LEFT",
    "WR_LEFT",
    "WPOS",
    "W_BYTES",
    "WRITES",
    "SKIP",
    "W_OPEN",
    "RPOS",
    "R_BYTES",
    "READS",
    "DROPPED",
    "R_KEEPER",
    "R_BEGAN",
    "R_LOST",
    "WR_ARM",
    "WR_SLEEPERS",
    "WR_LONG",
    "WR_WATCH",
    "PLUG",
    "W_SLEEPS",
    "W_SPINS",
    "WR_WANT",
    "RD_ARM",
    "RD_SLEEPERS",
    "RD_LONG",
    "RD_WATCH",
    "R_SLEEPS",
    "R_SPINS",
    "RD_STALE",
    "RD_RUNG",
    "R_WAKES",
    "TELLS",
    "WR_RUNG",
    "UNPLUG",
    "W_WAKES",
    "W_WITHHELD",
    "RD_TURN_BY",
    "WR_TURN_BY",
    "RD_LENT",
    "WR_LENT",
]
CONTROL = {name: getattr(segment, name) for name in _NAMES}
POSITIONS = ("RPOS", "WPOS")
NAMING = ("R_KEEPER", "RD_TURN_BY", "WR_TURN_BY", "RD_LENT", "WR_LENT")
SEMAPHORE_NAMES = (
    *("RD_LOCK", "WR_LOCK", "RD_WAIT", "WR_WAIT"),
    *("RD_TURN", "WR_TURN", "RD_TURN_DOOR", "WR_TURN_DOOR"),
)
SEMAPHORES = tuple(getattr(segment, name) for name in SEMAPHORE_NAMES)
SEALS = (
    fcntl.F_SEAL_SEAL,
    fcntl.F_SEAL_SHRINK,
    fcntl.F_SEAL_GROW,
    fcntl.F_SEAL_WRITE,
    0x10,  # F_SEAL_FUTURE_WRITE
)


class Peer:
    """Who owns one end, and writes what it likes.

    ``kinds``: whether it also overwrites what glibc's functions read behind a semaphore's word.
    """

    def __init__(
        self, memory: int, sock: socket.socket, rings: int, max_pages: int, kinds: bool
    ) -> None:
        self.memory, self.sock = memory, sock
        self.rings, self.max_pages, self.kinds = rings, max_pages, kinds
        self.map = mmap.mmap(memory, os.fstat(memory).st_size)
        self.bytes = memoryview(self.map)
        self.header = self.bytes[:64].cast("Q")
        self.counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")  # a process may be killed
        self.healthy = [memoryview(bytes(self.words(n))).cast("Q") for n in range(rings)]
        self.tokens = values.tokens()
        self.acts: tuple[tuple[float, Any], ...] = (
            (30, self.scribble_control),
            (10, self.scribble_semaphore),
            (6, self.scribble_table),
            (6, self.scribble_place),
            (1, self.scribble_header),
            (14, self.scribble_data),
            (20, self.send_frames),
            (10, self.take),
            (20, self.heal),
            (4, self.post),
            (6, self.doorbell),
            (2, self.reshape),
            (0.3, self.keep_locked),
            (0.2, self.wipe),
        )
        self.lock: int | None = None  # a description of the segment on which it holds the file lock

    def close(self) -> None:
        self.unlock()
        self.sock.close()
        self.header.release()
        self.bytes.release()
        self.map.close()
        os.close(self.memory)

    # --- where things are ------------------------------------------------------------------------

    def words(self, ring: int) -> memoryview:
        at = segment._RING0 + ring * segment._RING_BYTES
        return self.bytes[at : at + segment._RING_BYTES].cast("Q")

    def data(self, ring: int) -> memoryview:
        at = segment._data_start(self.rings, self.max_pages) + ring * self.max_pages * PAGE
        return self.bytes[at : at + self.max_pages * PAGE]

    def near(self, ring: int) -> list[int]:
        """Numbers that mean something in the ring now."""
        words = self.words(ring)
        limit = self.max_pages * PAGE
        tickets = [words[CONTROL[name]] for name in ("RD_ARM", "WR_ARM", "PLUG")]
        return [
            words[segment.RPOS],
            words[segment.WPOS],
            (words[segment.WPOS] - words[segment.RPOS]) & values.ALL_ONES,
            words[segment.PAGES],
            words[segment.PAGES] * PAGE & values.ALL_ONES,
            self.max_pages,
            limit,
            *tickets,
        ]

    # --- what it does ----------------------------------------------------------------------------

    def act(self, rng: random.Random) -> str:
        """One thing; returns what kind of thing it was."""
        number = rng.choices(range(len(self.acts)), [weight for weight, _ in self.acts])[0]
        act = self.acts[number][1]
        act(rng)
        self.counts[number] += 1
        return act.__name__

    def done(self) -> Counter[str]:
        """How often what was done, by whichever process."""
        return Counter(
            {act.__name__: n for (_, act), n in zip(self.acts, self.counts, strict=False)}
        )

    def _ring(self, rng: random.Random) -> int:
        return rng.randrange(self.rings)

    def scribble_control(self, rng: random.Random) -> None:
        ring = self._ring(rng)
        name = rng.choice(_NAMES)
        near = self.tokens if name in NAMING else self.near(ring)
        self.words(ring)[CONTROL[name]] = values.number(rng, near)

    def scribble_semaphore(self, rng: random.Random) -> None:
        ring = self._ring(rng)
        at = rng.choice(SEMAPHORES)
        if self.kinds and rng.random() < 0.3:
            at += rng.randrange(1, 4)
        value = rng.choice((0, 1, 2)) if rng.random() < 0.5 else values.number(rng, (1,))
        self.words(ring)[at] = value

    def scribble_table(self, rng: random.Random) -> None:
        at = segment._TABLES
        ends = self.bytes[at : at + self.rings * self.max_pages * 4].cast("I")
        for _ in range(rng.choice((1, 1, 4, 16))):
            value = rng.choice((0, 1, 4095, PAGE, PAGE, PAGE + 1, rng.getrandbits(32)))
            ends[rng.randrange(len(ends))] = value

    def scribble_place(self, rng: random.Random) -> None:
        table = self.bytes[segment._PLACES : segment._TABLES].cast("Q")
        place = rng.choice((0, 0, 1, 1, 2, rng.randrange(places.PLACES))) * 8
        table[place + rng.randrange(8)] = values.number(rng, self.tokens)
        if rng.random() < 0.02:
            for place in range(0, len(table), 8):
                table[place] = self.tokens[0]

    def scribble_header(self, rng: random.Random) -> None:
        if rng.random() < 0.5:  # another shape of the same size
            self.header[3:5] = memoryview(
                forging.word(3 - self.rings) + forging.word(self.max_pages * self.rings)
            ).cast("Q")
        else:
            self.header[rng.randrange(8)] = values.number(rng, (1, 2, self.max_pages))

    def scribble_data(self, rng: random.Random) -> None:
        """At the readers' or the writers' position, mostly."""
        ring = self._ring(rng)
        words, data = self.words(ring), self.data(ring)
        at = words[segment.RPOS] if rng.random() < 0.7 else rng.getrandbits(32)
        at += 8 * rng.choice((0, 0, 1, 2, 3))
        at = at % len(data) & -8
        near = self.near(ring)
        value = values.number(rng, near)
        if rng.random() < 0.6:
            value = rng.choice((*forging.KINDS, 0, 7)) << 56 | value & (1 << 56) - 1
        data[at : at + 8] = forging.word(value)

    def send_frames(self, rng: random.Random) -> None:
        ring = self._ring(rng)
        words = self.words(ring)
        made = forging.frames(rng, self.near(ring))
        pages = words[segment.PAGES]
        if not 0 < pages <= self.max_pages:
            pages = words[segment.PAGES] = self.max_pages
        size = pages * PAGE
        if rng.random() < 0.3:  # somewhere sane again
            words[segment.WPOS] = words[segment.RPOS] = rng.randrange(1 << 20) & -8
        wpos = words[segment.WPOS]
        data = self.data(ring)
        for at, byte in enumerate(made[:size]):
            data[(wpos + at) % size] = byte
        words[segment.WPOS] = (wpos + len(made)) & values.ALL_ONES

    def take(self, rng: random.Random) -> None:
        """As if it had read all of it, or some."""
        words = self.words(self._ring(rng))
        rpos, wpos = words[segment.RPOS], words[segment.WPOS]
        step = (wpos - rpos) & values.ALL_ONES
        words[segment.RPOS] = (rpos + (step if rng.random() < 0.7 else step // 2 & -8)) & (
            values.ALL_ONES
        )

    def post(self, rng: random.Random) -> None:
        """Make whoever sleeps look: bells of the segment's own."""
        words = self.words(self._ring(rng))
        for at in SEMAPHORES[2:4]:
            words[at] = words[at] & ~0xFFFFFFFF | 1

    def doorbell(self, rng: random.Random) -> None:
        with contextlib.suppress(OSError):
            how = rng.random()
            if how < 0.5:
                self.sock.send(rng.randbytes(rng.choice((1, 1, 3, 64, 300))), socket.MSG_DONTWAIT)
            elif how < 0.8:
                self.sock.recv(rng.choice((1, 64, 4096)), socket.MSG_DONTWAIT)
            elif how < 0.9:
                socket.send_fds(self.sock, [b"\x81"], [self.memory], socket.MSG_DONTWAIT)
            elif how < 0.95:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, rng.choice((1, 1 << 16)))
            elif how < 0.97:
                self.sock.shutdown(rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))

    def reshape(self, rng: random.Random) -> None:
        """Truncate it, make it grow, seal it: all refused, or there will be SIGBUS."""
        size = len(self.bytes)
        with contextlib.suppress(OSError):
            if rng.random() < 0.5:
                os.ftruncate(self.memory, rng.choice((0, PAGE, size - 1, size // 2, size * 2)))
            else:
                fcntl.fcntl(self.memory, fcntl.F_ADD_SEALS, rng.choice(SEALS))

    def keep_locked(self, rng: random.Random) -> None:
        """Hold the lock on the file, for a while or until the end."""
        if self.lock is not None:
            self.unlock()
            return
        descriptor = os.open(f"/proc/self/fd/{self.memory}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.lock = descriptor
        except BlockingIOError:
            os.close(descriptor)

    def unlock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def heal(self, rng: random.Random) -> None:
        """Put a ring's words back as they once were: behind one error there may be another."""
        ring = self._ring(rng)
        words = self.words(ring)
        words[:] = self.healthy[ring]
        if rng.random() < 0.5:
            words[segment.RPOS] = words[segment.WPOS] = rng.randrange(1 << 20) & -8

    def wipe(self, rng: random.Random) -> None:
        """Give pages back to the system: they are zeros then."""
        pages = len(self.bytes) // PAGE
        first = rng.randrange(pages)
        self.map.madvise(mmap.MADV_REMOVE, first * PAGE, rng.randrange(1, pages - first + 1) * PAGE)


def raw(number: int) -> Any:
    """What ``detach()`` gives a descriptor away, as one that has come from another process."""

    class Passed:
        def detach(self) -> int:
            return number

    return Passed()
