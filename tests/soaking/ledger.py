"""What every process of a round has done, in memory that outlives it when it is killed.

A *role* is one sender or one receiver.  Whoever plays it may be killed, and another goes on with
it.  For every number a sender notes what it knows of that message before and after each call; for
every number of every sender a receiver notes that it has it.  From these two follows what must have
arrived, what may have, and what must not.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy

from .messages import SMALLEST

# Words of a role.  All are written by whoever plays it, but for those of the director.
PID, STATE, OPERATIONS, CALL, RISK, FORGIVEN, NEXT, MESSAGES, TIMEOUTS = range(9)
SIGNALS, RAISED, RESIZES, FORKS, HANDOVERS, REFUSED = range(9, 15)
EPOCH, READ, LIFE = range(15, 18)
TINY = 24  # and the next SMALLEST words: messages received of so many bytes
ROLE_WORDS = 32
# States.
IDLE, PLAYING, FINISHED = range(3)
# What a sender knows of a message.
NOT_SENT, PERHAPS, SENT, TINY_PERHAPS, TINY_SENT = 0, 1, 2, 16, 32
# Words of the round.
STOPPING, CLOSING = range(2)
_ROUND_WORDS = 32
# Of a stream: where each epoch's writer was known to be, and where it may have come to.
EPOCHS = 4096


class Ledger:
    """A mapping that all processes of a run share."""

    def __init__(self, path: str | None = None) -> None:
        """A new one, or the one at ``path``."""
        if path is None:
            self.fd = os.memfd_create("soak-ledger", os.MFD_CLOEXEC)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        else:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self.path = path
        self.size = 256 << 20  # of address space; memory comes on use
        if path is None:
            os.ftruncate(self.fd, self.size)
        self.map = mmap.mmap(self.fd, self.size)
        self._whole = memoryview(self.map)

    def clear(self) -> None:
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, self.size)

    def lay_out(self, senders: int, receivers: int, numbers: int) -> None:
        """Arrange the memory for a round; every process of it does the same."""
        at = 0

        def part(count: int) -> memoryview:
            nonlocal at
            start, at = at, at + -(-count // 64) * 64
            return self._whole[start : start + count]

        self.senders, self.receivers, self.numbers = senders, receivers, numbers
        self.round = part(_ROUND_WORDS * 8).cast("Q")
        self.roles = [part(ROLE_WORDS * 8).cast("Q") for _ in range(senders + receivers)]
        self.known = part(EPOCHS * 8).cast("Q")
        self.begun = part(EPOCHS * 8).cast("Q")
        self.sent = [part(numbers) for _ in range(senders)]
        self.got = [[part(numbers) for _ in range(senders)] for _ in range(receivers)]

    def role(self, number: int) -> memoryview:
        """Senders come first, then the receivers."""
        return self.roles[number]

    def total(self, word: int) -> int:
        return sum(role[word] for role in self.roles)

    def complaints(self, lost_with_the_receivers: bool) -> Iterator[str]:
        """What is wrong once everybody has finished."""
        missing = 0
        names = []
        for who, states in enumerate(self.sent):
            state = numpy.frombuffer(states, numpy.uint8)
            got = sum(numpy.frombuffer(by[who], numpy.uint8).astype(int) for by in self.got)
            for what, which in (
                ("doubled", got > 1),
                ("never sent, or given up, but there:", (got > 0) & (state == NOT_SENT)),
            ):
                for number in numpy.flatnonzero(which)[:5]:
                    yield f"{what} message {number} of sender {who} ({got[number]} times)"
            gone = numpy.flatnonzero((got == 0) & (state == SENT))
            missing += len(gone)
            names += [f"{who}/{number}" for number in gone[:5]]
        states = numpy.concatenate([numpy.frombuffer(part, numpy.uint8) for part in self.sent])
        for size in range(SMALLEST):
            sent = int((states == TINY_SENT + size).sum())
            perhaps = int((states == TINY_PERHAPS + size).sum())
            got = sum(role[TINY + size] for role in self.roles)
            if got > sent + perhaps:
                yield f"doubled: {got} messages of {size} bytes came, {sent + perhaps} were sent"
            if got < sent:
                missing += sent - got
                names.append(f"{sent - got} of {size} bytes")
        self.missing = missing
        allowed = self.total(FORGIVEN)
        if missing > allowed and not lost_with_the_receivers:
            yield f"lost: {missing} messages, {allowed} can be explained ({', '.join(names[:20])})"
