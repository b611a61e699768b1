"""Scenarios in which a process is killed, at any point of what it does."""

from __future__ import annotations

from .base import POLLIN, PipeScenario, page, pages_of, result, same, shorter
from .memory import Failure, Op
from .scheduler import Limits, Run
from .world import PAGE, End


class DeathOfWriter(PipeScenario):
    """One of two writers is killed at any point: what it wrote is there whole or not at all."""

    name = "death-of-writer"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 0.6

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        writers = [self.world.writer(name) for name in "WV"]
        self.add(run, reader, lambda: reader.read_all(PAGE))

        def write(end: End, letter: str) -> None:
            end.write(page(letter))
            end.close()

        for number, writer in enumerate(writers):
            self.add(run, writer, lambda w=writer, n=number: write(w, "ab"[n]))

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        wanted = [page("a") + page("b"), page("b") + page("a")]
        if run.tasks[1].dead:
            wanted.append(page("b"))
        if got not in wanted:
            raise Failure(f"read {shorter(got)}")


class DeathOfReader(PipeScenario):
    """One of two readers is killed at any point: the other one goes on."""

    name = "death-of-reader"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 0.6

    def begin(self, run: Run) -> None:
        readers = [self.world.reader(name) for name in "RS"]
        writer = self.world.writer("W")

        def write() -> None:
            for letter in "abc":
                writer.write(page(letter))
            writer.close()

        def read(end: End) -> bytes:
            got = end.read(PAGE)
            end.close()
            return bytes(got)

        self.add(run, readers[0], lambda: read(readers[0]))
        self.add(run, readers[1], lambda: readers[1].read_all(PAGE))
        self.add(run, writer, write)

    def promised(self, run: Run) -> None:
        first, second = result(run, "R"), result(run, "S")
        whole = [page(letter) for letter in "abc"]
        if not run.tasks[0].dead:
            same("read", sorted(filter(None, [first, *pages_of(second)])), whole)
        elif pages_of(second) not in ([*whole], whole[1:], [whole[0], whole[2]], whole[:2]):
            raise Failure(f"read {shorter(second)}")


class DeathOfResizer(PipeScenario):
    """Whoever resizes is killed at any point: what is in the ring stays as it was."""

    name = "death-of-resizer"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("C",)
    patience = 0.6
    pages, most_pages = 1, 2
    filled = page("a")

    def begin(self, run: Run) -> None:
        # The page in use is an odd one, which moves to another slot.
        self.world.ring.take(None, PAGE)
        self.world.fill(page("b"))
        reader = self.world.reader("R")
        third = self.world.writer("C")
        self.add(run, third, lambda: third.resize(2))
        self.add(run, reader, lambda: reader.read(PAGE))

    def promised(self, run: Run) -> None:
        same("read", result(run, "R"), page("b"))


class DeathOfLast(PipeScenario):
    """The only writer is killed at any point: the reader gets all that it published, then EOF."""

    name = "death-of-last-writer"
    limits = Limits(None, deaths=1)
    strict = False
    killable = ("W",)
    patience = 0.6

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, reader, lambda: reader.read_all(PAGE))
        self.add(run, writer, lambda: writer.write(b"x") and writer.close())

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if got != b"x" and not (run.tasks[1].dead and got == b""):
            raise Failure(f"read {shorter(got)}")


class DeathBeforeRing(PipeScenario):
    """A writer is killed with the lock: whoever takes it over gives the wakes that are owed.

    (One killed between unlocking and ringing leaves a watcher alone until the next call: a limit
    that is documented.)
    """

    name = "death-before-ring"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 0.6
    pages = 2  # with one, the other writer would have to show that the pipe is full

    def begin(self, run: Run) -> None:
        self.reader = self.world.reader("R")
        self.reader.watch()
        writer, self.idle = self.world.writer("W"), self.world.writer("V")
        self.add(run, writer, lambda: writer.write(b"x"))
        self.add(run, self.idle, self.idle.watch)

    def promised(self, run: Run) -> None:
        data = self.world.word("WPOS") > 0
        died_with_it = "WR_LOCK" in self.world.machine.died_with
        taken_over = run.get(self.idle.side.lock.place) == 1
        if data and (not run.deaths or (died_with_it and taken_over)):
            same("readiness beside data", self.reader.ready(POLLIN), True)


class DeathOfStranger(PipeScenario):
    """A writer that begins when the reader already sleeps long is killed, and another one lives."""

    name = "death-of-stranger"
    limits = Limits(2, late=1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 0.6

    def begin(self, run: Run) -> None:
        reader, stranger = self.world.reader("R"), self.world.writer("W", placed=False)
        self.idle = self.world.writer("V")
        self.add(run, reader, lambda: reader.read(PAGE))
        self.add(run, stranger, lambda: stranger.write(b"x"))
        run.content = lambda: self.world.word("WPOS") == 0

    def promised(self, run: Run) -> None:
        if self.world.word("WPOS"):
            same("read", result(run, "R"), b"x")


class DeathOfStrangeReader(PipeScenario):
    """A reader that begins when the writer already sleeps long is killed, and another one lives."""

    name = "death-of-strange-reader"
    limits = Limits(2, late=1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 0.6
    filled = page("a")

    def begin(self, run: Run) -> None:
        stranger, writer = self.world.reader("R", placed=False), self.world.writer("W")
        self.idle = self.world.reader("S")
        self.add(run, writer, lambda: writer.write(page("b")))
        self.add(run, stranger, lambda: stranger.read(PAGE))
        run.content = lambda: self.world.word("RPOS") == 0

    def promised(self, run: Run) -> None:
        if self.world.word("RPOS"):
            same("written", result(run, "W"), PAGE)


class DeathBesideIdleReader(PipeScenario):
    """A reader is killed where it has read and not woken the writer; another one does nothing.

    The writer is on its semaphore, or has just left it; what it watches from then on is not what
    ended before.
    """

    name = "death-beside-idle-reader"
    limits = Limits(2, late=1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 0.6
    pages = 2  # one is left, so that nobody finds it empty
    filled = page("a") + page("b")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.idle = self.world.reader("S")
        self.add(run, writer, lambda: writer.write(page("c")))
        self.add(run, reader, lambda: reader.read(PAGE))
        run.content = lambda: self.world.word("RPOS") == 0

    def promised(self, run: Run) -> None:
        if self.world.word("RPOS"):
            same("written", result(run, "W"), PAGE)


class DeathBelowMark(PipeScenario):
    """The same where what was read is not enough: the writer sleeps on, beside a free slot."""

    name = "death-below-mark"
    limits = Limits(2, late=1, deaths=1)
    strict = False
    counted = False
    killable = ("R",)
    pages = 4
    policy = "half"
    filled = page("a") + page("b") + page("c") + page("d")

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.idle = self.world.reader("S")
        self.add(run, writer, lambda: writer.write(page("z")))

        def sleeps() -> bool:
            pending = run.tasks[0].pending
            return pending is not None and pending.name in ("sleeps on", "polls")

        def read() -> bytes:
            run.step(Op("waits until the other one sleeps", (), (), True, sleeps))
            return bytes(reader.read(PAGE))

        self.add(run, reader, read)
        run.content = lambda: True  # it goes on sleeping

    def promised(self, run: Run) -> None:
        same("written", self.world.word("WPOS"), 4 * PAGE)


DEATHS: list[PipeScenario] = [
    DeathOfWriter(),
    DeathBeforeRing(),
    DeathOfStranger(),
    DeathOfStrangeReader(),
    DeathBesideIdleReader(),
    DeathBelowMark(),
    DeathOfReader(),
    DeathOfLast(),
    DeathOfResizer(),
]
