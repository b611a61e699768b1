"""Receiving messages: at once where they are whole, else under the readers' turn.  See ``frames``.

A receive that is interrupted, or out of time, in the middle of a stream keeps what it has; the next
one in this process goes on with it, on whichever end, and R_KEEPER tells the other processes to
leave the stream alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from errno import EBADMSG
from typing import Any

from . import identity
from .assembling import Assembly, Plain, Room
from .bytering import ByteRing, aligned
from .descriptors import Descriptor
from .frames import ABORT, DATA, OBJECT, PART, WHOLE, close_stream, remaining
from .keeping import Keeper
from .locking import Locks
from .primitives import TIMED_OUT, WOKEN
from .readers import ReaderSide
from .segment import (
    ALIGN,
    DROPPED,
    PAGE_SHIFT,
    PLUG,
    R_BEGAN,
    R_KEEPER,
    R_SPINS,
    RD_LENT,
    RD_LONG,
    RD_TURN_BY,
    RD_WATCH,
    READS,
    RPOS,
    UNPLUG,
    WORD,
    WPOS,
    WR_ARM,
    WR_RUNG,
    WR_TURN_BY,
    damaged,
)
from .waiting import DIED, LONG, NOT, SHORT, SHORT_SLEEP, close_all, go_on, rewatched

WATCH_SENDER = 0.1  # seconds between looks at the sender of a stream that does not go on
WATCH_KEEPER = 0.01  # seconds between looks at the process that has a part of a stream

TOO_LONG = object()  # in place of a message
_STREAM = object()
_LOST, _HERE, _KEPT = 0, -1, -2  # what poll() finds in front; pages that freed stand for _LOST


class Receiver:
    """Takes messages out of a ring."""

    def __init__(
        self,
        side: ReaderSide,
        locks: Locks,
        keeper: Keeper,
        assemble: Callable[[int], Assembly],
        only: Callable[[Any], None] | None = None,
    ) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.words = self.side.words
        self.lock = side.lock
        self.locks = locks
        self.turn = locks.reader_turn
        self.assemble = assemble  # of a size -> where an OBJECT message comes together
        self.only = (
            only  # raises, to leave the message there, for a DATA one (None), or a whole one
        )
        self.keeper = keeper
        self.window: Any = None  # for lending; the turn's

    def receive(
        self,
        room: memoryview | None,
        deadline: float | None,
        most: int | None = None,
        slept: bool = False,
    ) -> Any:
        """The next message: bytes, or what ``assemble`` makes of an OBJECT.

        ``slept``: the call has been asleep for it, so that others may depend on the wake it had.
        Its size, if it is DATA and fits ``room``, where it then is.  TOO_LONG, and it stays, if it
        is seen at once that it has more than ``most`` bytes.
        EOFError: there is none, and nobody can send any more.  TimeoutError: none has come before
        ``deadline``; what has come of a stream is kept for the next call.
        """
        try:
            return self._receive(room, deadline, most, slept)
        except EOFError:
            raise
        except TimeoutError:
            self.side.pass_on(True, False)  # a wake that it has had  # step: late-pass-on
            raise
        except BaseException:
            self.side.recover(NOT)
            raise

    def _receive(
        self, room: memoryview | None, deadline: float | None, most: int | None, slept: bool
    ) -> Any:
        again = False
        while True:
            if again:
                go_on(deadline)
            message = self._at_once(room, slept, deadline, most)
            if message is _STREAM:
                # The wake that this call had may have been for who has the turn; and waiting for
                # parts, it may have been given one that another receiver needs.
                self.side.pass_on(slept, False)  # step: turn-pass-on
                message = self._assemble(room, deadline, most)
                self.side.pass_on(True, False)  # step: parts-pass-on
                if message is not None:
                    return message if message is TOO_LONG else message.finished()
                again = True
            elif message is not None:
                return message
            elif self.wait(deadline):
                again, slept = slept, True
            else:
                raise TimeoutError("timed out waiting for a message")

    def _at_once(
        self, room: memoryview | None, slept: bool, deadline: float | None, most: int | None
    ) -> Any:
        """Take the first message; None: there is none; _STREAM: it comes in parts, or may."""
        side, ring, words = self.side, self.ring, self.words
        lock = self.lock
        lock.enter(deadline)
        try:
            if words[R_KEEPER] or words[RD_TURN_BY]:
                return _STREAM
            if not ring.front():
                return None
            if most is not None and _is_longer(ring.kind, ring.size, most):
                return TOO_LONG
            if ring.kind == DATA:
                if self.only is not None:
                    self.only(None)
                if room is not None and ring.size <= len(room):
                    ring.content_into(room, 0)
                    message: Any = ring.size
                else:
                    message = ring.content()
            elif ring.kind == OBJECT:
                message = self._object()
            elif ring.kind in WHOLE or ring.kind in (PART, ABORT):
                return _STREAM
            else:
                raise damaged(f"frame of kind {ring.kind}")
            before = ring.consume()  # step: recv-copy-first (early)
            words[READS] = (words[READS] + 1) & WORD
            if slept or words[RD_WATCH] or words[RD_LONG]:
                side.settle(not side.has_data(), slept)  # step: recv-settle
        finally:
            lock.release()  # step: recv-unlock (late)
            lock.leave()
        if words[WR_ARM] != words[WR_RUNG] or words[PLUG] != words[UNPLUG]:
            side.wake_writers(ring.freed_since(before))  # step: recv-wake
        if slept:
            side.pass_on(slept, False)  # step: recv-pass-on
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
        again = False
        try:
            while self.wait(deadline):
                if again:
                    go_on(deadline)
                again = True
                found = self._look(deadline)
                if found == _HERE:
                    # The message stays, so whoever sleeps for it needs the wake that came here.
                    self.side.pass_on(True, False)  # step: poll-pass-on
                    return True
                if found == _KEPT:
                    self._wait_for_keeper(deadline)
                else:
                    self.side.wake_writers(found)
        except TimeoutError:
            # Another process stands still in the middle of a call, or of a message.
            self.side.pass_on(True, False)  # a wake that it has had  # step: poll-late-pass-on
        return False

    def _look(self, deadline: float | None) -> int:
        """What is in front: _HERE, something to receive; _KEPT, what another process goes on with.

        A stream of which that is already known to come to nothing is taken away: pages that freed.
        """
        ring, words = self.ring, self.words
        lock = self.lock
        lock.enter(deadline)
        try:
            keeper = words[R_KEEPER]
            if keeper:
                if keeper == identity.token:
                    return _HERE
                if identity.is_alive(keeper):
                    return _KEPT
                self._lose()
            if not ring.front() or ring.kind in (DATA, OBJECT):
                return _HERE
            taker = words[RD_TURN_BY]
            if taker and identity.is_alive(taker):
                return _HERE
            before = words[RPOS]
            if ring.kind in WHOLE:
                behind = 0
                while ring.kind != ABORT:
                    behind += ALIGN + aligned(ring.size)
                    if not ring.front(behind) or ring.kind not in (PART, ABORT):
                        return _HERE
                words[DROPPED] = (words[DROPPED] + 1) & WORD
                ring.front()
            elif ring.kind not in (PART, ABORT):
                raise damaged(f"frame of kind {ring.kind}")
            # Only the first frame: the parts behind it then are of a lost stream.  (What watchers
            # have to be shown is up to the wait that follows.)
            ring.consume()
            return ring.freed_since(before)
        finally:
            lock.release()
            lock.leave()

    def wait(self, deadline: float | None) -> bool:
        """Sleep until there is something in the ring; False: ``deadline`` has come.

        EOFError: nobody can send any more.  TimeoutError: others kept the lock until ``deadline``.
        """
        side, words, lock = self.side, self.side.words, self.side.lock
        if side.has_data():  # no step: it only saves the lock
            return True
        limit = remaining(deadline)
        if (
            side.spin_now > 0
            and (limit is None or limit > 0)
            and side.spin(WPOS, words[RPOS] + 1, limit)
        ):
            words[R_SPINS] = (words[R_SPINS] + 1) & WORD
            return True
        asleep, kind, slept = NOT, SHORT, False
        others: list[Descriptor] = []  # the other processes, for a long sleep
        try:
            while True:
                lock.enter(deadline)
                try:
                    if asleep:
                        armed, asleep = asleep, NOT
                        side.disarm(armed)  # step: recv-disarm
                    # The doorbell first: what was sent before the last sender died is there.
                    limit = remaining(deadline)
                    brief = limit is not None and limit <= SHORT_SLEEP
                    ended = side.others_gone(brief or kind == LONG)  # step: hangup-first (late)
                    if side.has_data():  # step: recv-look-after-hangup (never)
                        return True
                    if ended or (limit is not None and limit <= 0):
                        side.clear()  # step: wait-clear
                        break
                    side.arm(kind, slept)
                    asleep = kind
                finally:
                    lock.release()
                    lock.leave()
                if not side.has_data():  # step: recv-look (always)
                    if not slept:
                        slept = True  # first: the call may end here, and let go of it in vain
                        side.bell.hold()
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
        side.pass_on(slept, ended)  # step: wait-pass-on
        if ended:
            raise EOFError
        return False

    # --- streams ---------------------------------------------------------------------------------

    def _assemble(self, room: memoryview | None, deadline: float | None, most: int | None) -> Any:
        """Receive a stream under the turn; None: there was none, or it was lost."""
        words, turn = self.words, self.turn
        taker = words[RD_TURN_BY]
        if taker and taker != identity.token and _is_over(deadline) and identity.is_alive(taker):
            # Who has no time left does not wait at the door either.
            raise TimeoutError("timed out waiting for another receiver")
        turn.enter(deadline)
        try:
            self.side.still_open(WOKEN)  # it may have waited for long
            if self._may_touch(deadline):
                words[RD_TURN_BY] = identity.token  # step: recv-turn
                words[RD_LENT] = 0  # a dead predecessor's
                return self._collect(room, deadline, most)
        finally:
            words[RD_TURN_BY] = 0  # step: recv-turn-over
            turn.release()
            turn.leave()
        self._wait_for_keeper(deadline)  # which needs the turn to go on
        return None

    def _may_touch(self, deadline: float | None) -> bool:
        """Whether no other process has a part of the stream in front; under the turn."""
        keeper = self.words[R_KEEPER]
        if keeper == identity.token and self.keeper.assembly is not None:
            return True
        self.keeper.assembly = None  # a parent's, from before the fork; or given up already
        if keeper:
            # (Named without having a part: no process of ours does that to itself.)
            if keeper != identity.token and identity.is_alive(keeper):
                return False
            lock = self.lock
            lock.enter(deadline)
            try:
                if self.words[R_KEEPER]:  # otherwise a poll() has been quicker
                    self._lose()
            finally:
                lock.release()
                lock.leave()
        return True

    def _lose(self) -> None:
        """Of the stream in the middle nothing will be delivered; what is left will be skipped.

        Not if its beginning is still there: whoever comes next receives it.
        """
        words = self.words
        words[R_KEEPER] = 0  # first: an assembly counts only while this process is named here
        self.keeper.assembly = None
        if words[RPOS] != words[R_BEGAN]:  # step: began-look (always)
            words[DROPPED] = (words[DROPPED] + 1) & WORD

    def _collect(self, room: memoryview | None, deadline: float | None, most: int | None) -> Any:
        side, lock, keeper = self.side, self.lock, self.keeper
        words, first = self.words, self.words[RPOS]
        kept: Assembly | None = keeper.assembly
        if kept is not None and kept.borrows:
            self._lose()  # _keep() was interrupted, and the buffer is its caller's again
            kept = None
        if kept is not None and most is not None and _is_longer(kept.kind, kept.size, most):
            self._lose()
            return TOO_LONG
        try:
            while True:
                lock.enter(deadline)
                try:
                    over, message, freed = self._step(room, most)
                    if not side.has_data():  # no step: settle() says what follows
                        # step: parts-rearm
                        side.settle(True, over)  # arms again for those who still sleep
                finally:
                    lock.release()
                    lock.leave()
                side.wake_writers(max(freed, 0))  # step: parts-wake
                if over:
                    return message
                if freed < 0:
                    self._wait_for_part(deadline)
                elif words[RPOS] - first >= self.ring.pages() << PAGE_SHIFT and _is_over(deadline):
                    # What was there when the time was up has been taken, and that is enough.
                    raise TimeoutError("timed out in the middle of a message")
                go_on(deadline)
        except EOFError:
            if keeper.assembly is not None:
                self._lose()  # the rest will never come
            raise
        except BaseException as error:
            self._keep(error)
            raise

    def _keep(self, error: BaseException) -> None:
        """A call ends in the middle of a stream: leave to the next one what it can go on with."""
        assembly = self.keeper.assembly
        if assembly is None:
            return
        if isinstance(error, TimeoutError):
            error.kept = assembly.have  # type: ignore[attr-defined]
        hopeless = isinstance(error, OSError) and error.errno == EBADMSG
        if hopeless or isinstance(error, MemoryError) or not self.lock.sides.all():
            self._lose()
        elif assembly.borrows:
            self.keeper.assembly = assembly.moved()

    def _step(self, room: memoryview | None, most: int | None) -> tuple[bool, Any, int]:
        """One frame of a stream: (whether that was all, the message if it is there, pages freed).

        Pages -1: the next frame is not there yet.  Under the lock.
        """
        ring, words, keeper = self.ring, self.words, self.keeper
        assembly: Assembly | None = keeper.assembly
        if assembly is not None and assembly.have == assembly.size:
            self._whole(assembly)  # an earlier call was interrupted just here
            return True, assembly, 0
        if not ring.front():
            return assembly is None, None, -1
        if ring.kind == PART:
            return self._part(assembly)
        if ring.kind in WHOLE:
            kind, size = WHOLE[ring.kind], ring.number()
            if most is not None and _is_longer(kind, size, most):
                return True, TOO_LONG, 0
            # An assembly that is there already is of a call that was interrupted just here.
            try:
                keeper.assembly = self._new_assembly(kind, size, room)
            except MemoryError:
                ring.consume()  # the parts behind it will be skipped
                self._lose()
                raise
            words[R_BEGAN] = words[RPOS]  # step: began-first (late 2)
            words[R_KEEPER] = identity.token  # step: keeper-first (late)
            before = ring.consume()
            return False, None, ring.freed_since(before)
        if assembly is not None:
            self._lose()
        if ring.kind == ABORT:
            return True, None, ring.freed_since(ring.consume())
        return True, None, 0

    def _part(self, assembly: Assembly | None) -> tuple[bool, Any, int]:
        ring = self.ring
        left, count = ring.number(), ring.size - ALIGN
        if count > left:
            raise damaged(f"a part of {count} bytes where {left} are to come")
        if assembly is None:  # of a lost stream
            return False, None, ring.freed_since(ring.consume())
        at = assembly.size - left
        for piece in ring.pieces(ALIGN):
            assembly.add(piece, at)
            at += len(piece)
        before = ring.consume()  # step: part-taken-first (late 2)
        over = count == left
        if over:
            self._whole(assembly)
        return over, assembly if over else None, ring.freed_since(before)

    def _whole(self, assembly: Assembly) -> None:
        if self.only is not None:
            self.only(assembly)
        self.words[R_KEEPER] = 0
        self.keeper.assembly = None
        self.words[READS] = (self.words[READS] + 1) & WORD

    def _new_assembly(self, kind: int, size: int, room: memoryview | None) -> Assembly:
        if kind == OBJECT:
            return self.assemble(size)
        if self.only is not None:
            self.only(None)
        if room is not None and size <= len(room):
            return Room(room, size)
        return Plain(size)

    def _wait_for_keeper(self, deadline: float | None) -> None:
        """Another process has been interrupted in the middle of the stream in front."""
        self.side.still_open(WOKEN)
        limit = remaining(deadline)
        if limit is not None and limit <= 0:
            raise TimeoutError("timed out waiting for the receiver of a part of a message")
        time.sleep(WATCH_KEEPER if limit is None else min(WATCH_KEEPER, limit))

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
                if words[WR_TURN_BY] == sender:  # step: turn-look (always)
                    if not close_stream(self.ring) and not self.side.has_data():
                        raise damaged("a message that has no end")
                    return
            finally:
                lock.release()
                lock.leave()
        if _is_over(deadline):
            raise TimeoutError("timed out waiting for the rest of a message")

    def forget(self) -> None:
        """The side has left.  With the last one, what this process has of a stream is lost.

        (Unless a call of another thread is still at work: it sees to that itself.)
        """
        turn = self.turn
        if self.words[R_KEEPER] != identity.token or self.lock.sides.all():
            return
        try:
            turn.enter(0.0)
        except (OSError, RuntimeError):
            return  # such a call has the turn, or was interrupted with it
        try:
            # Once more: a call that has just come to its end names this process no longer.
            if self.words[R_KEEPER] == identity.token:  # step: forget-look (always)
                self._lose()
        finally:
            turn.release()
            turn.leave()


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _is_longer(kind: int, size: int, most: int) -> bool:
    """Whether a frame of ``size`` bytes certainly holds a message of more than ``most``.

    An OBJECT is longer in its frame than as one plain pickle, by the numbers and the padding of its
    buffers, which have OUT_OF_BAND bytes or more, and by the pickle's own frames: by less than is
    taken off here.
    """
    if kind == OBJECT:
        size -= 64 + (size >> 7)
    return size > most
