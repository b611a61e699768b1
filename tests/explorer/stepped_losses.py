"""The scenarios for messages sent in steps that come to nothing, and for their senders' deaths."""

from __future__ import annotations

from typing import Any

from . import kernel
from .base import POLLOUT, PipeScenario, page, result, same
from .losses import DeathForGood, DeathOfSender, TurnTakenEarly
from .memory import Op
from .messages import FULL, HALF, LONG, SMALL, TINY
from .scheduler import Limits, Run
from .stepped import SteppedScenario
from .world import PAGE, End, segment


class CloseAgainstStepped(SteppedScenario):
    """The last receiver closes while a message is in the middle, and its sender waits."""

    name = "close-against-stepped"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def send() -> str:
            try:
                self.send(run, writer, LONG)
            except BrokenPipeError:
                return "EPIPE"
            return "sent to nobody"

        self.add(run, writer, send)
        self.add(run, reader, reader.close)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "EPIPE")
        same("whose turn it is", self.world.word("WR_TURN_BY"), 0)


class Cancelled(SteppedScenario):
    """A message is given up in the middle: the receiver drops it, and waits for the next."""

    name = "stepped-cancelled"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def send() -> Any:
            sending = writer.begin(LONG)
            sent = sending.step()
            sending.cancel()
            self.wait_until_lost(run)
            writer.send(SMALL)
            return sent

        self.add(run, writer, send)
        self.add(run, reader, reader.receive)

    def wait_until_lost(self, run: Run) -> None:
        """Until the receiver has seen that nothing comes of what it has begun."""
        place = self.world.place_of("DROPPED")
        run.step(Op("waits until that is lost", (place,), (), True, lambda: run.get(place) == 1))

    def promised(self, run: Run) -> None:
        same("sent", result(run, "W"), False)
        same("received", result(run, "R"), SMALL)
        same("counted as lost", self.world.word("DROPPED"), 1)


class CancelWatched(SteppedScenario):
    """What closes off a message that is given up takes the last space that made an end writable."""

    name = "cancel-watched"
    limits = Limits(1)
    pages = 4
    filled = TINY

    def begin(self, run: Run) -> None:
        self.world.fill(page("m", 4040))
        self.reader, self.writer = self.ends()

        def give_up() -> None:
            sending = self.writer.begin(page("l", 5 * PAGE))
            sending.step()
            self.writer.watch()
            sending.cancel()

        self.add(run, self.writer, give_up)
        self.add(run, self.reader, self.reader.receive)

    def promised(self, run: Run) -> None:
        enough = self.world.ring.used_now() < self.pages
        same("readiness for a page", self.writer.ready(POLLOUT), enough)


class DeathOfStepped(SteppedScenario, DeathOfSender):
    """One of two senders is killed, which sends in steps, as the other one may, too."""

    def __init__(self, name: str, content: bytes, beside: str) -> None:
        self.name, self.content, self.beside = f"death-of-stepped-{name}", content, beside

    def send(self, run: Run, end: End, content: bytes) -> None:
        if content == self.content or self.beside == "steps":
            super().send(run, end, content)
        else:
            end.send(content)


class DeathOfSteppedForGood(SteppedScenario, DeathForGood):
    """A sender in steps is killed, and the other one, which lives, sends nothing."""

    name = "death-of-stepped-for-good"


class SteppedAfterDeath(TurnTakenEarly):
    """A sender was killed in the middle of a message; another one finds that out, and sends one in
    parts, step by step: the first one's is counted as lost.
    """

    name = "stepped-after-death"

    def begin(self, run: Run) -> None:
        super().begin(run)
        beside = run.tasks.pop()
        end = next(end for end in self.world.ends if end.process == beside.process)

        def send() -> None:
            sending = end.begin(self.content)
            while not sending.step():
                kernel.Clock.sleep(0.005)

        self.add(run, end, send)


class SteppedBesideWant(SteppedScenario):
    """A sender that waited for much space was killed.  Who goes on after it waits for less, and is
    shown when there is that much.
    """

    name = "stepped-beside-want"
    limits = Limits()
    pages = 2
    filled = FULL
    counted = False

    def begin(self, run: Run) -> None:
        self.world.fill(page("m", 1984))
        reader, dead = self.ends()
        writer = self.world.writer("V")
        words = self.world.words
        words[segment.WR_TURN_BY] = 1 + self.world.machine.process("W")
        words[segment.WR_WANT] = 2 * PAGE
        words[segment.WR_SLEEPERS] = words[segment.WR_ARM] = 1
        self.world.died_inside(dead, dead.sender.turn)
        run.hurried = frozenset("V")  # it has to find out about the death, which takes time

        def send() -> None:
            sending = writer.begin(page("l", 3 * PAGE))
            while not sending.has_begun():
                sending.step()
            fd = writer.watch_outgoing()
            run.step(Op("says that it watches", (), ("watches",), True))
            run.put("watches", 1)
            kernel.poll_fd(fd, POLLOUT, None)

        def receive() -> Any:
            watches = lambda: run.get("watches") == 1  # noqa: E731
            run.step(Op("waits for the next sender", ("watches",), (), True, watches))
            return reader.receive()

        self.add(run, writer, send)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), FULL)


STEPPED_LOSSES: list[PipeScenario] = [
    CloseAgainstStepped(),
    Cancelled(),
    CancelWatched(),
    DeathOfStepped("beside", LONG, "call"),
    DeathOfStepped("beside-stepped", LONG, "steps"),
    DeathOfStepped("whole", HALF, "steps"),
    DeathOfSteppedForGood(),
    SteppedAfterDeath(),
    SteppedBesideWant(),
]
