"""The scenarios for connections both of whose ends send and receive: two rings and one doorbell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import kernel
from .base import POLLIN, PipeScenario, result, same, shorter
from .memory import Failure, Op
from .messages import FULL, HALF, LONG, SMALL, or_timeout
from .scheduler import Limits, Run
from .world import End


class DuplexScenario(PipeScenario):
    """Two processes, an end each."""

    frames = True
    rings = 2

    def both(self) -> tuple[End, End]:
        return self.world.connection("A", 0), self.world.connection("B", 1)


class Exchange(DuplexScenario):
    """A question and its answer."""

    name = "exchange"
    limits = Limits(2, late=1)

    def begin(self, run: Run) -> None:
        first, second = self.both()

        def ask() -> Any:
            first.send(SMALL)
            return first.receive()

        def answer() -> Any:
            question = second.receive()
            second.send(HALF)
            return question

        self.add(run, first, ask)
        self.add(run, second, answer)

    def promised(self, run: Run) -> None:
        same("received", (result(run, "A"), result(run, "B")), (HALF, SMALL))


class ExchangeOfParts(DuplexScenario):
    """The answer comes in parts, while the other end is asleep for more space in its own ring."""

    name = "exchange-of-parts"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        first, second = self.both()

        def ask() -> Any:
            first.send(LONG)
            return first.receive()

        def answer() -> Any:
            question = second.receive()
            second.send(LONG)
            return question

        self.add(run, first, ask)
        self.add(run, second, answer)

    def promised(self, run: Run) -> None:
        same("received", (result(run, "A"), result(run, "B")), (LONG, LONG))


class Crossing(DuplexScenario):
    """Both ends send at once, twice, though each ring holds one: rings and plugs share sockets."""

    name = "crossing"
    limits = Limits(1, late=2)

    def begin(self, run: Run) -> None:
        def talk(end: End, receive_first: bool) -> list[Any]:
            got = []
            for content in (FULL, SMALL):
                if receive_first:
                    got.append(end.receive())
                end.send(content)
                if not receive_first:
                    got.append(end.receive())
            return got

        for number, end in enumerate(self.both()):
            self.add(run, end, lambda end=end, number=number: talk(end, number == 1))

    def promised(self, run: Run) -> None:
        same("received", (result(run, "A"), result(run, "B")), ([FULL, SMALL], [FULL, SMALL]))


class WatchBothWays(DuplexScenario):
    """An end that polls for messages, and sends meanwhile."""

    name = "watch-both-ways"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        first, second = self.both()

        def watch() -> list[Any]:
            got: list[Any] = []
            fd = first.watch()
            first.send(FULL)
            while len(got) < 2:
                kernel.poll_fd(fd, POLLIN, None)
                message = or_timeout(lambda: first.receive(0.0))
                if message != "too late":
                    got.append(message)
            return got

        def other() -> Any:
            second.send(SMALL)
            got = second.receive()
            second.send(HALF)
            return got

        self.first = first
        self.add(run, first, watch)
        self.add(run, second, other)

    def promised(self, run: Run) -> None:
        same("received", (result(run, "A"), result(run, "B")), ([SMALL, HALF], FULL))


class WatchOutgoing(DuplexScenario):
    """An end that polls for space, which plugs its socket, while the other end sends to it."""

    name = "watch-outgoing"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        first, second = self.both()
        first.send(FULL)

        def send() -> Any:
            fd = first.watch_outgoing()
            while or_timeout(lambda: first.send(SMALL, 0.0)) == "too late":
                kernel.poll_fd(fd, kernel.POLLOUT, None)
            return first.receive()

        def other() -> Any:
            second.send(HALF)
            return [second.receive() for _ in range(2)]

        self.add(run, first, send)
        self.add(run, second, other)

    def promised(self, run: Run) -> None:
        same("received", (result(run, "A"), result(run, "B")), (HALF, [FULL, SMALL]))


def how_it_ends(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except EOFError:
        return "EOF"
    except BrokenPipeError:
        return "EPIPE"


class CloseOfEnd(DuplexScenario):
    """One end closes behind a message, while the other one sends to it, then receives."""

    name = "close-of-end"
    limits = Limits(2, late=1)
    strict = False
    patience = 0.05

    def begin(self, run: Run) -> None:
        first, second = self.both()

        def close() -> None:
            first.send(SMALL)
            first.close()
            run.step(Op("says that it has closed", (), ("closed",), True))
            run.put("closed", 1)

        def talk() -> Any:
            sent = how_it_ends(lambda: second.send(FULL))
            got = [how_it_ends(second.receive) for _ in range(2)]
            closed = lambda: run.get("closed") == 1  # noqa: E731
            run.step(Op("waits for that", ("closed",), (), True, closed))
            return sent, got, how_it_ends(lambda: second.send(SMALL))

        self.add(run, first, close)
        self.add(run, second, talk)

    def promised(self, run: Run) -> None:
        sent, got, after = result(run, "B")
        if sent not in (None, "EPIPE"):
            raise Failure(f"send: {sent}")
        same("received", got, [SMALL, "EOF"])
        same("send after the close", after, "EPIPE")


class DeathOfEnd(DuplexScenario):
    """One end's only process is killed at any point: the other one's calls end."""

    name = "death-of-end"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("A",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        first, second = self.both()

        def talk() -> Any:
            first.send(LONG)
            got = first.receive()
            first.close()
            return got

        def answer() -> Any:
            return [how_it_ends(second.receive), how_it_ends(lambda: second.send(LONG))]

        self.add(run, first, talk)
        self.add(run, second, answer)

    def promised(self, run: Run) -> None:
        got, sent = result(run, "B")
        if run.deaths:
            if got not in (LONG, "EOF") or sent not in (None, "EPIPE"):
                raise Failure(f"received {shorter(got)}, sent {sent}")
        else:
            same("received", (result(run, "A"), got, sent), (LONG, LONG, None))


DUPLEX: list[PipeScenario] = [
    Exchange(),
    ExchangeOfParts(),
    Crossing(),
    WatchBothWays(),
    WatchOutgoing(),
    CloseOfEnd(),
    DeathOfEnd(),
]
