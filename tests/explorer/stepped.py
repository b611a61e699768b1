"""The scenarios for messages that are sent in steps, between which their sender waits elsewhere."""

from __future__ import annotations

from typing import Any

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same
from .losses import OTHER
from .memory import Op
from .messages import FULL, HALF, LONG, SMALL, TINY, MessageScenario, or_timeout
from .scheduler import Limits, Run
from .world import PAGE, End


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
]
