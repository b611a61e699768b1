"""The scenarios for connections in which a process is killed in the middle of messages."""

from __future__ import annotations

from typing import Any

from . import kernel
from .base import POLLIN, POLLOUT, PipeScenario, page, result, same, shorter
from .memory import Failure, Op, Task
from .messages import FULL, HALF, LONG, SMALL, MessageScenario, or_end, or_timeout
from .scheduler import Limits, Run
from .world import PAGE, End, segment


class DeathOfSender(MessageScenario):
    """One of two senders is killed at any point of a message in parts: the other one's arrive."""

    name = "death-of-sender"
    limits = Limits(0, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0
    content = LONG

    def begin(self, run: Run) -> None:
        reader = self.world.reader("R")

        def send(end: End, content: bytes) -> None:
            self.send(run, end, content)
            end.close()

        for name, content in (("W", self.content), ("V", SMALL)):
            end = self.world.writer(name)
            self.add(run, end, lambda end=end, content=content: send(end, content))
        self.add(run, reader, reader.receive_all)

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        wanted = [[self.content, SMALL], [SMALL, self.content]]
        if run.tasks[0].dead:
            wanted.append([SMALL])
        if got not in wanted:
            raise Failure(f"received {shorter(got)}")


class DeathOfWhole(DeathOfSender):
    """The same with a message that fits."""

    name = "death-of-whole"
    limits = Limits(1, deaths=1)
    content = HALF


class DeathOfReceiver(MessageScenario):
    """One of two receivers is killed at any point: what follows is received by the other one."""

    name = "death-of-receiver"
    limits = Limits(0, deaths=1)
    strict = False
    killable = ("R",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")

        def receive() -> Any:
            got = first.receive()
            first.close()
            return got

        def send() -> None:
            for content in (LONG, SMALL, HALF):
                writer.send(content)
            writer.close()

        self.add(run, first, lambda: or_end(receive))
        self.add(run, second, second.receive_all)
        self.add(run, writer, send)

    def promised(self, run: Run) -> None:
        first, got = result(run, "R"), result(run, "S")
        sent = [LONG, SMALL, HALF]
        if not run.tasks[0].dead:
            rest = [content for content in sent if content != first]
            same("received", got, rest)
            return
        lost = [content for content in sent if content not in got]
        if got != [content for content in sent if content in got] or len(lost) > 1:
            raise Failure(f"received {shorter(got)}")
        if len(lost) == 0 and self.world.word("DROPPED"):
            raise Failure("counted as dropped, and received")


OTHER = page("o", PAGE + 300)  # comes in parts, too


class DeathInParts(MessageScenario):
    """A sender is killed at any point of a message in parts, and then another one sends such: what
    had begun is counted as lost.
    """

    name = "death-in-parts"
    limits = Limits(0, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        beside = self.world.writer("V")
        self.begun = False

        def send() -> None:
            writer.send(LONG)
            writer.close()
            run.step(Op("is through", (), ("through",), True))
            run.put("through", 1)

        def send_later() -> None:
            alive = ("alive", "W")
            through = lambda: run.get("through") == 1 or not run.get(alive)  # noqa: E731
            run.step(Op("waits for the end of that", ("through", alive), (), True, through))
            self.begun = run.get(self.world.place_of("WPOS")) > 0
            beside.send(OTHER)
            beside.close()

        self.add(run, writer, send)
        self.add(run, beside, send_later)
        self.add(run, reader, reader.receive_all)

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        same("received", got, [LONG, OTHER] if LONG in got else [OTHER])
        same("counted as lost", self.world.word("DROPPED"), int(self.begun and LONG not in got))


class DeathForGood(MessageScenario):
    """A sender is killed at any point of a message in parts; another one lives, and sends nothing:
    the receiver does not wait for the rest, and counts it as lost.
    """

    name = "death-for-good"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("W",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.world.writer("V")
        self.add(run, writer, lambda: self.send(run, writer, LONG))
        self.add(run, reader, lambda: or_timeout(lambda: reader.receive(0.5)))

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if got != LONG and not (run.deaths and got == "too late"):
            raise Failure(f"received {shorter(got)}")
        begun = self.world.word("WPOS") > 8  # more than an idle ABORT
        same("counted as lost", self.world.word("DROPPED"), int(begun and got != LONG))


class DeathWithLock(MessageScenario):
    """One of two receivers is killed at any point of taking a message: the other one goes on."""

    name = "death-with-lock"
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

        self.add(run, first, lambda: or_end(first.receive))
        self.add(run, second, second.receive_all)

    def promised(self, run: Run) -> None:
        first, rest = result(run, "R"), result(run, "S")
        if run.deaths:
            if rest not in ([SMALL, HALF], [SMALL], [HALF]):
                raise Failure(f"received {shorter(rest)}")
        else:
            same("received", sorted(filter(None, [first, *rest])), [HALF, SMALL])


class TurnTakenOver(MessageScenario):
    """A sender was killed in the middle of a message.  While the receiver finds that out, another
    sender does, too, and sends a message in parts: the receiver does not close that one.
    """

    name = "turn-taken-over"
    limits = Limits(1, late=1)
    strict = False
    patience = 1.0
    content = OTHER
    nap = 0.0045  # so that the receiver looks while the other one makes sure of the death

    def begin(self, run: Run) -> None:
        reader, dead = self.ends()
        beside = self.world.writer("V")
        words = self.world.words
        words[segment.WR_TURN_BY] = 1 + self.world.machine.process("W")
        words[segment.W_OPEN] = 1
        self.world.begin_stream(LONG, 1024)
        self.world.died_inside(dead, dead.sender.turn)
        self.add(run, reader, lambda: self.receive(reader))
        self.add(run, beside, lambda: beside.send(self.content))

    def receive(self, end: End) -> Any:
        kernel.Clock.sleep(self.nap)
        return end.receive()

    def promised(self, run: Run) -> None:
        same("received", result(run, "R"), OTHER)
        same("counted as lost", self.world.word("DROPPED"), 1)


class TurnTakenEarly(TurnTakenOver):
    """The same, and the sender is the first to find that out."""

    name = "turn-taken-early"
    limits = Limits(1)
    nap = 0.05


class DeathOfCloser(TurnTakenEarly):
    """The same, and that other sender is killed, too; a third one lives, and sends nothing."""

    name = "death-of-closer"
    limits = Limits(1, deaths=1)
    killable = ("V",)
    content = HALF

    def begin(self, run: Run) -> None:
        super().begin(run)
        self.world.writer("U")

    def receive(self, end: End) -> Any:
        kernel.Clock.sleep(self.nap)
        return or_timeout(lambda: end.receive(0.7))

    def promised(self, run: Run) -> None:
        got = result(run, "R")
        if got != HALF and not (run.deaths and got == "too late"):
            raise Failure(f"received {shorter(got)}")
        same("counted as lost", self.world.word("DROPPED"), 1)


class DeathOfCollector(MessageScenario):
    """A receiver is killed at any point of a message in parts: what it has begun is counted as lost
    unless it has got all of it, and another receiver goes on behind it.
    """

    name = "death-of-collector"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        self.world.begin_stream(HALF, 1024)
        self.world.continue_stream(HALF[1024:])
        self.end = self.world.word("WPOS")
        self.world.fill(SMALL)
        writer.close()
        self.taken = 0
        died = run.on_death

        def on_death(task: Task) -> None:
            died(task)
            self.taken = run.get(self.world.place_of("RPOS"))

        run.on_death = on_death

        self.add(run, first, lambda: or_end(first.receive))
        self.add(run, second, second.receive_all)

    def promised(self, run: Run) -> None:
        first, rest = result(run, "R"), result(run, "S")
        lost = self.world.word("DROPPED")
        if not run.deaths:
            same("received", sorted(filter(None, [first, *rest])), [HALF, SMALL])
            same("counted as lost", lost, 0)
        elif rest not in ([HALF, SMALL], [HALF], [SMALL], []):
            raise Failure(f"received {shorter(rest)}")
        elif HALF not in rest and not lost and self.taken < self.end:
            raise Failure("a message is neither received nor counted as lost")
        elif HALF in rest and lost:
            raise Failure("a message is received, and counted as lost")


class DeathOfLoser(MessageScenario):
    """A receiver is killed at any point of giving up two messages that have no rest: both are
    counted, and each once.
    """

    name = "death-of-loser"
    limits = Limits(1, deaths=1)
    strict = False
    killable = ("R",)
    patience = 1.0

    def begin(self, run: Run) -> None:
        first, second = self.world.reader("R"), self.world.reader("S")
        writer = self.world.writer("W")
        for content in (HALF, SMALL * 2):
            self.world.begin_stream(content, 8)
            self.world.abort_stream()
        self.world.fill(SMALL)
        writer.close()
        self.add(run, first, lambda: or_end(lambda: self.look(first)))
        self.add(run, second, second.receive_all)

    def look(self, end: End) -> Any:
        return end.receive()

    def promised(self, run: Run) -> None:
        first, rest = result(run, "R"), result(run, "S")
        if rest != [SMALL] and not (rest == [] and (run.deaths or first == SMALL)):
            raise Failure(f"received {shorter(rest)}")
        same("counted as lost", self.world.word("DROPPED"), 2)


class DeathOfPoller(DeathOfLoser):
    """The same with one that only looks."""

    name = "death-of-poller"

    def look(self, end: End) -> Any:
        return end.receiver.poll(self.started)


class PollDrops(MessageScenario):
    """A poll finds the beginning and the end of a message that came to nothing, and takes both
    away: those who watch are shown that there is nothing.
    """

    name = "poll-drops"
    limits = Limits()

    def begin(self, run: Run) -> None:
        reader, writer = self.ends()
        self.beside = self.world.reader("Q")
        self.beside.watch()
        self.world.begin_stream(HALF, 1024)
        self.world.abort_stream()
        writer.side.wake_readers()
        same("readiness", self.beside.ready(POLLIN), True)
        self.add(run, reader, lambda: reader.receiver.poll(self.started))

    def promised(self, run: Run) -> None:
        same("poll", result(run, "R"), False)
        same("readiness of an empty ring", self.beside.ready(POLLIN), False)
        same("counted as lost", self.world.word("DROPPED"), 1)


class WatchAfterDeath(MessageScenario):
    """A sender that waited for more than the write size was killed: those who watch are shown when
    there is that much.
    """

    name = "watch-after-death"
    limits = Limits()
    pages = 2
    filled = FULL

    def begin(self, run: Run) -> None:
        self.world.fill(FULL)
        reader, dead = self.ends()
        beside = self.world.writer("V")
        words = self.world.words
        words[segment.WR_TURN_BY] = 1 + self.world.machine.process("W")
        words[segment.WR_WANT] = 2 * PAGE
        words[segment.WR_SLEEPERS] = words[segment.WR_ARM] = 1
        self.world.died_inside(dead, dead.sender.turn)
        self.counted = False
        self.add(run, beside, lambda: kernel.poll_fd(beside.watch(), POLLOUT, None))
        self.add(run, reader, reader.receive)


LOSSES: list[PipeScenario] = [
    DeathOfSender(),
    DeathOfWhole(),
    DeathOfReceiver(),
    DeathInParts(),
    DeathForGood(),
    DeathWithLock(),
    TurnTakenOver(),
    TurnTakenEarly(),
    DeathOfCloser(),
    DeathOfCollector(),
    DeathOfLoser(),
    DeathOfPoller(),
    PollDrops(),
    WatchAfterDeath(),
]
