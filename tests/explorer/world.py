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
ASK_AFTER = code.waiting.ASK_AFTER


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

    def __init__(self, run: Run, rings: int, max_pages: int) -> None:
        self.run = run
        self.rings, self.max_pages = rings, max_pages
        self.map = run  # what semaphores keep
        self.address = 0
        self._bytes = _Bytes(run)
        size = code.places.PLACES * code.places.PLACE_BYTES
        self.places = code.places.Places(self._bytes[segment._PLACES : segment._PLACES + size])
        self.sides = code.living.Living()

    def exclusively(self, act: Callable[[], None], deadline: float | None = None) -> None:
        with FileLock():
            act()

    def lock_word(self, ring: int, word: int) -> list[int]:
        return [0]  # nobody damages anything here, so it is not worth a step

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
    """One pipe or connection, as several processes have it."""

    def __init__(
        self,
        run: Run,
        pages: int = 1,
        policy: str = "write-size",
        write_pages: int = 1,
        most_pages: int = 0,
        frames: bool = False,
        places: bool = True,
        rings: int = 1,
    ) -> None:
        self.run = run
        self.machine = machine.start(run)
        self.frames = frames
        self.rings = rings
        self.places = places  # whether processes have theirs before the scenario begins
        self.most_pages = max(pages, most_pages)
        code.places._marks = itertools.count(1)
        for number in range(rings):
            for word in ("RD_LOCK", "WR_LOCK", "RD_TURN", "WR_TURN"):
                place = self.place_of(word, number)
                run.put(place, 1)
                self.machine.locks[place] = word
        self.ends: list[End] = []
        self.machine.setting_up = "nobody"
        outside = Segment(run, rings, self.most_pages)
        self.all_rings = [self.make_ring(outside, number) for number in range(rings)]
        for ring in self.all_rings:
            code.control.first_settings(ring, pages, write_pages, POLICIES[policy])
        self.ring = self.all_rings[0]
        self.words = self.ring.words

    def make_ring(self, seg: Segment, number: int) -> Any:
        kind = code.bytering.ByteRing if self.frames else code.pagering.PageRing
        return kind(seg, number)

    def grow_to(self, pages: int) -> None:
        """A connection's ring starts smaller than it may become."""
        self.words[segment.LIMIT] = pages

    def reader(self, process: str, placed: bool = True) -> End:
        return self._end(process, 0, 0, -1, placed)

    def writer(self, process: str, placed: bool = True) -> End:
        return self._end(process, 1, -1, 0, placed)

    def connection(self, process: str, which: int) -> End:
        """An end that sends, too."""
        return self._end(process, which, which, 1 - which)

    def _end(self, process: str, which: int, inward: int, outward: int, placed: bool = True) -> End:
        self.machine.setting_up = process
        end = End(self, process, which, inward, outward)
        if placed and self.places:
            end.segment.place(0)
        self.ends.append(end)
        self.machine.setting_up = "nobody"
        return end

    def fill(self, data: bytes) -> None:
        """Put bytes into the ring before anything runs."""
        if self.frames:
            assert self.ring.append(code.frames.DATA, data, len(data))
        else:
            assert self.ring.put(memoryview(data), False) == len(data)

    def begin_stream(self, message: bytes, first: int) -> None:
        """Put the beginning of a message in parts, and its first bytes, into the ring."""
        total = len(message).to_bytes(8, "little")
        assert self.ring.append(code.frames.BEGIN_DATA, total, 8)
        assert self.ring.append(code.frames.PART, [total, message[:first]], 8 + first)

    def continue_stream(self, rest: bytes) -> None:
        """Put the last part of a message into the ring."""
        left = len(rest).to_bytes(8, "little")
        assert self.ring.append(code.frames.PART, [left, rest], 8 + len(rest))

    def abort_stream(self) -> None:
        """Close off a message in parts that will not be finished."""
        assert self.ring.append(code.frames.ABORT, b"", 0)

    def word(self, name: str, ring: int = 0) -> int:
        return int(self.all_rings[ring].words[getattr(segment, name)])

    def place_of(self, name: str, ring: int = 0) -> int:
        """Where a control word is."""
        return int(segment._RING0 + ring * segment._RING_BYTES + getattr(segment, name) * 8)

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
    """One process's hold on one end; rings by number, -1 for none."""

    def __init__(self, world: World, process: str, which: int, inward: int, outward: int) -> None:
        world.machine.process(process)
        self.world, self.process = world, process
        self.segment = Segment(world.run, world.rings, world.most_pages)
        self.endpoint = Endpoint("bell", which, process)
        self.bell = code.doorbell.Doorbell(Socket(self.endpoint), closed, False)
        self.sides: list[Any] = []
        self.sender: Any = None
        self.receiver: Any = None
        if outward >= 0:
            writer, locks = self._side(code.writers.WriterSide, outward)
            self.sender = code.sending.Sender(writer, locks.writer_turn)
        if inward >= 0:
            reader, locks = self._side(code.readers.ReaderSide, inward)
            keeper = code.keeping.Keeper()
            whole = code.assembling.Plain  # objects stay as they are
            self.receiver = code.receiving.Receiver(reader, locks, keeper, whole)
        self.side = self.sides[-1]  # of an end with both, the one that receives

    def _side(self, kind: Any, number: int) -> tuple[Any, Any]:
        ring = self.world.make_ring(self.segment, number)
        locks = code.locking.Locks(ring)
        side = kind(ring, locks, self.bell, 0.0)
        self.sides.append(side)
        return side, locks

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

    def send_object(self, data: bytes) -> None:
        """What is sent as an object is one frame, and not lent."""
        self.sender.send(code.frames.OBJECT, data, len(data), None)

    def receive(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else Clock.monotonic() + timeout
        return self.receiver.receive(None, deadline)

    def lend(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else Clock.monotonic() + timeout
        return code.lending.Received(_Open(), self.receiver, deadline)

    def reserve(self, size: int) -> Any:
        return code.lending.Reserved(_Open(), self.sender, size, None)

    def begin(self, data: bytes) -> Any:
        """To send it in steps."""
        kind = code.frames.DATA
        return code.stepping.SteppedSend(_Open(), self.sender, kind, data, len(data))

    def receive_all(self) -> list[Any]:
        got = []
        while True:
            try:
                got.append(self.receive())
            except EOFError:
                return got

    def close(self) -> None:
        for side in self.sides:
            side.leave()
        if self.receiver is not None and self.world.frames:
            self.receiver.forget()

    def resize(self, pages: int) -> None:
        code.control.set_size(self.side, pages * PAGE, self.world.most_pages)

    def watch(self) -> int:
        return int(self.side.watch_fd())

    def watch_outgoing(self) -> int:
        return int(self.sender.side.watch_fd())

    def ready(self, events: int) -> bool:
        """What a watcher would see now."""
        return bool((self.bell._watch or [self.endpoint])[0].shows() & events)
