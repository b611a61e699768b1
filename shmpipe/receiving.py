"""Receiving messages: at once where they are whole, else under the readers' turn.  See ``frames``.

A receive that is interrupted, or out of time, in the middle of a stream keeps what it has; the next
one in this process goes on with it, and R_KEEPER tells the other processes to leave the stream
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from . import identity
from .bytering import ALIGN, ByteRing, aligned
from .frames import ABORT, LENGTH, OBJECT, PART, WHOLE, close_stream, remaining
from .locking import Locks, SideLock
from .primitives import TIMED_OUT
from .readers import ReaderSide
from .ring import damaged
from .segment import (
    DROPPED,
    R_KEEPER,
    R_PART,
    R_SPINS,
    R_TOTAL,
    RD_LONG,
    RD_TURN_BY,
    RD_WATCH,
    READS,
    WR_TURN_BY,
)
from .waiting import DIED, LONG, NOT, SHORT, close_all, rewatched

# (kind, size, the bytes in one or two windows of the ring) -> the result.  Called under the
# readers' lock: it copies, and does nothing else.
Taker = Callable[[int, int, "list[memoryview]"], Any]


class Assembly(Protocol):
    """A message that comes in pieces."""

    def add(self, piece: memoryview, position: int) -> None: ...

    def finished(self) -> Any: ...


WATCH_SENDER = 0.1  # seconds between looks at the sender of a stream that does not go on
EMPTY, STREAM, TAKEN = range(3)


class Receiver:
    """Takes messages out of a ring."""

    def __init__(
        self,
        side: ReaderSide,
        locks: Locks,
        turn: SideLock,
        assemble: Callable[[int, int], Assembly],
    ) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.locks = locks
        self.turn = turn
        self.assemble = assemble  # (kind, size) -> where a stream's message comes together
        self.kept: Assembly | None = None  # the part of a stream an interrupted receive has got

    def receive(self, take: Taker, deadline: float | None) -> Any:
        """The next message, as ``take`` makes it, or as a stream's assembly does.

        EOFError: there is none, and nobody can send any more.  TimeoutError: none has come before
        ``deadline``; what has come of a stream is kept for the next call.
        """
        try:
            return self._receive(take, deadline)
        except (EOFError, TimeoutError):
            raise
        except BaseException:
            self.side.recover(NOT)
            raise

    def _receive(self, take: Taker, deadline: float | None) -> Any:
        slept = False
        while True:
            state, result, freed = self._try(take, slept, deadline)
            if state == TAKEN:
                if freed:
                    self.side.wake_writers(freed)
                if slept:
                    self.side.pass_on(slept, False)
                return result
            if state == STREAM:
                assembly = self._assemble(deadline)
                if assembly is not None:
                    return assembly.finished()
            elif self.wait(deadline):
                slept = True
            else:
                raise TimeoutError("timed out waiting for a message")

    def _try(self, take: Taker, slept: bool, deadline: float | None) -> tuple[int, Any, int]:
        """Take the first message if it is there whole."""
        side, ring, words = self.side, self.ring, self.side.words
        lock = side.lock
        lock.enter(deadline)
        try:
            if words[R_PART] or words[RD_TURN_BY]:
                return STREAM, None, 0
            front = ring.front()
            if front < 0:
                return EMPTY, None, 0
            kind, size = front >> 56, front & LENGTH
            if kind > OBJECT or kind == 0:
                if kind in WHOLE or kind == ABORT:
                    return STREAM, None, 0
                raise damaged(f"frame of kind {kind}")
            result = take(kind, size, ring.pieces(size))
            freed = ring.consume(size)
            words[READS] += 1
            if slept or words[RD_WATCH] or words[RD_LONG]:
                side.settle(not side.has_data(), slept)
            return TAKEN, result, freed
        finally:
            lock.release()
            lock.leave()

    def poll(self, deadline: float | None) -> bool:
        """Sleep until a message can be received; False: ``deadline`` has come.  EOFError: never."""
        try:
            while self.wait(deadline):
                freed = self._drop_aborted(deadline)
                if freed < 0:
                    return True
                self.side.wake_writers(freed)
        except TimeoutError:
            pass  # another process stands still in the middle of a call
        return False

    def _drop_aborted(self, deadline: float | None) -> int:
        """Take away a stream that was given up and lies in the ring to its end.

        Returns the pages that freed; -1: there is no such stream in front.
        """
        side, ring, words = self.side, self.ring, self.side.words
        lock = side.lock
        lock.enter(deadline)
        try:
            front = ring.front()
            if words[R_PART] or (front >> 56 not in WHOLE and front >> 56 != ABORT):
                return -1
            behind = 0
            while front >> 56 != ABORT:
                behind += ALIGN + (aligned(front & LENGTH) if front >> 56 == PART else 0)
                front = ring.front(behind)
                if front < 0 or front >> 56 not in (PART, ABORT):
                    return -1
            words[DROPPED] += 1 if behind else 0
            freed = ring.consume(behind)
            side.settle(not side.has_data(), False)
            return freed
        finally:
            lock.release()
            lock.leave()

    def wait(self, deadline: float | None) -> bool:
        """Sleep until there is something in the ring; False: ``deadline`` has come.

        EOFError: nobody can send any more.  TimeoutError: others kept the lock until ``deadline``.
        """
        side, words, lock = self.side, self.side.words, self.side.lock
        if side.has_data():
            return True
        limit = remaining(deadline)
        if side.spin_now > 0 and (limit is None or limit > 0) and side.spin(side.has_data):
            words[R_SPINS] += 1
            return True
        asleep, kind, slept = NOT, SHORT, False
        others: list[int] = []  # descriptors of the other processes, for a long sleep
        try:
            while True:
                lock.enter(deadline)
                try:
                    if asleep:
                        armed, asleep = asleep, NOT
                        side.disarm(armed)
                    # The doorbell first: what was sent before the last sender died is there.
                    ended = side.bell.hung_up()
                    if side.has_data():
                        return True
                    limit = remaining(deadline)
                    if ended or (limit is not None and limit <= 0):
                        side.clear()
                        break
                    side.arm(kind, slept)
                    asleep = kind
                finally:
                    lock.release()
                    lock.leave()
                if not side.has_data():
                    if not slept:
                        side.bell.hold()
                    slept = True
                    outcome = side.sleep(asleep, limit, others)
                    if outcome == DIED or (outcome == TIMED_OUT and kind == SHORT):
                        kind, others = LONG, rewatched(side, others)
        except TimeoutError:
            side.abandon(asleep)
            raise
        except BaseException:
            side.recover(asleep)
            raise
        finally:
            if slept:
                side.bell.let_go()
            close_all(others)
        side.pass_on(slept, ended)
        if ended:
            raise EOFError
        return False

    # --- streams ---------------------------------------------------------------------------------

    def _assemble(self, deadline: float | None) -> Assembly | None:
        """Receive a stream under the turn; None: there was none, or it was dropped."""
        words, turn = self.side.words, self.turn
        turn.enter(deadline)
        try:
            words[RD_TURN_BY] = identity.token
            while not self._may_touch():
                # Another process has been interrupted in the middle of this stream.
                limit = remaining(deadline)
                if limit is not None and limit <= 0:
                    raise TimeoutError("timed out waiting for the receiver of a part of a message")
                time.sleep(WATCH_SENDER / 10)
            assembly, self.kept = self.kept, None
            return self._collect(assembly, deadline)
        finally:
            words[R_KEEPER] = identity.token if self.kept else 0
            words[RD_TURN_BY] = 0
            turn.release()
            turn.leave()

    def _may_touch(self) -> bool:
        keeper = self.side.words[R_KEEPER]
        return not keeper or self.kept is not None or not identity.is_alive(keeper)

    def _collect(self, assembly: Assembly | None, deadline: float | None) -> Assembly | None:
        side, words, lock = self.side, self.side.words, self.side.lock
        try:
            while True:
                lock.enter(deadline)
                try:
                    over, assembly, freed = self._step(assembly)
                    if not side.has_data():
                        side.settle(True, False)
                finally:
                    lock.release()
                    lock.leave()
                side.wake_writers(max(freed, 0))
                if over:
                    return assembly
                if freed < 0:
                    self._wait_for_part(deadline)
        except EOFError:
            words[DROPPED] += 1 if words[R_PART] else 0
            words[R_PART] = 0  # the rest will never come
            raise
        except BaseException:
            if words[R_PART]:
                self.kept = assembly
            raise

    def _step(self, assembly: Assembly | None) -> tuple[bool, Assembly | None, int]:
        """One frame of a stream: (whether that was all, what there is of it, pages freed).

        Pages -1: the next frame is not there yet.  Under the lock.
        """
        ring, words = self.ring, self.side.words
        front = ring.front()
        kind, size = front >> 56, front & LENGTH
        left = words[R_PART]
        if front < 0:
            return not left, None if not left else assembly, -1
        if kind == ABORT:
            words[R_PART] = 0
            words[DROPPED] += 1 if left else 0
            return True, None, ring.consume(0)
        if not left:
            if kind not in WHOLE:
                return True, None, 0
            assembly = self.assemble(WHOLE[kind], size)
            words[R_TOTAL] = words[R_PART] = size
            return False, assembly, ring.consume(0)
        if kind != PART or size > left:
            raise damaged(f"frame of kind {kind} with {size} bytes, where {left} are to come")
        if assembly is not None:
            at = words[R_TOTAL] - left
            for piece in ring.pieces(size):
                assembly.add(piece, at)
                at += len(piece)
        freed = ring.consume(size)
        words[R_PART] = left - size
        if left > size:
            return False, assembly, freed
        if assembly is None:  # its receiver died
            words[DROPPED] += 1
        else:
            words[READS] += 1
        return True, assembly, freed

    def _wait_for_part(self, deadline: float | None) -> None:
        """Wait for a stream to go on; close it off if its sender has gone."""
        words, lock = self.side.words, self.locks.writer
        look = time.monotonic() + WATCH_SENDER
        try:
            if self.wait(look if deadline is None else min(look, deadline)):
                return
        except TimeoutError:
            pass
        sender = words[WR_TURN_BY]
        if not (sender and identity.is_alive(sender)) and lock.enter_soon():
            try:
                # Nobody's turn: whoever gets it next stores its name before it begins a stream.
                if words[WR_TURN_BY] == sender:
                    close_stream(self.ring)
                    return
            finally:
                lock.release()
                lock.leave()
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("timed out waiting for the rest of a message")

    def forget(self) -> None:
        """This process stops receiving: what it has kept of a stream is lost."""
        if self.kept is not None:
            self.kept = None
            self.side.words[R_KEEPER] = 0
