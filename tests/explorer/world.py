"""Pipes and connections on the simulated machine, for scenarios."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from errno import EBADF
from typing import Any

from . import machine, views
from .kernel import Clock, Endpoint, Socket
from .loading import code
from .memory import Op
from .scheduler import Run
from .semaphores import FileLock

segment = code.segment
PAGE = views.PAGE
POLICIES = code.policies.POLICIES
SHORT_SLEEP = code.waiting.SHORT_SLEEP


class _Bytes:
    """The whole of a segment's memory; only its windows are used."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __getitem__(self, index: slice) -> _Window:
        return _Window(self.run, index.start, index.stop)


class _Window:
    def __init__(self, run: Run, start: int, stop: int) -> None:
        self.run, self.start, self.stop = run, start, stop

    def cast(self, kind: str) -> views.Words:
        width = {"Q": 8, "I": 4}[kind]
        tokens = self.start == segment._PLACES and kind == "Q"
        view = views.Tokens if tokens else views.Words
        return view(self.run, self.start, (self.stop - self.start) // width, width)


class Segment(segment.Segment):  # type: ignore[misc,name-defined]
    """The real one's layout and places, on simulated memory."""

    def __init__(self, run: Run, max_pages: int) -> None:
        self.run = run
        self.rings, self.max_pages = 1, max_pages
        self.map = run  # what semaphores keep
        self.address = 0
        self._bytes = _Bytes(run)
        size = code.places.PLACES * code.places.PLACE_BYTES
        self.places = code.places.Places(self._bytes[segment._PLACES : segment._PLACES + size])
        self.sides = code.living.Living()

    def exclusively(self, act: Callable[[], None]) -> None:
        with FileLock():
            act()

    def data(self, ring: int) -> views.Data:
        return views.Data(self.run, self._data_at(ring), self.max_pages * PAGE)

    def give_back(self, ring: int, first_page: int, pages: int) -> None:
        first = self._data_at(ring) + first_page * PAGE
        places = range(first, first + pages * PAGE, PAGE)
        self.run.step(Op("gives back the pages from", (), tuple(places), True))
        for place in places:
            self.run.put(place, bytes(PAGE))


def closed() -> OSError:
    """The error of a call on an end that another thread has closed."""
    return OSError(EBADF, "closed")


class World:
    """One pipe or connection (one direction), as several processes have it."""

    def __init__(
        self,
        run: Run,
        pages: int = 1,
        policy: str = "write-size",
        write_pages: int = 1,
        most_pages: int = 0,
        frames: bool = False,
        places: bool = True,
    ) -> None:
        self.run = run
        self.machine = machine.start(run)
        self.frames = frames
        self.places = places  # whether processes have theirs before the scenario begins
        self.most_pages = max(pages, most_pages)
        code.places._marks = itertools.count(1)
        at = segment._RING0
        for word in ("RD_LOCK", "WR_LOCK", "RD_TURN", "WR_TURN"):
            place = at + getattr(segment, word) * 8
            run.put(place, 1)
            self.machine.locks[place] = word
        self.ends: list[End] = []
        self.machine.setting_up = "nobody"
        self.outside = Segment(run, self.most_pages)
        self.ring = self._ring(self.outside)
        code.control.first_settings(self.ring, pages, write_pages, POLICIES[policy])
        self.words = self.ring.words

    def _ring(self, seg: Segment) -> Any:
        kind = code.bytering.ByteRing if self.frames else code.pagering.PageRing
        return kind(seg, 0)

    def grow_to(self, pages: int) -> None:
        """A connection's ring starts smaller than it may become."""
        self.words[segment.LIMIT] = pages

    def reader(self, process: str) -> End:
        return self._end(process, 0, self.places)

    def writer(self, process: str, placed: bool = True) -> End:
        return self._end(process, 1, placed and self.places)

    def _end(self, process: str, which: int, placed: bool) -> End:
        self.machine.setting_up = process
        end = End(self, process, which, placed)
        self.ends.append(end)
        self.machine.setting_up = "nobody"
        return end

    def fill(self, data: bytes) -> None:
        """Put bytes into the ring before anything runs."""
        if self.frames:
            assert self.ring.append(code.frames.DATA, data, len(data))
        else:
            assert self.ring.put(memoryview(data), False) == len(data)

    def word(self, name: str) -> int:
        return int(self.words[getattr(segment, name)])

    def place_of(self, name: str) -> int:
        """Where a control word is."""
        return int(segment._RING0 + getattr(segment, name) * 8)

    def died_inside(self, end: End, lock: Any) -> None:
        """Before anything runs: the process of ``end`` has been killed while it held ``lock``."""
        self.run.put(lock.place, 0)
        end.segment.places.numbers[end.segment.place(lock.index)] = 1
        self.run.put(("alive", end.process), 0)
        self.machine.changed_by_death(("alive", end.process))


class _Open:
    """A connection that nobody closes while it has something lent."""

    def _check_closed(self) -> None:
        pass


class End:
    """One process's hold on one end."""

    def __init__(self, world: World, process: str, which: int, placed: bool) -> None:
        world.machine.process(process)
        self.world, self.process = world, process
        self.segment = Segment(world.run, world.most_pages)
        self.ring = world._ring(self.segment)
        self.locks = code.locking.Locks(self.ring)
        self.endpoint = Endpoint("bell", which, process)
        self.bell = code.doorbell.Doorbell(Socket(self.endpoint), closed)
        kind = (code.readers.ReaderSide, code.writers.WriterSide)[which]
        self.side = kind(self.ring, self.locks, self.bell, 0.0)
        if placed:
            self.segment.place(0)
        self.receiver: Any = None
        if world.frames and which:
            self.sender = code.sending.Sender(self.side, self.locks.writer_turn)
        elif world.frames:
            keeper = code.keeping.Keeper()
            self.receiver = code.receiving.Receiver(self.side, self.locks, keeper, None)

    # --- the calls -------------------------------------------------------------------------------

    def write(self, data: bytes) -> Any:
        return code.stream.write(self.side, memoryview(data))

    def read(self, want: int) -> Any:
        return code.stream.read(self.side, None, want)

    def read_all(self, want: int) -> bytes:
        """Until EOF."""
        pieces = []
        while piece := self.read(want):
            pieces.append(piece)
        return b"".join(pieces)

    def send(self, data: bytes, timeout: float | None = None) -> None:
        deadline = None if timeout is None else Clock.monotonic() + timeout
        self.sender.send(code.frames.DATA, data, len(data), deadline)

    def receive(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else Clock.monotonic() + timeout
        return self.receiver.receive(None, deadline)

    def lend(self) -> Any:
        return code.lending.Received(_Open(), self.receiver, None)

    def reserve(self, size: int) -> Any:
        return code.lending.Reserved(_Open(), self.sender, size, None)

    def receive_all(self) -> list[Any]:
        got = []
        while True:
            try:
                got.append(self.receive())
            except EOFError:
                return got

    def close(self) -> None:
        self.side.leave()
        if self.receiver is not None:
            self.receiver.forget()

    def resize(self, pages: int) -> None:
        code.control.set_size(self.side, pages * PAGE, self.world.most_pages)

    def watch(self) -> int:
        return int(self.side.watch_fd())

    def ready(self, events: int) -> bool:
        """What a watcher would see now."""
        return bool((self.bell._watch or [self.endpoint])[0].shows() & events)
