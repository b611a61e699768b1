"""The scenarios for messages that are written where they lie."""

from __future__ import annotations

from errno import EBUSY

from .base import POLLIN, POLLOUT, PipeScenario, result, same, shorter
from .memory import Failure, Op
from .messages import FULL, HALF, LONG, SMALL, TINY, MessageScenario
from .scheduler import Limits, Run
from .world import End


def put(end: End, content: bytes) -> None:
    with end.reserve(len(content)) as view:
        view.write(content)


class Reserve(MessageScenario):
    """A message written in place, and one sent by another process, through a ring for one."""

    name = "reserve-and-send"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        beside = self.world.writer("V")
        self.add(run, writer, lambda: put(writer, HALF))
        self.add(run, beside, lambda: beside.send(FULL))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", sorted(result(run, "R")), [FULL, HALF])


class ReserveTwice(MessageScenario):
    """Two processes reserve, while a third one makes the ring smaller, or finds it lent, and then
    sends.
    """

    name = "reserve-twice"
    limits = Limits(2)
    pages = 2

    def begin(self, run: Run) -> None:
        self.world.fill(FULL)
        self.world.ring.front()
        self.world.ring.consume()
        self.reader = self.world.reader("R")
        for name, content in (("W", SMALL), ("V", HALF)):
            end = self.world.writer(name)
            self.add(run, end, lambda end=end, content=content: put(end, content))
        third = self.world.writer("C")

        def resize() -> None:
            try:
                third.resize(1)
            except OSError as error:
                same("error", error.errno, EBUSY)
            third.send(TINY)

        self.add(run, third, resize)

    def promised(self, run: Run) -> None:
        same("received", sorted(self.left(self.reader)), [HALF, SMALL, TINY])


class ReserveWaits(MessageScenario):
    """Space is reserved where there is none yet."""

    name = "reserve-waits"
    limits = Limits(2, late=1)
    filled = FULL

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, writer, lambda: put(writer, SMALL))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [FULL, SMALL])


class ReserveWatched(MessageScenario):
    """A message written in place fills the ring: those who watch are shown so."""

    name = "reserve-watched"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        writer, self.beside = self.world.writer("W"), self.world.writer("V")
        reader = self.world.reader("R")
        self.beside.watch()
        self.add(run, writer, lambda: put(writer, FULL))
        self.add(run, reader, reader.watch)
        self.reader = reader

    def promised(self, run: Run) -> None:
        same("readiness of a full ring", self.beside.ready(POLLOUT), False)
        same("readiness beside a message", self.reader.ready(POLLIN), True)


class CloseAgainstReserve(MessageScenario):
    """The receiver closes while space is reserved: the sender learns that nobody will receive."""

    name = "close-against-reserve"
    limits = Limits()

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def send() -> str:
            try:
                with writer.reserve(16) as view:
                    view.write(SMALL)
                    closed = lambda: run.get("closed") == 1  # noqa: E731
                    run.step(Op("waits for the close", ("closed",), (), True, closed))
            except BrokenPipeError:
                return "EPIPE"
            return "sent to nobody"

        def close() -> None:
            reader.close()
            run.step(Op("says that it has closed", (), ("closed",), True))
            run.put("closed", 1)

        self.add(run, writer, send)
        self.add(run, reader, close)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "EPIPE")


class DeathOfReserver(MessageScenario):
    """Whoever has reserved is killed at any point: another process sends, and the ring may grow."""

    name = "death-of-reserver"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0
    pages, most_pages = 1, 2

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        writer, beside = self.world.writer("W"), self.world.writer("V")
        self.world.grow_to(2)

        def reserve() -> None:
            put(writer, HALF)
            writer.close()

        def send() -> None:
            beside.send(LONG)
            beside.close()

        self.add(run, writer, reserve)
        self.add(run, beside, send)
        self.add(run, reader, reader.receive_all)

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if not run.deaths:
            same("received", sorted(got), [HALF, LONG])
        elif sorted(got) not in ([HALF, LONG], [LONG]):
            raise Failure(f"received {shorter(got)}")


RESERVATIONS: list[PipeScenario] = [
    Reserve(),
    ReserveTwice(),
    ReserveWaits(),
    ReserveWatched(),
    CloseAgainstReserve(),
    DeathOfReserver(),
]
