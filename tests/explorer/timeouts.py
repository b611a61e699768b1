"""The scenarios for connections in which the time of a call may be up."""

from __future__ import annotations

from typing import Any

from . import kernel
from .base import POLLOUT, PipeScenario, result, same, shorter
from .loans import borrow
from .memory import Failure, Op
from .messages import FULL, HALF, LONG, SMALL, MessageScenario, or_timeout
from .scheduler import Limits, Run


class ReceiveInTime(MessageScenario):
    """A receive whose time may be up at any moment: the message is received, or is there."""

    name = "receive-in-time"
    limits = Limits(2, late=2)
    strict = False
    patience = 0.5

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, reader, lambda: or_timeout(lambda: reader.receive(0.3)))
        self.add(run, writer, lambda: writer.send(SMALL))

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        left = self.left()
        if (got, left) not in ((SMALL, []), ("too late", [SMALL])):
            raise Failure(f"received {shorter(got)}, left {shorter(left)}")


class SendInTime(MessageScenario):
    """A send whose time may be up at any moment: TimeoutError means that it was not sent."""

    name = "send-in-time"
    limits = Limits(2, late=2)
    strict = False
    patience = 0.5
    filled = FULL

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, writer, lambda: or_timeout(lambda: writer.send(SMALL, 0.3)))
        self.add(run, reader, reader.receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), FULL)
        sent = result(run, "W") != "too late"
        same("left", self.left(), [SMALL] if sent else [])


class PartsInTime(MessageScenario):
    """A send in parts whose time may be up in the middle: nothing of it will be seen."""

    name = "parts-in-time"
    limits = Limits(1, late=2)
    strict = False
    patience = 1.0

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def send() -> Any:
            outcome = or_timeout(lambda: writer.send(LONG, 0.3))
            writer.send(SMALL)
            return outcome

        def receive() -> list[Any]:
            got = [reader.receive()]
            while got[-1] != SMALL:
                got.append(reader.receive())
            return got

        self.add(run, writer, send)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        late = result(run, "W") == "too late"
        same("received", result(run, "R"), [SMALL] if late else [LONG, SMALL])


class OneLateReceiver(MessageScenario):
    """Two receivers, one whose time may be up as it is woken: the other one gets the message."""

    name = "one-late-receiver"
    limits = Limits(1, late=1)
    strict = True

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.add(run, first, lambda: or_timeout(lambda: first.receive(0.01)))
        self.add(run, second, second.receive)

        def send() -> None:
            writer.send(SMALL)
            writer.send(HALF)

        self.add(run, writer, send)

    def promised(self, run: Run) -> None:
        got = [result(run, "R"), result(run, "S")]
        wanted = sorted((SMALL, HALF))
        if got[0] == "too late":
            same("received", sorted([got[1], *self.left()]), wanted)
        else:
            same("received", sorted(got), wanted)


class GaveUpInVain(MessageScenario):
    """A sender's time is up in the middle of a message, and it cannot close that off, because
    another process stands still with the lock.  The receiver does, and counts it as lost, although
    the sender lives.
    """

    name = "gave-up-in-vain"
    counted = False
    limits = Limits(1)
    strict = False
    patience = 1.5

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        beside = self.world.writer("V")
        begun = self.world.place_of("W_OPEN")

        def send() -> Any:
            outcome = or_timeout(lambda: writer.send(LONG, 0.01))
            run.step(Op("says that it has given up", (), ("over",), True))
            run.put("over", 1)
            return outcome

        def stand_still() -> None:
            lock = beside.side.lock
            run.step(Op("waits for that", (begun,), (), True, lambda: run.get(begun) == 1))
            lock.enter()
            run.step(Op("is stopped", ("over",), (), True, lambda: run.get("over") == 1))
            lock.release()
            lock.leave()

        def receive() -> Any:
            run.step(Op("waits for that", ("over",), (), True, lambda: run.get("over") == 1))
            return or_timeout(lambda: reader.receive(0.5))

        self.add(run, writer, send)
        self.add(run, beside, stand_still)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "too late")
        same("received", result(run, "R"), "too late")
        same("counted as lost", self.world.word("DROPPED"), 1)


class LateBesideAStop(MessageScenario):
    """A receiver has had the wake, and then no time for the lock, with which a process stands
    still: another receiver gets the message.
    """

    limits = Limits(2)
    counted = False

    def __init__(self, call: str) -> None:
        self.name = f"late-{call}-beside-a-stop"
        self.call = call

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer, beside = self.world.writer("W"), self.world.reader("P")
        run.hurried = frozenset("R")

        def stand_still() -> None:
            lock = beside.side.lock
            self.wait_until_asleep(run, 2, "RD_WAIT")
            lock.enter()
            writer.send(SMALL)
            run.step(Op("is stopped", ("over",), (), True, lambda: run.get("over") == 1))
            lock.release()
            lock.leave()

        def receive() -> Any:
            deadline = run.now + 0.01
            if self.call == "poll":
                got = first.receiver.poll(deadline)
            elif self.call == "receive":
                got = or_timeout(lambda: first.receive(0.01))
            else:
                got = or_timeout(lambda: borrow(first, 0.01))
            run.step(Op("says that it is late", (), ("over",), True))
            run.put("over", 1)
            return got

        self.add(run, first, receive)
        self.add(run, second, second.receive)
        self.add(run, beside, stand_still)

    def promised(self, run: Run) -> None:
        same("received", result(run, "S"), SMALL)


class WantOver(MessageScenario):
    """A sender that is out of time no longer waits for as much space as it wanted."""

    name = "want-over"
    limits = Limits(1)
    strict = False
    patience = 0.5
    pages = 2
    filled = FULL

    def begin(self, run: Run) -> None:
        self.world.fill(FULL)
        reader, writer = self.ends()

        def send() -> Any:
            outcome = or_timeout(lambda: writer.send(FULL + FULL, 0.3))
            run.step(Op("says that it has given up", (), ("over",), True))
            run.put("over", 1)
            kernel.poll_fd(writer.watch(), POLLOUT, None)
            return outcome

        def receive() -> Any:
            run.step(Op("waits for that", ("over",), (), True, lambda: run.get("over") == 1))
            return reader.receive()

        self.add(run, writer, send)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "too late")
        same("reads that woke nobody", self.world.word("W_WITHHELD"), 0)


class WantOverWatched(MessageScenario):
    """The same, and the space has come before: another process that watches is shown it."""

    name = "want-over-watched"
    limits = Limits(1)
    strict = False
    patience = 0.5
    pages = 2
    filled = FULL

    def begin(self, run: Run) -> None:
        self.world.fill(FULL)
        reader, writer = self.ends()
        beside = self.world.writer("V")
        fd = beside.watch()

        def receive() -> Any:
            self.wait_until_asleep(run, 1, "WR_WAIT")
            return reader.receive()

        self.add(run, writer, lambda: or_timeout(lambda: writer.send(FULL + FULL, 0.3)))
        self.add(run, reader, receive)
        self.add(run, beside, lambda: kernel.poll_fd(fd, POLLOUT, None))

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "too late")


TIMEOUTS: list[PipeScenario] = [
    ReceiveInTime(),
    SendInTime(),
    PartsInTime(),
    OneLateReceiver(),
    GaveUpInVain(),
    *(LateBesideAStop(call) for call in ("receive", "poll", "borrow")),
    WantOver(),
    WantOverWatched(),
]
