"""Scenarios that begin in the middle of things: shorter, and so searched further.

What comes before is done while nothing else runs (``begin``).
"""

from __future__ import annotations

import os

from . import kernel
from .base import PipeScenario, page, pages_of, result, same
from .memory import Op
from .scheduler import Limits, Run
from .world import PAGE, POLICIES, segment

POLLIN, POLLOUT = kernel.POLLIN, kernel.POLLOUT


class OneRead(PipeScenario):
    """A writer asleep, or on its way, and a single read that the policy lets wake it."""

    limits = Limits(late=1)

    def __init__(self, policy: str, pages: int) -> None:
        self.policy, self.pages = policy, pages
        self.name = f"one-read-{policy}-{pages}"
        self.filled = b"".join(page("abcd"[at]) for at in range(pages))

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        # The policies that wait for half a ring of two pages have it after the second one.
        want = self.pages * PAGE if self.policy == "edge-half" else PAGE
        self.add(run, writer, lambda: writer.write(page("z")))
        self.add(run, reader, lambda: reader.read(want))

    def promised(self, run: Run) -> None:
        same("written", result(run, "W"), PAGE)


class Skipped(PipeScenario):
    """A reader has taken all of a page before it is closed; its slot is used again."""

    name = "skipped"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.fill(page("a", 100))
        self.world.ring.take(None, PAGE)

        def write() -> None:
            for letter in "bcd":
                writer.write(page(letter))

        self.add(run, writer, write)
        self.add(run, reader, lambda: b"".join(reader.read(PAGE) for _ in range(3)))

    def promised(self, run: Run) -> None:
        same("read", pages_of(result(run, "R")), [page("b"), page("c"), page("d")])


class WatchDrained(PipeScenario):
    """A read that takes all of what was there leaves no readiness."""

    name = "watch-drained"

    def begin(self, run: Run) -> None:
        self.reader, writer = self.ends()
        self.beside = self.world.reader("Q")
        self.beside.watch()
        writer.write(b"x")
        self.add(run, self.reader, lambda: self.reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("readiness of an empty pipe", self.beside.ready(POLLIN), False)


class WatchBelowMark(PipeScenario):
    """A read that frees less than the write size does not make the writers' end writable."""

    pages = 2
    write_pages = 2

    def __init__(self, answered: bool) -> None:
        self.answered = answered  # whether all tickets have been, as after a call that failed
        self.name = "watch-below-mark" + ("-answered" if answered else "")

    def begin(self, run: Run) -> None:
        reader, self.writer = self.ends()
        self.writer.write(page("a") + page("b"))
        self.writer.watch()
        if self.answered:
            reader.side.resized()
        self.add(run, reader, lambda: reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("readiness below the mark", self.writer.ready(POLLOUT), False)


class WatchBoth(PipeScenario):
    """Both ends are watched; a read takes all."""

    name = "watch-both"

    def begin(self, run: Run) -> None:
        self.reader, self.writer = self.ends()
        self.writer.write(page("a"))
        self.writer.watch()
        self.reader.watch()
        same("readiness of a full pipe", self.writer.ready(POLLOUT), False)
        self.add(run, self.reader, lambda: self.reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("readiness of an empty pipe", self.reader.ready(POLLIN), False)
        same("readiness for writing", self.writer.ready(POLLOUT), True)


class WatchPlugged(PipeScenario):
    """A read frees one page of two: both ends are ready, for every process that watches them."""

    name = "watch-plugged"
    pages = 2

    def begin(self, run: Run) -> None:
        self.reader, self.writer = self.ends()
        self.beside = self.world.reader("Q")
        self.beside.watch()
        self.writer.watch()
        self.writer.write(page("a") + page("b"))
        same("readiness of a full pipe", self.writer.ready(POLLOUT), False)
        self.add(run, self.reader, lambda: self.reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("readiness beside data", self.beside.ready(POLLIN), True)
        same("readiness for writing", self.writer.ready(POLLOUT), True)


class WatchAgain(PipeScenario):
    """A reader that has drained the pipe and shows so, while more is written."""

    name = "watch-again"
    limits = Limits()

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.words[segment.RD_FLAGS] = os.O_NONBLOCK
        fd = reader.watch()
        writer.write(b"x")

        def read() -> bytes:
            got = b""
            while got.count(b"x") < 2:
                got += reader.read(PAGE) or b""
                if got.count(b"x") < 2:
                    kernel.poll_fd(fd, POLLIN, None)
            return got

        self.add(run, reader, read)
        self.add(run, writer, lambda: writer.write(b"x"))


class WatchFreed(PipeScenario):
    """A watched writer finds no space, and says so, while a page is read."""

    name = "watch-freed"
    limits = Limits()
    filled = page("a")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.words[segment.WR_FLAGS] = os.O_NONBLOCK
        fd = writer.watch()

        def write() -> None:
            while not writer.write(page("b")):
                kernel.poll_fd(fd, POLLOUT, None)

        self.add(run, writer, write)
        self.add(run, reader, lambda: reader.read(PAGE))


class LongWriter(PipeScenario):
    """Of two writers asleep, one on its doorbell, both must get the page that each waits for."""

    name = "long-writer"
    limits = Limits(1, late=1)
    filled = page("a")

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        for number, name in enumerate("WV"):
            writer = self.world.writer(name)
            self.add(run, writer, lambda w=writer, n=number: w.write(page("yz"[n])))
        self.add(run, reader, lambda: [reader.read(PAGE) for _ in range(2)])


class AsleepBelowMark(PipeScenario):
    """A read that frees less than the policy asks for does not wake a writer that sleeps long."""

    name = "asleep-below-mark"
    limits = Limits()
    strict = False
    counted = False
    policy = "edge-half"
    pages = 2
    filled = page("a") + page("b")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        run.content = lambda: True  # it goes on sleeping
        reader.resize(2)  # it has been here before: a stranger would wake the writer

        def polls() -> bool:
            pending = run.tasks[0].pending
            return pending is not None and pending.name == "polls"

        def read() -> bytes:
            run.step(Op("waits until the other one sleeps long", (), (), True, polls))
            return bytes(reader.read(PAGE))

        self.add(run, writer, lambda: writer.write(page("z")))
        self.add(run, reader, read)

    def promised(self, run: Run) -> None:
        same("plugs: two for a sleep", self.world.word("PLUG"), 2)


EDGES: list[PipeScenario] = [
    *(OneRead(policy, pages) for pages in (1, 2) for policy in POLICIES),
    Skipped(),
    WatchDrained(),
    WatchBelowMark(False),
    WatchBelowMark(True),
    WatchBoth(),
    WatchPlugged(),
    WatchAgain(),
    WatchFreed(),
    LongWriter(),
    AsleepBelowMark(),
]
