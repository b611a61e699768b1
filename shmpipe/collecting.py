"""Messages that come in parts: collected by one receiver at a time, under the readers' turn.

See ``frames``.  A receive that is interrupted, or out of time, in the middle of a stream keeps what
it has; the next one in this process goes on with it, on whichever end, and R_KEEPER tells the other
processes to leave the stream alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from errno import EBADMSG
from typing import Any

from . import identity, primitives
from .arrivals import wait_for_data
from .assembling import Assembly, Plain, Room
from .bytering import ByteRing
from .deadlines import is_over, remaining
from .errors import OutOfTime, PartlyReceived
from .frames import ABORT, OBJECT, PART, WHOLE, close_stream, count_lost, note_beginning
from .keeping import Keeper
from .locking import Locks
from .primitives import WOKEN
from .readers import ReaderSide
from .segment import (
    ALIGN,
    PAGE_SHIFT,
    R_BEGAN,
    R_KEEPER,
    RD_LENT,
    RD_TURN_BY,
    READS,
    RPOS,
    WORD,
    WR_TURN_BY,
    damaged,
)
from .waiting import go_on

WATCH_SENDER = 0.1  # seconds between looks at the sender of a stream that does not go on
WATCH_KEEPER = 0.01  # seconds between looks at the process that has a part of a stream

TOO_LONG = object()  # in place of a message


class Collector:
    """Puts together what comes in parts."""

    def __init__(
        self,
        side: ReaderSide,
        locks: Locks,
        keeper: Keeper,
        assemble: Callable[[int], Assembly],
        only: Callable[[Any], None] | None,
    ) -> None:
        self.side = side
        self.ring: ByteRing = side.ring  # type: ignore[assignment]
        self.words = self.side.words
        self.lock = side.lock
        self.locks = locks
        self.turn = locks.reader_turn
        self.keeper = keeper
        self.assemble = assemble
        self.only = only

    def collect(self, room: memoryview | None, deadline: float | None, most: int | None) -> Any:
        """Receive a stream under the turn; None: there was none, or it was lost."""
        words, turn = self.words, self.turn
        taker = words[RD_TURN_BY]
        if taker and taker != identity.token and is_over(deadline) and identity.is_alive(taker):
            # Who has no time left does not wait at the door either.
            raise OutOfTime("timed out waiting for another receiver")
        try:
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
        except BaseException:
            self.forget()  # who closed the last end meanwhile has left that to this call
            raise
        self.wait_for_keeper(deadline)  # which needs the turn to go on
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
                    self.lose()
            finally:
                lock.release()
                lock.leave()
        return True

    def lose(self) -> None:
        """Of the stream in the middle nothing will be delivered; what is left will be skipped.

        Not if its beginning is still there: whoever comes next receives it.
        """
        words = self.words
        self.keeper.assembly = None  # first: what is counted is not gone on with
        if words[RPOS] != words[R_BEGAN]:  # step: began-look (always)
            count_lost(self.ring)
        primitives.release_fence()  # whoever finds no keeper here finds the count, too
        words[R_KEEPER] = 0  # step: lost-last (early 2)

    def _collect(self, room: memoryview | None, deadline: float | None, most: int | None) -> Any:
        side, lock, keeper = self.side, self.lock, self.keeper
        words, first = self.words, self.words[RPOS]
        kept: Assembly | None = keeper.assembly
        if kept is not None and kept.borrows:
            self.lose()  # _keep() was interrupted, and the buffer is its caller's again
            kept = None
        if kept is not None and most is not None and is_longer(kept.kind, kept.size, most):
            self.lose()
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
                elif words[RPOS] - first >= self.ring.pages() << PAGE_SHIFT and is_over(deadline):
                    # What was there when the time was up has been taken, and that is enough.
                    raise OutOfTime("timed out in the middle of a message")
                go_on(deadline)
        except EOFError:
            if keeper.assembly is not None:
                self.lose()  # the rest will never come
            raise
        except BaseException as error:
            have = self._keep(error)
            if have is None or type(error) is not OutOfTime:
                raise  # (what a signal's handler raises is the handler's)
            why = error.args
        # (Not from a variable: an exception whose traceback's frames refer to it stays, with all
        # that they have of the ring, until garbage is collected.)
        raise _partly_received(why, have)

    def _keep(self, error: BaseException) -> int | None:
        """A call ends in the middle of a stream: leave to the next one what it can go on with.

        How many bytes that is; None: there is no stream.
        """
        assembly = self.keeper.assembly
        if assembly is None:
            return None
        have = assembly.have
        hopeless = isinstance(error, OSError) and error.errno == EBADMSG
        if hopeless or isinstance(error, MemoryError) or not self.lock.sides.all():
            self.lose()
        elif assembly.borrows:
            self.keeper.assembly = assembly.moved()
        return have

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
            if most is not None and is_longer(kind, size, most):
                return True, TOO_LONG, 0
            # An assembly that is there already is of a call that was interrupted just here.
            try:
                keeper.assembly = self._new_assembly(kind, size, room)
            except MemoryError:
                note_beginning(ring)
                words[R_KEEPER] = identity.token  # no crash: only where memory is out
                ring.consume()  # the parts behind it will be skipped
                self.lose()
                raise
            note_beginning(ring)
            words[R_KEEPER] = identity.token  # step: keeper-first (late)
            before = ring.consume()
            return False, None, ring.freed_since(before)
        if assembly is not None:
            self.lose()
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

    def wait_for_keeper(self, deadline: float | None) -> None:
        """Another process has been interrupted in the middle of the stream in front."""
        self.side.still_open(WOKEN)
        limit = remaining(deadline)
        if limit is not None and limit <= 0:
            raise OutOfTime("timed out waiting for the receiver of a part of a message")
        time.sleep(WATCH_KEEPER if limit is None else min(WATCH_KEEPER, limit))

    def _wait_for_part(self, deadline: float | None) -> None:
        """Wait for a stream to go on; close it off if its sender has gone."""
        words, lock = self.side.words, self.locks.writer
        look = time.monotonic() + WATCH_SENDER
        try:
            if wait_for_data(self.side, look if deadline is None else min(look, deadline)):
                return
        except OutOfTime:
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
        if is_over(deadline):
            raise OutOfTime("timed out waiting for the rest of a message")

    def forget(self) -> None:
        """The side has left.  With the last one, what this process has of a stream is lost.

        The turn is not needed, which may be another process's: none of them touches the stream
        while this one lives and is named.  But a call of another thread may be at work; then that
        sees to it when it ends.
        """
        if self.words[R_KEEPER] != identity.token or self.lock.sides.all():
            return
        local = self.turn.local
        if local._is_owned() or not local.acquire(False):
            return
        try:
            # Once more: a call that has just come to its end names this process no longer.
            if self.words[R_KEEPER] == identity.token:  # step: forget-look (always)
                self.lose()
        finally:
            local.release()


def _partly_received(why: tuple[Any, ...], have: int) -> PartlyReceived:
    late = PartlyReceived(*why)
    late.kept = have
    return late


def is_longer(kind: int, size: int, most: int) -> bool:
    """Whether a frame of ``size`` bytes certainly holds a message of more than ``most``.

    An OBJECT is longer in its frame than as one plain pickle, by the numbers and the padding of its
    buffers, which have OUT_OF_BAND bytes or more, and by the pickle's own frames: by less than is
    taken off here.
    """
    if kind == OBJECT:
        size -= 64 + (size >> 7)
    return size > most
