"""The scenarios for messages that are sent in steps, between which their sender waits elsewhere."""

from __future__ import annotations

from typing import Any

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same, shorter
from .losses import OTHER, TurnTakenEarly
from .memory import Failure, Op
from .messages import FULL, HALF, LONG, SMALL, TINY, MessageScenario, or_timeout
from .scheduler import Limits, Run
from .world import PAGE, End, segment


class SteppedScenario(MessageScenario):
    def send(self, run: Run, end: End, content: bytes) -> None:
        """As an event loop does it: watch the descriptor, and step when it shows writable."""
        sending = end.begin(content)
        while not sending.step():
            kernel.poll_fd(end.watch_outgoing(), POLLOUT, None)
            if not sending.has_begun():
                self.wait_for_turn(run)

    def wait_for_turn(self, run: Run) -> None:
        """Until no living process has the turn: meanwhile a step would be in vain, writable or not.

        (An event loop looks again, less and less often.)
        """
        turn, processes = self.world.place_of("WR_TURN_BY"), self.world.machine.processes
        alive = [("alive", name) for name in processes]

        def free() -> bool:
            taker = run.get(turn)
            return not taker or not run.get(alive[taker - 1])

        run.step(Op("waits for its turn", (turn, *alive), (), True, free))

    def steps(self, run: Run, *names_and_contents: Any) -> None:
        """Senders by name, with what each of them sends in steps."""
        for name, content in names_and_contents:
            end = self.world.writer(name)
            self.add(run, end, lambda end=end, content=content: self.send(run, end, content))


class Stepped(SteppedScenario):
    """A message that fits once another one has been received, or goes in parts, to a receiver that
    sleeps.
    """

    limits = Limits(2)
    filled = HALF

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = f"stepped-{name}", content

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        self.steps(run, ("W", self.content))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [HALF, self.content])
        same("left", self.left(self.world.ends[0]), [])


class SteppedSlowly(Stepped):
    """The sender is elsewhere for a while in the middle: the receiver finds it alive, and waits."""

    limits = Limits(1)
    strict = False
    filled = b""

    def __init__(self) -> None:
        super().__init__("slowly", LONG)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def send() -> None:
            sending = writer.begin(LONG)
            while not sending.step():
                kernel.Clock.sleep(0.5)

        self.add(run, writer, send)
        self.add(run, reader, reader.receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), LONG)


class SteppedToWatcher(SteppedScenario):
    """The receiver watches its descriptor, and receives without waiting."""

    limits = Limits(2)

    def __init__(self, name: str, *contents: bytes, pages: int = 1) -> None:
        self.name, self.contents = f"stepped-{name}-to-watcher-{pages}", contents
        self.pages = pages

    def begin(self, run: Run) -> None:
        self.reader, writer = self.ends()

        def receive() -> list[Any]:
            got: list[Any] = []
            while len(got) < len(self.contents):
                kernel.poll_fd(self.reader.watch(), POLLIN, None)
                message = or_timeout(lambda: self.reader.receive(0.0))
                got += [] if message == "too late" else [message]
            return got

        self.add(run, self.reader, receive)
        self.add(run, writer, lambda: [self.send(run, writer, one) for one in self.contents])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), list(self.contents))
        same("readiness of an empty ring", self.reader.ready(POLLIN), False)


class SteppedTwice(SteppedScenario):
    """Two senders in steps: the one's message does not land in the other's."""

    limits = Limits(1)

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = f"stepped-twice-{name}", content

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        self.steps(run, ("W", LONG), ("V", self.content))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", sorted(result(run, "R")), sorted([LONG, self.content]))


class SteppedBeside(SteppedScenario):
    """One sender in steps, and one that sleeps for space or for its turn."""

    limits = Limits(1)

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = f"stepped-beside-{name}", content

    def begin(self, run: Run) -> None:
        reader, beside = self.world.reader("R"), self.world.writer("V")
        self.steps(run, ("W", LONG))
        self.add(run, beside, lambda: beside.send(self.content))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", sorted(result(run, "R")), sorted([LONG, self.content]))


class SteppedAndReserve(SteppedScenario):
    """One process comes to the end of a message in steps, and sends another one, while a third one
    is written in place: whose turn it is stays known.
    """

    name = "stepped-and-reserve"
    limits = Limits(2)
    strict = False

    def begin(self, run: Run) -> None:
        self.reader, writer = self.ends()
        beside, machine = self.world.writer("V"), self.world.machine
        machine.setting_up = "W"
        sending = writer.begin(LONG)
        same("sent", sending.step(), False)
        machine.setting_up = "R"
        same("received", or_timeout(lambda: self.reader.receive(0.0)), "too late")
        machine.setting_up = "nobody"

        def send() -> None:
            while not sending.step():
                pass
            writer.send(TINY)

        def reserve() -> None:
            with beside.reserve(len(HALF)) as view:
                view.write(HALF)
                kernel.Clock.sleep(0.1)

        self.add(run, writer, send)
        self.add(run, beside, reserve)

    def promised(self, run: Run) -> None:
        self.world.machine.setting_up = "R"  # which has kept the first parts
        same("received", sorted(self.left(self.reader)), sorted([LONG, TINY, HALF]))


class SteppedFull(SteppedScenario):
    """A message, or its first parts, fill the ring: all who watch are shown so."""

    limits = Limits(2)

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = f"stepped-full-{name}", content

    def begin(self, run: Run) -> None:
        self.reader, self.beside = self.world.reader("R"), self.world.writer("V")
        writer = self.world.writer("W")
        self.beside.watch()

        def send() -> Any:
            self.sending = writer.begin(self.content)
            return self.sending.step()

        self.add(run, writer, send)
        self.add(run, self.reader, self.reader.watch)

    def promised(self, run: Run) -> None:
        same("sent", result(run, "W"), self.content == FULL)
        same("readiness of a full ring", self.beside.ready(POLLOUT), False)
        same("readiness beside a message", self.reader.ready(POLLIN), True)


class SteppedGrown(SteppedScenario):
    """A message that fits, or goes in larger parts, once the ring has grown."""

    limits = Limits(1)
    pages, most_pages = 1, 2
    filled = HALF

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = f"stepped-grown-{name}", content

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        self.steps(run, ("W", self.content))
        self.world.grow_to(2)
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [HALF, self.content])
        if self.content != FULL:  # which fits, too, once the other one has been received
            same("pages", self.world.word("PAGES"), 2)


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


class DeathOfStepped(SteppedScenario):
    """Of two senders in steps one is killed at any point: the other one's message arrives."""

    limits = Limits(0, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0

    def __init__(self, name: str, content: bytes, beside: str) -> None:
        self.name, self.content, self.beside = f"death-of-stepped-{name}", content, beside

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")

        def send(end: End, content: bytes, steps: bool) -> None:
            if steps:
                self.send(run, end, content)
            else:
                end.send(content)
            end.close()

        for name, content in (("W", self.content), ("V", SMALL)):
            end, steps = self.world.writer(name), name == "W" or self.beside == "steps"
            self.add(run, end, lambda e=end, c=content, s=steps: send(e, c, s))
        self.add(run, reader, reader.receive_all)

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        wanted = [[self.content, SMALL], [SMALL, self.content]]
        if run.tasks[0].dead:
            wanted.append([SMALL])
        if got not in wanted:
            raise Failure(f"received {shorter(got)}")


class DeathOfSteppedForGood(SteppedScenario):
    """A sender in steps is killed at any point; another one lives, and sends nothing: the receiver
    does not wait for the rest, and counts it as lost.
    """

    name = "death-of-stepped-for-good"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        self.world.writer("V")
        self.steps(run, ("W", LONG))
        self.add(run, reader, lambda: or_timeout(lambda: reader.receive(0.5)))

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if got != LONG and not (run.deaths and got == "too late"):
            raise Failure(f"received {shorter(got)}")
        begun = self.world.word("WPOS") > 8  # more than an idle ABORT
        same("counted as lost", self.world.word("DROPPED"), int(begun and got != LONG))


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


STEPPED: list[PipeScenario] = [
    Stepped("whole", FULL),
    Stepped("in-parts", LONG),
    SteppedSlowly(),
    SteppedToWatcher("whole", SMALL, HALF),
    SteppedToWatcher("whole", FULL, FULL, pages=2),
    SteppedToWatcher("in-parts", LONG),
    SteppedToWatcher("in-parts", page("l", 2 * PAGE + 300), pages=2),
    SteppedTwice("and-whole", SMALL),
    SteppedTwice("in-parts", OTHER),
    SteppedBeside("whole", SMALL),
    SteppedBeside("in-parts", OTHER),
    SteppedAndReserve(),
    SteppedFull("whole", FULL),
    SteppedFull("in-parts", LONG),
    SteppedGrown("whole", FULL),
    SteppedGrown("in-parts", page("l", 2 * PAGE)),
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
