"""Receiving messages: at once where they are whole, else see ``collecting``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import identity
from .arrivals import wait_for_data
from .assembling import Assembly
from .bytering import ByteRing, aligned
from .collecting import TOO_LONG, Collector, is_longer
from .errors import OutOfTime
from .frames import ABORT, DATA, OBJECT, PART, WHOLE, count_lost, note_beginning
from .keeping import Keeper
from .locking import Locks
from .readers import ReaderSide
from .segment import (
    ALIGN,
    PLUG,
    R_KEEPER,
    RD_LONG,
    RD_TURN_BY,
    RD_WATCH,
    READS,
    RPOS,
    UNPLUG,
    WORD,
    WR_ARM,
    WR_RUNG,
    damaged,
)
from .waiting import NOT, go_on

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
        # Raises, to leave the message there, for a DATA one (None), or a whole one.
        self.only = only
        self.keeper = keeper
        self.streams = Collector(side, locks, keeper, assemble, only)
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
        well = False
        # (Compiled, an ``except`` here would cost every message more than this does.)
        try:
            message = self._at_once(room, slept, deadline, most)
            if message is None or message is _STREAM:
                message = self._wait_for_message(message, room, slept, deadline, most)
            well = True
            return message
        finally:
            if not well:
                self._failed(sys.exc_info()[1])

    def _wait_for_message(
        self,
        message: Any,
        room: memoryview | None,
        slept: bool,
        deadline: float | None,
        most: int | None,
    ) -> Any:
        """As ``receive``, from what ``_at_once`` has found: None or _STREAM."""
        while True:
            if message is _STREAM:
                # The wake that this call had may have been for who has the turn; and waiting
                # for parts, it may have been given one that another receiver needs.
                self.side.pass_on(slept, False)  # step: turn-pass-on
                message = self.streams.collect(room, deadline, most)
                self.side.pass_on(True, False)  # step: parts-pass-on
                if message is not None:
                    return message if message is TOO_LONG else message.finished()
                again = True
            elif message is not None:
                return message
            elif wait_for_data(self.side, deadline):
                again, slept = slept, True
            else:
                raise OutOfTime("timed out waiting for a message")
            if again:
                go_on(deadline)
            message = self._at_once(room, slept, deadline, most)

    def _failed(self, error: BaseException | None) -> None:
        if isinstance(error, OutOfTime):
            self.side.pass_on(True, False)  # a wake that it has had  # step: late-pass-on
        elif not isinstance(error, EOFError):
            self.side.recover(NOT)

    def receive_whole(self, room: Any, deadline: float | None) -> Any:
        """As ``receive``, but None where no message lies in the ring in one piece.

        ``room`` may be a bytearray, too.

        So nothing is begun that would have to be kept for a later call.
        """
        try:
            message = self._at_once(room, False, deadline, None)
        except BaseException as error:
            if not isinstance(error, OutOfTime):
                self.side.recover(NOT)
            raise
        return None if message is _STREAM else message

    def _at_once(
        self, room: memoryview | None, slept: bool, deadline: float | None, most: int | None
    ) -> Any:
        """Take the first message; None: there is none; _STREAM: it comes in parts, or may."""
        ring, words, lock = self.ring, self.words, self.lock
        lock.enter(deadline)
        try:
            if words[R_KEEPER] or words[RD_TURN_BY]:
                return _STREAM
            if not ring.front():
                return None
            if ring.kind == DATA and room is None and most is None and self.only is None:
                message: Any = ring.content()
            else:
                message = self._content(room, most)
                if message is _STREAM or message is TOO_LONG:
                    return message
            before = ring.consume()  # step: recv-copy-first (early)
            words[READS] = (words[READS] + 1) & WORD
            if slept or words[RD_WATCH] or words[RD_LONG]:
                self.side.settle(not self.side.has_data(), slept)  # step: recv-settle
        finally:
            lock.release()  # step: recv-unlock (late)
            lock.leave()
        if words[WR_ARM] != words[WR_RUNG] or words[PLUG] != words[UNPLUG]:
            self.side.wake_writers(ring.freed_since(before))  # step: recv-wake
        if slept:
            self.side.pass_on(slept, False)  # step: recv-pass-on
        return message

    def _content(self, room: memoryview | None, most: int | None) -> Any:
        """Under the lock: copy the message in front; _STREAM or TOO_LONG: it stays there."""
        ring = self.ring
        if most is not None and is_longer(ring.kind, ring.size, most):
            return TOO_LONG
        if ring.kind == DATA:
            if self.only is not None:
                self.only(None)
            if room is not None and ring.size <= len(room):
                ring.content_into(room, 0)
                return ring.size
            return ring.content()
        if ring.kind == OBJECT:
            return self._object()
        if ring.kind in WHOLE or ring.kind in (PART, ABORT):
            return _STREAM
        raise damaged(f"frame of kind {ring.kind}")

    def _object(self) -> Any:
        """Under the lock: copy the OBJECT in front."""
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
            while wait_for_data(self.side, deadline):
                if again:
                    go_on(deadline)
                again = True
                found = self._look(deadline)
                if found == _HERE:
                    # The message stays, so whoever sleeps for it needs the wake that came here.
                    self.side.pass_on(True, False)  # step: poll-pass-on
                    return True
                if found == _KEPT:
                    self.streams.wait_for_keeper(deadline)
                else:
                    self.side.wake_writers(found)
        except OutOfTime:
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
                self.streams.lose()
            if not ring.front():
                return _LOST  # another receiver was faster, and it may have been no message
            if ring.kind in (DATA, OBJECT):
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
                note_beginning(ring)
                count_lost(ring)
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

    def forget(self) -> None:
        """The side has left: see ``Collector.forget``."""
        self.streams.forget()
