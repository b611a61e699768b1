"""Receiving messages: at once where they are whole, else under the readers' turn.  See ``frames``.

A receive that is interrupted, or out of time, in the middle of a stream keeps what it has; the next
one in this process goes on with it, and R_KEEPER tells the other processes to leave the stream
alone.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any, Protocol

from . import identity
from .bytering import ByteRing, aligned
from .frames import ABORT, DATA, OBJECT, PART, WHOLE, close_stream, remaining
from .locking import Locks, SideLock
from .primitives import TIMED_OUT
from .readers import ReaderSide
from .ring import damaged
from .segment import (
    ALIGN,
    DROPPED,
    R_KEEPER,
    R_PART,
    R_SPINS,
    R_TOTAL,
    RD_LONG,
    RD_TURN_BY,
    RD_WATCH,
    READS,
    RPOS,
    WPOS,
    WR_ARM,
    WR_RUNG,
    WR_TURN_BY,
)
from .waiting import DIED, LONG, NOT, SHORT, close_all, rewatched


class Assembly(Protocol):
    """A message that comes in pieces."""

    def add(self, piece: memoryview, position: int) -> None: ...

    def finished(self) -> Any: ...


class _Plain:
    """The bytes of a DATA message in pieces."""

    def __init__(self) -> None:
        # getvalue() hands its bytes over without a copy.
        self._bytes = io.BytesIO()

    def add(self, piece: memoryview, position: int) -> None:
        """The bytes from ``position`` on; a piece may be added again after an interruption."""
        self._bytes.seek(position)
        self._bytes.write(piece)

    def finished(self) -> bytes:
        return self._bytes.getvalue()


class _Room:
    """A caller's buffer that a DATA message goes to piece by piece."""

    def __init__(self, room: memoryview, size: int) -> None:
        self._room = room
        self._size = size

    def add(self, piece: memoryview, position: int) -> None:
        self._room[position : position + len(piece)] = piece

    def finished(self) -> int:
        return self._size

    def kept(self, count: int) -> _Plain:
        """The first ``count`` bytes, for later: the buffer is the caller's again."""
        plain = _Plain()
        plain.add(self._room[:count], 0)
        return plain


_STREAM = object()
WATCH_SENDER = 0.1  # seconds between looks at the sender of a stream that does not go on


class Receiver:
    """Takes messages out of a ring."""

    def __init__(
        self,
        side: ReaderSide,
        locks: Locks,
        turn: SideLock,
        assemble: Callable[[int], Assembly],
    ) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.words = self.side.words
        self.lock = side.lock
        self.locks = locks
        self.turn = turn
        self.assemble = assemble  # of a size -> where an OBJECT message comes together
        self.kept: Assembly | None = None  # the part of a stream an interrupted receive has got

    def receive(self, room: memoryview | None, deadline: float | None) -> Any:
        """The next message: bytes, or what ``assemble`` makes of an OBJECT.

        Its size, if it is DATA and fits ``room``, where it then is.
        EOFError: there is none, and nobody can send any more.  TimeoutError: none has come before
        ``deadline``; what has come of a stream is kept for the next call.
        """
        try:
            return self._receive(room, deadline)
        except (EOFError, TimeoutError):
            raise
        except BaseException:
            self.side.recover(NOT)
            raise

    def _receive(self, room: memoryview | None, deadline: float | None) -> Any:
        slept = False
        while True:
            message = self._at_once(room, slept, deadline)
            if message is _STREAM:
                assembly = self._assemble(room, deadline)
                if assembly is not None:
                    return assembly.finished()
            elif message is not None:
                return message
            elif self.wait(deadline):
                slept = True
            else:
                raise TimeoutError("timed out waiting for a message")

    def _at_once(self, room: memoryview | None, slept: bool, deadline: float | None) -> Any:
        """Take the first message; None: there is none; _STREAM: it comes in parts, or may."""
        side, ring, words = self.side, self.ring, self.words
        lock = self.lock
        lock.enter(deadline)
        try:
            if words[R_PART] or words[RD_TURN_BY]:
                return _STREAM
            if not ring.front():
                return None
            if ring.kind == DATA:
                if room is not None and ring.size <= len(room):
                    ring.content_into(room, 0)
                    message: Any = ring.size
                else:
                    message = ring.content()
            elif ring.kind == OBJECT:
                message = self._object()
            elif ring.kind in WHOLE or ring.kind == ABORT:
                return _STREAM
            else:
                raise damaged(f"frame of kind {ring.kind}")
            before = ring.consume()
            words[READS] += 1
            if slept or words[RD_WATCH] or words[RD_LONG]:
                side.settle(not side.has_data(), slept)
        finally:
            lock.release()
            lock.leave()
        if words[WR_ARM] != words[WR_RUNG]:
            side.wake_writers(ring.freed_since(before))
        if slept:
            side.pass_on(slept, False)
        return message

    def _object(self) -> Any:
        """Copy the OBJECT in front out of the ring, under the lock."""
        assembly = self.assemble(self.ring.size)
        at = 0
        for piece in self.ring.pieces():
            assembly.add(piece, at)
            at += len(piece)
        return assembly.finished()

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
        side, ring, words = self.side, self.ring, self.words
        lock = self.lock
        lock.enter(deadline)
        try:
            if words[R_PART] or not ring.front() or ring.kind not in (*WHOLE, ABORT):
                return -1
            behind = 0
            while ring.kind != ABORT:
                behind += ALIGN + aligned(ring.size)
                if not ring.front(behind) or ring.kind not in (PART, ABORT):
                    return -1
            words[DROPPED] += 1 if behind else 0
            before = words[RPOS]
            while behind >= 0:
                ring.front()
                behind -= ALIGN + aligned(ring.size)
                ring.consume()
            side.settle(not side.has_data(), False)
            return ring.freed_since(before)
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
        if side.spin_now > 0 and (limit is None or limit > 0) and side.spin(WPOS, words[RPOS] + 1):
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

    def _assemble(self, room: memoryview | None, deadline: float | None) -> Assembly | None:
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
            return self._collect(assembly, room, deadline)
        finally:
            words[R_KEEPER] = identity.token if self.kept else 0
            words[RD_TURN_BY] = 0
            turn.release()
            turn.leave()

    def _may_touch(self) -> bool:
        keeper = self.side.words[R_KEEPER]
        return not keeper or self.kept is not None or not identity.is_alive(keeper)

    def _collect(
        self, assembly: Assembly | None, room: memoryview | None, deadline: float | None
    ) -> Assembly | None:
        side, words, lock = self.side, self.side.words, self.side.lock
        try:
            while True:
                lock.enter(deadline)
                try:
                    over, assembly, freed = self._step(assembly, room)
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
                if isinstance(assembly, _Room):
                    assembly = assembly.kept(words[R_TOTAL] - words[R_PART])
                self.kept = assembly
            raise

    def _step(
        self, assembly: Assembly | None, room: memoryview | None
    ) -> tuple[bool, Assembly | None, int]:
        """One frame of a stream: (whether that was all, what there is of it, pages freed).

        Pages -1: the next frame is not there yet.  Under the lock.
        """
        ring, words = self.ring, self.words
        left = words[R_PART]
        if not ring.front():
            return not left, None if not left else assembly, -1
        kind, size = ring.kind, ring.size
        if kind == ABORT:
            words[R_PART] = 0
            words[DROPPED] += 1 if left else 0
            return True, None, ring.freed_since(ring.consume())
        if not left:
            if kind not in WHOLE:
                return True, None, 0
            total = int.from_bytes(ring.content(), "little")
            assembly = self._new_assembly(WHOLE[kind], total, room)
            words[R_TOTAL] = words[R_PART] = total
            return False, assembly, ring.freed_since(ring.consume())
        if kind != PART or size > left:
            raise damaged(f"frame of kind {kind} with {size} bytes, where {left} are to come")
        if assembly is not None:
            at = words[R_TOTAL] - left
            for piece in ring.pieces():
                assembly.add(piece, at)
                at += len(piece)
        freed = ring.freed_since(ring.consume())
        words[R_PART] = left - size
        if left > size:
            return False, assembly, freed
        if assembly is None:  # its receiver died
            words[DROPPED] += 1
        else:
            words[READS] += 1
        return True, assembly, freed

    def _new_assembly(self, kind: int, size: int, room: memoryview | None) -> Assembly:
        if kind == OBJECT:
            return self.assemble(size)
        if room is not None and size <= len(room):
            return _Room(room, size)
        return _Plain()

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
