"""The scenarios for ``pipe()``: small programs of a few calls, and what must hold when they end.

Where a scenario is *strict*, nobody may be woken by a time limit alone: with nothing else left to
happen, a sleeper has been forgotten.  ``late`` allows limits to strike at any earlier moment, which
also is what takes a sleeper from its semaphore to the doorbell.
"""

from __future__ import annotations

from errno import EBADF
from typing import Any

from .base import PipeScenario, page, result, same
from .memory import Failure
from .scheduler import Limits, Run
from .world import PAGE, POLICIES, SHORT_SLEEP


def write_a_byte(writer: Any) -> str:
    """What came of writing a byte."""
    try:
        writer.write(b"x")
    except BrokenPipeError:
        return "EPIPE"
    return "written"


def read_ten(reader: Any) -> Any:
    return reader.read(10)


class ReadSleeps(PipeScenario):
    """A reader finds nothing; a writer writes once."""

    name = "read-sleeps"
    limits = Limits(late=1)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, reader, lambda: reader.read(10))
        self.add(run, writer, lambda: writer.write(b"x"))

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), b"x")


class WriteSleeps(PipeScenario):
    """A writer finds the ring full; a reader reads all of it, page by page."""

    limits = Limits(late=1)

    def __init__(self, policy: str, pages: int, write_pages: int = 1) -> None:
        self.policy, self.pages, self.write_pages = policy, pages, write_pages
        self.name = f"write-sleeps-{policy}-{pages}" + ("-high" if write_pages > 1 else "")
        self.filled = b"".join(page("abcd"[at]) for at in range(pages))

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, writer, lambda: writer.write(page("z")))
        count = self.pages + 1
        self.add(run, reader, lambda: b"".join(reader.read(PAGE) for _ in range(count)))

    def promised(self, run: Run) -> None:
        same("written", result(run, "W"), PAGE)
        same("read", result(run, "R"), self.filled + page("z"))


class Stream(PipeScenario):
    """More than the ring holds: both sleep, in turns."""

    name = "stream"
    limits = Limits(2, late=1)
    filled = page("a")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        count = 2 * PAGE + 100

        def read() -> bytes:
            got = b""
            while len(got) < count:
                got += reader.read(PAGE)
            return got

        self.add(run, writer, lambda: writer.write(page("b") + page("c", 100)))
        self.add(run, reader, read)

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), page("a") + page("b") + page("c", 100))


class CloseAgainstRead(PipeScenario):
    """The writer closes while a reader goes to sleep: EOF."""

    name = "close-against-read"
    strict = False
    patience = SHORT_SLEEP  # what a close can miss is looked for again after that
    limits = Limits(late=1)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, reader, lambda: reader.read(10))
        self.add(run, writer, writer.close)

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), b"")


class CloseAgainstWrite(PipeScenario):
    """The reader closes while a writer goes to sleep: EPIPE."""

    name = "close-against-write"
    strict = False
    patience = SHORT_SLEEP  # what a close can miss is looked for again after that
    limits = Limits(late=1)
    filled = page("a")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        self.add(run, writer, lambda: write_a_byte(writer))
        self.add(run, reader, reader.close)

    def promised(self, run: Run) -> None:
        same("write", result(run, "W"), "EPIPE")


class Crowd(PipeScenario):
    """Two readers and two writers, a page each, through a ring of one."""

    name = "crowd"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        readers = [self.world.reader(name) for name in "RS"]
        writers = [self.world.writer(name) for name in "WV"]
        for reader in readers:
            self.add(run, reader, lambda reader=reader: reader.read(PAGE))
        for number, writer in enumerate(writers):
            self.add(run, writer, lambda w=writer, n=number: w.write(page("ab"[n])))

    def promised(self, run: Run) -> None:
        same("read", sorted((result(run, "R"), result(run, "S"))), [page("a"), page("b")])


class TwoReaders(PipeScenario):
    """Two readers asleep, two pages in one write: one wake must reach both."""

    name = "two-readers"
    limits = Limits()
    pages = 2

    def begin(self, run: Run) -> None:
        readers = [self.world.reader(name) for name in "RS"]
        writer = self.world.writer("W")
        for reader in readers:
            self.add(run, reader, lambda reader=reader: reader.read(PAGE))
        self.add(run, writer, lambda: writer.write(page("a") + page("b")))

    def promised(self, run: Run) -> None:
        same("read", sorted((result(run, "R"), result(run, "S"))), [page("a"), page("b")])


class TwoWriters(PipeScenario):
    """Two writers asleep on a full ring of two; one read empties it: one wake must reach both."""

    name = "two-writers"
    limits = Limits(2)
    pages = 2
    filled = page("a") + page("b")

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        writers = [self.world.writer(name) for name in "WV"]
        for number, writer in enumerate(writers):
            self.add(run, writer, lambda w=writer, n=number: w.write(page("yz"[n])))
        self.add(run, reader, lambda: reader.read(2 * PAGE))

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), self.filled)
        held = self.world.ring.take(None, 2 * PAGE)
        same("left", sorted((held[:PAGE], held[PAGE:])), [page("y"), page("z")])


class ResizeAgainstSleeper(PipeScenario):
    """A writer asleep on a full ring; somebody makes it larger, and nobody reads."""

    limits = Limits(2, late=1)
    pages, most_pages = 1, 2
    filled = page("a")

    def __init__(self, by: str) -> None:
        self.name, self.by = f"resize-by-{by}", by

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        third = reader if self.by == "reader" else self.world.writer("C")
        self.add(run, writer, lambda: writer.write(page("b")))
        self.add(run, third, lambda: third.resize(2))

    def promised(self, run: Run) -> None:
        same("in the ring", self.world.ring.take(None, 2 * PAGE), page("a") + page("b"))


class ResizeAgainstBoth(PipeScenario):
    """A ring that is resized while others read and write."""

    name = "resize-against-both"
    limits = Limits(1)
    pages, most_pages = 1, 2

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        third = self.world.writer("C")
        self.add(run, reader, lambda: b"".join(reader.read(PAGE) for _ in range(2)))
        self.add(run, writer, lambda: writer.write(page("a") + page("b")))

        def resize() -> None:
            third.resize(2)
            try:
                third.resize(1)
            except OSError:
                pass  # too much in it

        self.add(run, third, resize)

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), page("a") + page("b"))


class CloseByThread(PipeScenario):
    """A thread closes an end in which another one reads: that call ends, one way or the other."""

    name = "close-by-thread"
    limits = Limits(2)
    remembers = False
    strict = False
    patience = 0.1

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def read() -> Any:
            try:
                return reader.read(10)
            except OSError as error:
                return error.errno

        self.add(run, reader, read)
        self.add(run, reader, reader.close, "T")
        self.add(run, writer, lambda: write_a_byte(writer))

    def promised(self, run: Run) -> None:
        read, written = result(run, "R"), result(run, "W")
        if (read, written) not in ((b"x", "written"), (EBADF, "EPIPE"), (EBADF, "written")):
            raise Failure(f"read {read!r}, write {written}")


class CloseWakes(PipeScenario):
    """A close is seen at once by one who is asleep, and by all who are well asleep."""

    limits = Limits()

    def __init__(self, closer: str, count: int) -> None:
        self.closer, self.count = closer, count
        who = "writer" if closer == "R" else "reader"
        self.name = f"close-wakes-{who}" + "s" * (count > 1)
        self.filled = page("a") if closer == "R" else b""

    def begin(self, run: Run) -> None:
        if self.closer == "R":
            closing, sleepers = self.world.reader("R"), [self.world.writer(n) for n in "WV"]
        else:
            closing, sleepers = self.world.writer("W"), [self.world.reader(n) for n in "RS"]
        for end in sleepers[: self.count]:
            call = write_a_byte if self.closer == "R" else read_ten
            self.add(run, end, lambda end=end, call=call: call(end))

        def close() -> None:
            semaphore = "WR_WAIT" if self.closer == "R" else "RD_WAIT"
            self.wait_until_asleep(run, self.count, semaphore)
            closing.close()

        self.add(run, closing, close)

    def promised(self, run: Run) -> None:
        wanted = "EPIPE" if self.closer == "R" else b""
        outcomes = [task.result for task in run.tasks[: self.count]]
        same("outcomes", outcomes, [wanted] * self.count)


PIPES: list[PipeScenario] = [
    ReadSleeps(),
    *(WriteSleeps(policy, 1) for policy in POLICIES),
    *(WriteSleeps(policy, 2) for policy in POLICIES),
    WriteSleeps("write-size", 2, 2),
    Stream(),
    CloseAgainstRead(),
    CloseAgainstWrite(),
    *(CloseWakes(closer, count) for closer in "RW" for count in (1, 2)),
    Crowd(),
    TwoReaders(),
    TwoWriters(),
    ResizeAgainstSleeper("reader"),
    ResizeAgainstSleeper("writer"),
    ResizeAgainstBoth(),
    CloseByThread(),
]
