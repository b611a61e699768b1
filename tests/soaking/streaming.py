"""A byte stream of one writer and one reader, either of which may be killed and replaced.

Every writer begins an *epoch*, a stream of cells of its own, so the reader sees exactly how far
each one has come: at least to where its calls had returned, at most to where the last one wanted to
get.  A reader that replaces a killed one finds out from the cells where it is; between what the
killed one had noted and that lies no more than its last call asked for.
"""

from __future__ import annotations

import select
import time
from typing import Any

from .desk import ENDED, FAILED, INTERRUPTED, Desk, Outcome
from .ledger import EPOCH, EPOCHS, MESSAGES, READ, RISK
from .messages import CELL, Spoilt, cell, cells
from .plans import PAGE
from .sending import table

_READ_AT = 1 << 48


def some_size(random: Any, ring: int) -> int:
    """From nothing to three times the ring, mostly less."""
    dice = random()
    if dice < min(0.05, 3000 / ring):
        return int(random() * (3 * ring + 1))
    return int(random() * (300 if dice < 0.7 else 3 * PAGE))


class StreamWriter:
    def __init__(self, desk: Desk, end: Any) -> None:
        self.desk = desk
        self.end = end
        self.random = desk.random
        self.known, self.begun = desk.ledger.known, desk.ledger.begun
        self.calls = table([(1.0, self.write), (0.01, self.watch), (0.004, self.fiddle)])
        self._begin()

    def _begin(self) -> None:
        """A new epoch: nobody knows how far the last one came."""
        self.epoch = self.desk.words[EPOCH] + 1
        self.at = 0
        self.desk.words[EPOCH] = self.epoch

    def finished(self) -> bool:
        return self.desk.stopping() or self.epoch >= EPOCHS - 2

    def step(self) -> bool:
        return self.calls[int(self.random() * len(self.calls))]()

    def write(self) -> bool:
        size = some_size(self.random, self.desk.plan.size)
        data = cells(self.epoch, self.at, size)
        self.begun[self.epoch] = self.at + size
        result = self.desk.attempt(41, self.end.write, data)
        if isinstance(result, Outcome):
            if result is ENDED:
                return False
            self._begin()
            return True
        if result is None:
            time.sleep(0.0005)
        else:
            self.at += result
            self.desk.words[MESSAGES] += 1
        # In this order: the reader may look at any time.
        self.known[self.epoch] = self.at
        self.begun[self.epoch] = self.at
        return True

    def watch(self) -> bool:
        self.desk.attempt(42, self._watch)
        return True

    def _watch(self) -> None:
        select.select([], [self.end], [], self.random() * 0.02)

    def fiddle(self) -> bool:
        self.desk.fiddle(self.end)
        return True


class StreamReader:
    def __init__(self, desk: Desk, end: Any) -> None:
        self.desk = desk
        self.end = end
        self.random = desk.random
        self.words = desk.words
        self.known, self.begun = desk.ledger.known, desk.ledger.begun
        self.writer = desk.ledger.role(0)
        self.epoch, self.at = divmod(self.words[READ], _READ_AT)
        # What a predecessor may have taken without noting it.
        self.slack = self.words[RISK]
        self.lost = self.slack > 0
        self.pending = b""  # too little to tell where it is from
        self.calls = table([(0.6, self.read), (0.3, self.readinto), (0.01, self.watch)])
        self.calls += table([(0.003, self.fiddle)])

    def finished(self) -> bool:
        return False

    def step(self) -> bool:
        return self.calls[int(self.random() * len(self.calls))]()

    def read(self) -> bool:
        return self._take(43, max(1, some_size(self.random, self.desk.plan.size)), self.end.read)

    def readinto(self) -> bool:
        size = max(1, some_size(self.random, self.desk.plan.size))
        return self._take(44, size, self._readinto)

    def _readinto(self, size: int) -> bytes | None:
        room = bytearray(size)
        count = self.end.readinto(room)
        return None if count is None else bytes(room[:count])

    def _take(self, code: int, size: int, call: Any) -> bool:
        # With what is pending, which only this process has.
        self.words[RISK] = self.slack + len(self.pending) + size
        result = self.desk.attempt(code, call, size)
        if result is None or result is FAILED:
            time.sleep(0.0005)
        elif result is INTERRUPTED:  # as if it had been another process
            self.slack += len(self.pending) + size
            self.pending, self.lost = b"", True
        elif isinstance(result, Outcome) or not result:
            if isinstance(result, Outcome):
                raise AssertionError(f"a read that {result.name}")
            self._end()
            return False
        else:
            self.words[MESSAGES] += 1
            self._check(self.pending + result)
        self.words[READ] = self.epoch * _READ_AT + self.at  # one store: we may be killed here
        self.words[RISK] = self.slack + len(self.pending)
        return True

    # --- where in the stream it is ---------------------------------------------------------------

    def _check(self, data: bytes) -> None:
        self.pending = b""
        if self.lost:
            data = self._find(data)
        while data:
            expected = cells(self.epoch, self.at, len(data))
            if data == expected:
                self.at += len(data)
                break
            same = next(n for n, (a, b) in enumerate(zip(data, expected, strict=True)) if a != b)
            data = self._next_epoch(data, same)
        self._bounds()

    def _bounds(self) -> None:
        if self.epoch and self.at > self.begun[self.epoch]:
            raise Spoilt(f"read up to {self.at}, written up to {self.begun[self.epoch]}")

    def _next_epoch(self, data: bytes, same: int) -> bytes:
        """``data`` from where a later epoch begins, which is at byte ``same`` or just before it."""
        for cut in range(max(0, same - CELL), same + 1):
            rest = data[cut:]
            if len(rest) < CELL:
                break
            epoch, at = cell(rest, 0)
            if at == 0 and self.epoch < epoch <= self.writer[EPOCH]:
                self.at += cut
                self._leave(epoch)
                return rest
        if len(data) - max(0, same - CELL) < 2 * CELL:
            self.pending = data
            return b""
        where = f"byte {self.at + same} of writer {self.epoch}"
        raise Spoilt(f"not what follows {where}: {data[same : same + 24]!r}")

    def _leave(self, epoch: int) -> None:
        """The stream goes on with ``epoch``: all before must be over."""
        if self.at < self.known[self.epoch] or any(self.known[self.epoch + 1 : epoch]):
            raise Spoilt(
                f"lost: writer {self.epoch} had written {self.known[self.epoch]} bytes, "
                f"{self.at} came, then those of {epoch}"
            )
        self.epoch, self.at = epoch, 0

    def _find(self, data: bytes) -> bytes:
        """After somebody was killed: see from the data where it is; what is still to be checked."""
        for skip in range(max(0, min(len(data) - 2 * CELL + 1, 8 * CELL))):
            epoch, at = cell(data, skip)
            if cell(data, skip + CELL) != (epoch, at + CELL) or not epoch <= self.writer[EPOCH]:
                continue
            if epoch < self.epoch or (epoch == self.epoch and at < self.at):
                break
            start = max(0, at - skip)  # before it lies another epoch
            self._jump(epoch, start)
            self.lost = False
            return data[skip - (at - start) :]
        if len(data) >= 8 * CELL:
            raise Spoilt(f"after {self.epoch}/{self.at}, but for {self.slack} bytes: {data[:64]!r}")
        self.pending = data
        return b""

    def _jump(self, epoch: int, at: int) -> None:
        known = self.known
        missing = at - (self.at if epoch == self.epoch else 0)
        if epoch != self.epoch:
            missing += max(0, known[self.epoch] - self.at) + sum(known[self.epoch + 1 : epoch])
        if not 0 <= missing <= self.slack:
            raise Spoilt(
                f"from {self.epoch}/{self.at} to {epoch}/{at}: {missing} bytes, of which a killed "
                f"reader can have taken {self.slack}"
            )
        self.epoch, self.at, self.slack = epoch, at, 0

    def _end(self) -> None:
        """End of file: has all come that was written?"""
        left = sum(self.known[self.epoch + 1 : EPOCHS])
        left += max(0, self.known[self.epoch] - self.at) - len(self.pending)
        if left > self.slack:
            raise Spoilt(f"lost: {left} bytes at the end, {self.slack} can be explained")

    def watch(self) -> bool:
        self.desk.attempt(45, self._watch)
        return True

    def _watch(self) -> None:
        select.select([self.end], [], [], self.random() * 0.02)

    def fiddle(self) -> bool:
        self.desk.fiddle(self.end)
        return True
