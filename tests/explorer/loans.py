"""The scenarios for messages that are lent where they lie."""

from __future__ import annotations

from errno import EBUSY
from typing import Any

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same, shorter
from .memory import Failure, Op
from .messages import FULL, HALF, LONG, SMALL, TINY, MessageScenario, or_end, or_timeout
from .scheduler import Limits, Run
from .views import Lent
from .world import End


def borrow(end: End, timeout: float | None = None) -> bytes:
    """What was lent, which must not change meanwhile."""
    with end.lend(timeout) as view:
        content = bytes_of(view)
        same("what is lent, a little later", bytes_of(view), content)
    return content


def bytes_of(view: Any) -> bytes:
    return view.read() if isinstance(view, Lent) else bytes(view)


class LendAndReceive(MessageScenario):
    """One process borrows a message, another one receives: each gets its own."""

    name = "lend-and-receive"
    limits = Limits(2, late=1)

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.add(run, first, lambda: borrow(first))
        self.add(run, second, second.receive)
        self.add(run, writer, lambda: (writer.send(SMALL), writer.send(HALF)))

    def promised(self, run: Run) -> None:
        same("received", sorted((result(run, "R"), result(run, "S"))), [HALF, SMALL])


class LendTwice(MessageScenario):
    """Two processes borrow, while a third one makes the ring smaller, or finds it lent, and then
    receives.
    """

    name = "lend-twice"
    limits = Limits(2)
    pages = 2

    def begin(self, run: Run) -> None:
        self.world.fill(FULL)
        self.world.ring.front()
        self.world.ring.consume()
        self.world.fill(SMALL)  # in the page that a ring of one has elsewhere
        self.world.fill(HALF)
        self.world.fill(TINY)
        for name in "RS":
            end = self.world.reader(name)
            self.add(run, end, lambda end=end: borrow(end))
        third = self.world.reader("C")

        def resize() -> Any:
            try:
                third.resize(1)
            except OSError as error:
                same("error", error.errno, EBUSY)
            return third.receive()

        self.add(run, third, resize)

    def promised(self, run: Run) -> None:
        got = [task.result for task in run.tasks]
        same("received", sorted(got), [HALF, SMALL, TINY])


class LendAndGrow(MessageScenario):
    """A sender needs a larger ring, which has to wait for the end of a loan."""

    name = "lend-and-grow"
    limits = Limits(2, late=1)
    pages, most_pages = 1, 2

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.fill(FULL)
        self.world.ring.front()
        self.world.ring.consume()
        self.world.fill(HALF)  # in a page that moves, as the ring grows
        self.world.grow_to(2)
        self.add(run, reader, lambda: (borrow(reader), reader.receive()))
        self.add(run, writer, lambda: writer.send(FULL))

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), (HALF, FULL))


class LendAndLetGrow(LendAndGrow):
    """The end of a loan frees less than the policy asks for; but now the ring may grow."""

    name = "lend-and-let-grow"
    limits = Limits(2)
    write_pages = 2
    more = page("m", 1500)
    large = page("g", 6000)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.fill(HALF)
        self.world.fill(self.more)
        self.world.grow_to(2)
        self.reader = reader
        lent = self.world.place_of("RD_LENT")

        def send() -> None:
            run.step(Op("waits for the loan", (lent,), (), True, lambda: run.get(lent) != 0))
            writer.send(self.large)

        def receive() -> bytes:
            with reader.lend() as view:
                self.wait_until_asleep(run, 1, "WR_WAIT")
                return bytes_of(view)

        self.add(run, writer, send)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), HALF)
        same("left", self.left(self.reader), [self.more, self.large])


class LendInParts(MessageScenario):
    """What comes in parts is not lent but copied; another process receives what follows."""

    name = "lend-in-parts"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")

        self.add(run, first, lambda: borrow(first))
        self.add(run, second, lambda: borrow(second))
        self.add(run, writer, lambda: (writer.send(LONG), writer.send(SMALL)))

    def promised(self, run: Run) -> None:
        same("received", sorted((result(run, "R"), result(run, "S"))), [LONG, SMALL])


class LendObject(MessageScenario):
    """Two processes sleep for messages, one to borrow; one of these is not lent but copied."""

    name = "lend-object"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.add(run, first, lambda: borrow(first))
        self.add(run, second, second.receive)
        self.add(run, writer, lambda: (writer.send_object(SMALL), writer.send(HALF)))

    def promised(self, run: Run) -> None:
        same("received", sorted((result(run, "R"), result(run, "S"))), [HALF, SMALL])


class LendLate(MessageScenario):
    """Two processes sleep for messages, one to borrow, one whose time may be up as it is woken."""

    name = "lend-late"
    limits = Limits(1, late=1)

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.add(run, first, lambda: borrow(first))
        self.add(run, second, lambda: or_timeout(lambda: second.receive(0.01)))

        def send() -> None:
            writer.send(SMALL)
            writer.send(HALF)

        self.add(run, writer, send)

    def promised(self, run: Run) -> None:
        got = [result(run, "R"), result(run, "S")]
        if got[1] == "too late":
            got[1:] = self.left()
        same("received", sorted(got), [HALF, SMALL])


class LendToWatcher(MessageScenario):
    """A loan ends: those who watch are shown whether there is more."""

    name = "lend-to-watcher"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.beside = self.world.reader("Q")
        self.add(run, reader, lambda: borrow(reader))
        self.add(run, self.beside, self.beside.watch)
        self.add(run, writer, lambda: (writer.send(SMALL), writer.send(HALF)))

    def promised(self, run: Run) -> None:
        same("readiness beside a message", self.beside.ready(POLLIN), True)
        same("received", [result(run, "R"), *self.left()], [SMALL, HALF])
        if self.beside.ready(POLLIN):  # one readiness too many: its next call puts that right
            nothing = or_timeout(lambda: self.beside.receive(0.0))
            same("receive of nothing", nothing, "too late")
            same("readiness of an empty ring", self.beside.ready(POLLIN), False)


class LendFull(MessageScenario):
    """A sender's descriptor is watched; the message that fills the ring is lent, and given back."""

    name = "lend-full"
    limits = Limits(2)
    filled = FULL

    def begin(self, run: Run) -> None:
        reader, self.writer = self.ends()
        self.add(run, reader, lambda: borrow(reader))

        def watch() -> None:
            kernel.poll_fd(self.writer.watch(), POLLOUT, None)

        self.add(run, self.writer, watch)

    def promised(self, run: Run) -> None:
        same("readiness of an empty ring", self.writer.ready(POLLOUT), True)


class LastLoan(MessageScenario):
    """The sender closes while its last message is lent: end of file comes behind it."""

    name = "last-loan"
    limits = Limits(2, late=1)
    strict = False
    patience = 0.05

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def receive() -> bytes:
            content = borrow(reader)
            try:
                reader.receive()
            except EOFError:
                return content
            raise Failure("a message behind the last")

        self.add(run, reader, receive)
        self.add(run, writer, lambda: (writer.send(SMALL), writer.close()))

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), SMALL)


class DeathOfBorrower(MessageScenario):
    """Whoever borrows is killed at any point: another process receives what was lent."""

    name = "death-of-borrower"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        writer.send(SMALL)
        writer.send(HALF)
        writer.close()

        self.add(run, first, lambda: or_end(lambda: borrow(first)))
        self.add(run, second, second.receive_all)

    def promised(self, run: Run) -> None:
        first, rest = result(run, "R"), result(run, "S")
        if not run.deaths:
            same("received", sorted(filter(None, [first, *rest])), [HALF, SMALL])
        elif rest not in ([SMALL, HALF], [SMALL], [HALF]):
            raise Failure(f"received {shorter(rest)}")


LOANS: list[PipeScenario] = [
    LendAndReceive(),
    LendTwice(),
    LendAndGrow(),
    LendAndLetGrow(),
    LendInParts(),
    LendObject(),
    LendLate(),
    LendToWatcher(),
    LendFull(),
    LastLoan(),
    DeathOfBorrower(),
]
