"""Scenarios with ends that are watched through their descriptors."""

from __future__ import annotations

import os

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same
from .scheduler import Limits, Run
from .world import PAGE, POLICIES, segment


class WatchData(PipeScenario):
    """A reader that never blocks polls its descriptor between reads."""

    name = "watch-data"
    limits = Limits()
    pages = 1

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.words[segment.RD_FLAGS] = os.O_NONBLOCK

        def read() -> bytes:
            got = b""
            fd = reader.watch()
            while got.count(b"x") < 2:
                kernel.poll_fd(fd, POLLIN, None)
                got += reader.read(PAGE) or b""
            return got

        def write() -> None:
            writer.write(b"x")
            writer.write(b"x")

        self.reader = reader
        self.add(run, reader, read)
        self.add(run, writer, write)

    def promised(self, run: Run) -> None:
        same("readiness of an empty pipe", self.reader.ready(POLLIN), False)


class WatchBeside(PipeScenario):
    """One process sleeps in read() while another one polls a copy of the same end."""

    name = "watch-beside"
    limits = Limits(1)
    pages = 2

    def begin(self, run: Run) -> None:
        reader, beside = self.world.reader("R"), self.world.reader("Q")
        writer = self.world.writer("W")

        def watch() -> None:
            kernel.poll_fd(beside.watch(), POLLIN, None)

        self.beside = beside
        self.add(run, reader, lambda: reader.read(PAGE))
        self.add(run, beside, watch)
        self.add(run, writer, lambda: writer.write(page("a") + page("b")))

    def promised(self, run: Run) -> None:
        same("readiness beside data", self.beside.ready(POLLIN), True)


class WatchSpace(PipeScenario):
    """A writer that never blocks polls its descriptor between writes."""

    limits = Limits(2)

    def __init__(self, policy: str, pages: int = 1) -> None:
        self.policy, self.pages = policy, pages
        self.name = f"watch-space-{policy}-{pages}"
        self.filled = b"".join(page("abcd"[at]) for at in range(pages))

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.words[segment.WR_FLAGS] = os.O_NONBLOCK

        def write() -> None:
            fd = writer.watch()
            while not writer.write(page("z")):
                kernel.poll_fd(fd, POLLOUT, None)

        self.writer = writer
        self.add(run, writer, write)
        count = self.pages + 1

        def read() -> bytes:
            return b"".join(reader.read(PAGE) for _ in range(count))

        self.add(run, reader, read)

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), self.filled + page("z"))
        same("readiness of an empty pipe", self.writer.ready(POLLOUT), True)


class WatchFull(PipeScenario):
    """After a write that filled the ring again, its watchers are not left with a readiness."""

    name = "watch-full"
    limits = Limits(2)
    filled = page("a")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.writer = writer

        def write() -> None:
            writer.watch()
            writer.write(page("b"))

        self.add(run, writer, write)
        self.add(run, reader, lambda: reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("readiness of a full pipe", self.writer.ready(POLLOUT), False)


class WatchBoth(PipeScenario):
    """Both ends are watched; a write fills the pipe, and shows that, while it is read empty."""

    limits = Limits(2)

    def __init__(self, policy: str, pages: int = 1) -> None:
        self.policy, self.pages = policy, pages
        self.name = f"watch-both-{policy}-{pages}"

    def begin(self, run: Run) -> None:
        self.reader, self.writer = self.ends()
        self.reader.watch()
        self.writer.watch()
        whole = b"".join(page("abcd"[at]) for at in range(self.pages))
        self.add(run, self.reader, lambda: [self.reader.read(PAGE) for _ in range(self.pages)])
        self.add(run, self.writer, lambda: self.writer.write(whole))

    def promised(self, run: Run) -> None:
        same("readiness of an empty pipe", self.reader.ready(POLLIN), False)
        same("readiness for a write", self.writer.ready(POLLOUT), True)


class WatchResized(PipeScenario):
    """Somebody makes a full ring larger: those who watch for space are shown it."""

    limits = Limits()
    pages, most_pages = 1, 2
    filled = page("a")

    def __init__(self, by: str) -> None:
        self.name, self.by = f"watch-resized-by-{by}", by

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        third = reader if self.by == "reader" else self.world.writer("C")
        self.add(run, writer, lambda: kernel.poll_fd(writer.watch(), POLLOUT, None))
        self.add(run, third, lambda: third.resize(2))


WATCHED: list[PipeScenario] = [
    WatchData(),
    WatchBeside(),
    *(WatchSpace(policy) for policy in POLICIES),
    *(WatchSpace(policy, 2) for policy in ("write-size", "edge-half", "half")),
    WatchFull(),
    WatchBoth("write-size"),
    *(WatchBoth(policy, 2) for policy in POLICIES),
    WatchResized("reader"),
    WatchResized("writer"),
]
