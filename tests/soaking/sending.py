"""The calls of a sender, chosen at random, and what it knows of each message afterwards."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from .desk import ENDED, FAILED, INTERRUPTED, TIMED_OUT, Desk, Outcome
from .ledger import MESSAGES, NEXT, NOT_SENT, PERHAPS, SENT, TINY_PERHAPS, TINY_SENT
from .messages import SMALLEST, Spoilt, make, pickled, wrapped
from .plans import PAGE


def table(calls: list[tuple[float, Callable[[], bool]]]) -> list[Callable[[], bool]]:
    """Each call as often as its weight says, to choose from at one stroke."""
    return [call for weight, call in calls for _ in range(round(weight * 1000))]


class Abandoned(Exception):
    """A reservation that is not to be sent."""


class Sender:
    """Sends numbered messages into a connection."""

    def __init__(self, desk: Desk, end: Any) -> None:
        self.desk = desk
        self.end = end
        self.random = desk.random
        self.states = desk.ledger.sent[desk.role]
        self.number = self._first()
        self.objects = desk.plan.kind == "objects"
        # A few large messages cost as much as all the others.
        self.large = min(0.02, 3000 / desk.plan.size)
        self.most = 3 * desk.plan.size
        self.table = table(self._calls())

    def _first(self) -> int:
        """The first number that nobody has tried (a predecessor may have been killed)."""
        number, states = self.desk.words[NEXT], self.states
        while number < len(states) and states[number]:
            number += 1
        return number

    def _calls(self) -> list[tuple[float, Callable[[], bool]]]:
        calls = [(0.5, self.send_bytes), (0.2, self.try_send), (0.08, self.reserve)]
        if self.objects:
            calls = [(0.2, self.send_bytes), (0.1, self.try_send), (0.05, self.reserve)]
            calls += [(0.35, self.send), (0.1, self.send_many)]
        return [*calls, (0.004, self.watch), (0.002, self.fiddle)]

    def finished(self) -> bool:
        return self.number >= self.desk.plan.numbers - 20 or self.desk.stopping()

    def step(self) -> bool:
        """One call; False: nobody can receive any more."""
        return self.table[int(self.random() * len(self.table))]()

    def size(self) -> int:
        dice = self.random()
        if dice < self.large:
            size = int(self.random() * (self.most + 1))
        elif dice < 0.6:
            size = int(self.random() * 200)
        elif dice < 0.7:
            size = int(self.random() * 10)
        elif dice < 0.97:
            size = int(self.random() * 2000)
        else:
            size = int(self.random() * 3 * PAGE)
        return max(size, SMALLEST) if self.objects else size

    def message(self) -> bytes:
        """The next message; that it may be sent is noted."""
        size = self.size()
        self.states[self.number] = PERHAPS if size >= SMALLEST else TINY_PERHAPS + size
        return make(self.desk.role, self.number, size)

    def note(self, outcome: Any, count: int = 1) -> bool:
        """What has become of the last ``count`` messages."""
        number, states = self.number, self.states
        if outcome is True:
            for sent in range(number, number + count):
                states[sent] = SENT if states[sent] == PERHAPS else states[sent] + TINY_SENT - 16
            self.desk.words[MESSAGES] += count
        elif outcome is False:
            for sent in range(number, number + count):
                states[sent] = NOT_SENT  # and the number is tried again
            return True
        self.number = number + count
        self.desk.words[NEXT] = self.number
        return outcome is not ENDED

    def outcome(self, code: int, call: Callable[..., Any], *args: Any) -> Any:
        """True: sent; False: certainly not; else it is not known."""
        result = self.desk.attempt(code, call, *args)
        if result is TIMED_OUT or result is FAILED:
            return False
        return result if isinstance(result, Outcome) else result is not False

    def send_bytes(self) -> bool:
        data = self.message()
        if self.objects:
            data = pickled(data)
        limit = self.desk.limit()
        if self.random() < 0.1:
            whole = b"--" + data + b"-"
            return self.note(self.outcome(1, self._part, whole, len(data), limit))
        if limit is None:
            return self.note(self.outcome(1, self.end.send_bytes, data))
        return self.note(self.outcome(1, self._limited, data, limit))

    def _limited(self, data: bytes, limit: float) -> None:
        self.end.send_bytes(data, timeout=limit)

    def _part(self, whole: bytes, size: int, limit: float | None) -> None:
        self.end.send_bytes(memoryview(whole), 2, size, timeout=limit)

    def try_send(self) -> bool:
        data = self.message()
        return self.note(self.outcome(2, self._try, pickled(data) if self.objects else data))

    def _try(self, data: bytes) -> bool:
        try:
            return self.end.try_send_bytes(data)  # type: ignore[no-any-return]
        except ValueError:  # larger than the pipe is now
            return False

    def send(self) -> bool:
        obj = wrapped(self.message(), int(self.random() * 4))
        limit = self.desk.limit()
        return self.note(self.outcome(3, lambda: self.end.send(obj, timeout=limit)))

    def send_many(self) -> bool:
        first, objs = self.number, []
        for _ in range(1 + int(self.random() * 12)):
            objs.append(wrapped(self.message(), int(self.random() * 4)))
            self.number += 1
        self.number = first
        limit = self.desk.limit()
        outcome = self.outcome(4, lambda: self.end.send_many(objs, timeout=limit))
        # Where it has stopped in the middle, nobody says where.
        return self.note(INTERRUPTED if outcome is False else outcome, len(objs))

    def reserve(self) -> bool:
        data = self.message()
        if self.objects:
            data = pickled(data)
        return self.note(self.outcome(5, self._reserve, data, self.random() < 0.1))

    def _reserve(self, data: bytes, give_up: bool) -> bool:
        try:
            with self.end.reserve(len(data), timeout=self.desk.limit()) as view:
                view[:] = data
                if give_up:
                    raise Abandoned
        except (Abandoned, ValueError):  # ValueError: larger than the pipe is now
            return False
        return True

    def watch(self) -> bool:
        """Wait until it is writable, as an event loop does."""
        self.desk.attempt(6, self._poll, getattr(self.end, "outgoing", self.end), select.POLLOUT)
        return True

    def _poll(self, end: Any, event: int) -> None:
        poller = select.poll()
        poller.register(end.fileno(), event)
        poller.poll(self.random() * 20)

    def fiddle(self) -> bool:
        self.desk.fiddle(self.end)
        return True


class RecordWriter(Sender):
    """Writes records of one length into a pipe, several at a time where they are still atomic."""

    def _calls(self) -> list[tuple[float, Callable[[], bool]]]:
        return [(1.0, self.write), (0.01, self.watch), (0.003, self.fiddle)]

    def size(self) -> int:
        return self.desk.plan.record

    def write(self) -> bool:
        most = min(PAGE // self.desk.plan.record, 20)
        count = 1 + int(self.random() * most) if self.random() < 0.2 else 1
        first, parts = self.number, []
        for _ in range(count):
            parts.append(self.message())
            self.number += 1
        self.number = first
        result = self.desk.attempt(7, self.end.write, b"".join(parts))
        if result is None or result is FAILED:
            if result is None:  # O_NONBLOCK
                time.sleep(0.0005)
            return self.note(False, count)
        if not isinstance(result, Outcome):
            if result != count * self.desk.plan.record:
                raise Spoilt(f"an atomic write of {count} records wrote {result} bytes")
            result = True
        return self.note(result, count)
