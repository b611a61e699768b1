"""The scenarios for connections: whole messages, and those in parts."""

from __future__ import annotations

from collections.abc import Callable
from errno import EBADF
from typing import Any

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same, shorter
from .memory import Failure, Op
from .scheduler import Limits, Run
from .world import PAGE, End, segment

SMALL = page("s", 16)
TINY = page("t", 8)
HALF = page("h", 2000)
FULL = page("f", PAGE - 8)  # fills the ring of one page
LONG = page("l", PAGE + 500)  # comes in parts


class MessageScenario(PipeScenario):
    frames = True

    def send(self, run: Run, end: End, content: bytes) -> None:
        """One of the messages that the scenario is about."""
        end.send(content)

    def left(self, end: End | None = None) -> list[Any]:
        """What can still be received, on ``end`` or by a process more."""
        got = []
        end = end or self.world.reader("later")
        try:
            while True:
                got.append(end.receive(0.0))
        except (TimeoutError, EOFError):
            return got


def or_timeout(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TimeoutError:
        return "too late"


def or_end(call: Callable[[], Any]) -> Any:
    """None: there is no message, and nobody can send any more."""
    try:
        return call()
    except EOFError:
        return None


class Sent(MessageScenario):
    """Two messages of which one fits: both sides sleep."""

    name = "send-receive"
    limits = Limits(2, late=1)
    filled = FULL

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, writer, lambda: writer.send(SMALL))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [FULL, SMALL])


class Streamed(MessageScenario):
    """A message longer than the ring."""

    name = "streamed"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.add(run, writer, lambda: writer.send(LONG))
        self.add(run, reader, reader.receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), LONG)


class Grown(MessageScenario):
    """A message that fits only once the ring has grown, while there is something in it."""

    name = "grown"
    limits = Limits()
    pages, most_pages = 1, 2
    filled = HALF

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.grow_to(2)
        self.add(run, writer, lambda: writer.send(FULL))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [HALF, FULL])


class Fits(MessageScenario):
    """A message that fits once one of two has been received; the other one stays."""

    name = "send-fits"
    limits = Limits(2, late=1)
    pages = 2
    filled = page("a", 1500)
    large = page("g", 6000)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.fill(page("b", 1500))
        self.reader = reader
        self.add(run, writer, lambda: writer.send(self.large))
        self.add(run, reader, reader.receive)

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), self.filled)
        same("left", self.left(self.reader), [page("b", 1500), self.large])


class Senders(MessageScenario):
    """A message in parts and a whole one, from two senders: one does not land in the other."""

    name = "two-senders"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")
        for name, content in (("W", LONG), ("V", SMALL)):
            end = self.world.writer(name)
            self.add(run, end, lambda end=end, content=content: end.send(content))
        self.add(run, reader, lambda: [reader.receive() for _ in range(2)])

    def promised(self, run: Run) -> None:
        same("received", sorted(result(run, "R")), [LONG, SMALL])


class Receivers(MessageScenario):
    """A message in parts and a whole one, to two receivers."""

    name = "two-receivers"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        writer = self.world.writer("W")
        for name in "RS":
            end = self.world.reader(name)
            self.add(run, end, end.receive)
        self.add(run, writer, lambda: (writer.send(LONG), writer.send(SMALL)))

    def promised(self, run: Run) -> None:
        same("received", sorted((result(run, "R"), result(run, "S"))), [LONG, SMALL])


class CrowdOfMessages(MessageScenario):
    """Two senders and two receivers, through a ring that holds one message."""

    name = "crowd-of-messages"
    limits = Limits(1)

    def begin(self, run: Run) -> None:
        for name in "RS":
            end = self.world.reader(name)
            self.add(run, end, end.receive)
        for name in "WV":
            end = self.world.writer(name)
            content = page(name, 3000)
            self.add(run, end, lambda end=end, content=content: end.send(content))

    def promised(self, run: Run) -> None:
        got = sorted((result(run, "R"), result(run, "S")))
        same("received", got, [page("V", 3000), page("W", 3000)])


class WatchMessages(MessageScenario):
    """A receiver that polls its descriptor between receives that do not wait."""

    name = "watch-messages"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def receive() -> list[Any]:
            got: list[Any] = []
            fd = reader.watch()
            while len(got) < 2:
                kernel.poll_fd(fd, POLLIN, None)
                message = or_timeout(lambda: reader.receive(0.0))
                if message != "too late":
                    got.append(message)
            return got

        self.reader = reader
        self.add(run, reader, receive)
        self.add(run, writer, lambda: (writer.send(SMALL), writer.send(HALF)))

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [SMALL, HALF])
        same("readiness of an empty ring", self.reader.ready(POLLIN), False)


class WatchAndReceive(MessageScenario):
    """A receiver whose descriptor is watched sleeps for its messages all the same; and leaves no
    readiness, after which somebody would receive, and stay there.
    """

    limits = Limits(2)

    def __init__(self, receivers: str, contents: list[bytes], early: bool = False) -> None:
        self.name = f"watch-{'before' if early else 'and'}-receive-{receivers}-{len(contents)}"
        self.receivers, self.contents, self.early = receivers, contents, early

    def begin(self, run: Run) -> None:
        writer = self.world.writer("W")
        each = len(self.contents) // len(self.receivers)
        self.readers = [self.world.reader(name) for name in self.receivers]
        if self.early:
            self.readers[0].watch()

        def receive(reader: Any) -> list[Any]:
            if reader is self.readers[0] and not self.early:
                reader.watch()
            return [reader.receive() for _ in range(each)]

        for reader in self.readers:
            self.add(run, reader, lambda reader=reader: receive(reader))
        self.add(run, writer, lambda: [writer.send(content) for content in self.contents])

    def promised(self, run: Run) -> None:
        got = [message for name in self.receivers for message in result(run, name)]
        same("received", sorted(got), sorted(self.contents))
        same("readiness of an empty ring", self.readers[0].ready(POLLIN), False)


class WatchBoth(MessageScenario):
    """Both ends are watched; messages fill the ring, which their sender shows, and are received
    meanwhile: nothing of that shows at the receiver's end.
    """

    limits = Limits(2)

    def __init__(self, count: int) -> None:
        self.name, self.pages = f"watch-both-messages-{count}", count

    def begin(self, run: Run) -> None:
        self.reader, self.writer = self.ends()
        self.reader.watch()
        self.writer.watch()
        self.add(run, self.reader, lambda: [self.reader.receive() for _ in range(self.pages)])
        self.add(run, self.writer, lambda: [self.writer.send(FULL) for _ in range(self.pages)])

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), [FULL] * self.pages)
        same("readiness of an empty ring", self.reader.ready(POLLIN), False)
        same("readiness for a message", self.writer.ready(POLLOUT), True)


class PollBeside(MessageScenario):
    """poll() of one receiver has the wake, and leaves the message to another one."""

    name = "poll-beside"
    limits = Limits(2)

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.add(run, first, lambda: first.receiver.poll(None))
        self.add(run, second, second.receive)
        self.add(run, writer, lambda: (writer.send(SMALL), writer.send(HALF)))

    def promised(self, run: Run) -> None:
        same("received", [result(run, "S"), *self.left()], [SMALL, HALF])


class CloseAgainstSend(MessageScenario):
    """A send after the last receiver has closed says so, however short the time since."""

    name = "close-against-send"
    limits = Limits()

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()

        def receive() -> None:
            reader.close()
            run.step(Op("says that it has closed", (), ("closed",), True))
            run.put("closed", 1)

        def send() -> str:
            try:
                writer.send(SMALL)
            except BrokenPipeError:
                return "EPIPE"
            run.step(Op("waits for that", ("closed",), (), True, lambda: run.get("closed") == 1))
            try:
                writer.send(SMALL)
            except BrokenPipeError:
                return "EPIPE"
            return "sent to nobody"

        self.add(run, writer, send)
        self.add(run, reader, receive)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "EPIPE")


class CloseOfTwo(MessageScenario):
    """Of two receivers one closes, then the other, however soon: a send behind that says so."""

    name = "close-of-two"
    limits = Limits()

    def begin(self, run: Run) -> None:
        writer = self.world.writer("W")
        readers = [self.world.reader(name) for name in "RS"]

        def close() -> None:
            for reader in readers:
                reader.close()
            run.step(Op("says that both have closed", (), ("closed",), True))
            run.put("closed", 1)

        def send() -> str:
            both = lambda: run.get("closed") == 1  # noqa: E731
            try:
                writer.send(SMALL)
                run.step(Op("waits for that", ("closed",), (), True, both))
                writer.send(SMALL)
            except BrokenPipeError:
                return "EPIPE"
            return "sent to nobody"

        self.add(run, writer, send)
        self.add(run, readers[0], close)

    def promised(self, run: Run) -> None:
        same("send", result(run, "W"), "EPIPE")


class CloseWakesReceivers(MessageScenario):
    """A close is seen at once by all receivers that are well asleep."""

    name = "close-wakes-receivers"
    limits = Limits()

    def begin(self, run: Run) -> None:
        writer = self.world.writer("W")
        for name in "RS":
            end = self.world.reader(name)
            self.add(run, end, end.receive_all)

        def close() -> None:
            self.wait_until_asleep(run, 2, "RD_WAIT")
            writer.close()

        self.add(run, writer, close)


class CloseByThreadInParts(MessageScenario):
    """A thread closes an end while another one receives a message in parts, all of which are there:
    that call gets it, or the error of a closed end.
    """

    name = "close-by-thread-in-parts"
    limits = Limits(3)
    remembers = False

    def begin(self, run: Run) -> None:
        reader, _ = self.ends()
        self.world.begin_stream(HALF, 1024)
        self.world.continue_stream(HALF[1024:])

        def receive() -> Any:
            try:
                return reader.receive()
            except OSError as error:
                return error.errno

        self.add(run, reader, receive)
        self.add(run, reader, reader.close, "T")

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if got != HALF and got != EBADF:
            raise Failure(f"received {shorter(got)}")
        if got == HALF:
            same("counted as lost", self.world.word("DROPPED"), 0)


FRAMES: list[PipeScenario] = [
    Sent(),
    Streamed(),
    Grown(),
    Fits(),
    Senders(),
    Receivers(),
    CrowdOfMessages(),
    WatchMessages(),
    WatchAndReceive("R", [SMALL]),
    WatchAndReceive("R", [SMALL, HALF]),
    # (With data there before, the watcher's own eventfd may show what another process has taken.)
    WatchAndReceive("RS", [SMALL, HALF], early=True),
    WatchBoth(1),
    WatchBoth(2),
    PollBeside(),
    CloseAgainstSend(),
    CloseOfTwo(),
    CloseWakesReceivers(),
    CloseByThreadInParts(),
]

assert segment.ALIGN == 8
