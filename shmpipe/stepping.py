"""A message sent in steps, none of which waits: for event loops.

A blocking ``send()`` waits inside, under the writers' turn.  Here whoever calls waits, watching
``outgoing.fileno()``, and calls ``step()`` again.

* A message that fits is published whole, as by ``send()``.
* One that does not fit while the end shows writable would wait in vain for a readiness that is
  there already.  So it is streamed from then on, in as many parts as the receiver makes space for,
  however large it is.  (Of up to the write size, with its header, it never is: writable means that
  it fits.)
* ``send()`` streams a message of more than half of the ring although there is space, so that both
  sides copy at the same time (``Sender.goes_in_parts``).  Here it goes whole if it can: between two
  parts the turn would be kept while the program is elsewhere; and as with a time limit, whole it
  can be sent at once or not at all.
* Nobody's turn is taken before there is something to stream: a program that has other things to do
  between two steps keeps nobody waiting for nothing.

Between two steps of a stream the turn is held as by a loan (see ``lending``): the lock of the turn
knows this object by a weak reference, and other calls of this thread that send get EBUSY.  If the
process dies, or drops the object, the stream is closed by whoever comes next (see ``frames``).

A step takes its locks with a deadline that has come: who holds one gets ONE_COPY to go on, and then
the step is over, to be tried again.  A close by another thread ends it; in the middle of a stream
that close gets BufferError, as where something is lent.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import Any

from . import identity
from .bytering import ByteRing, aligned
from .errors import OutOfTime
from .frames import (
    BEGIN_DATA,
    BEGIN_OBJECT,
    DATA,
    LARGE,
    PART,
    append_certainly,
    close_stream,
    cut,
)
from .locking import lent_out
from .primitives import WOKEN
from .segment import (
    ALIGN,
    PAGE_SHIFT,
    W_OPEN,
    WORD,
    WR_LENT,
    WR_TURN_BY,
    WR_WANT,
    WRITES,
)
from .sending import Sender, broken_pipe, release
from .waiting import NOT

_FRAME = 3 * ALIGN  # a part's header, its place, and an ABORT behind it
_LEAST = 1024  # bytes: a smaller part, unless it is the last, costs more than it carries
_PARTS = 4  # in one step: a ring's worth, so that no step takes long


class SteppedSend:
    """One message on its way: ``conn.begin_send(obj)`` and its siblings make it.

    A context manager: leaving the block before the message is sent gives it up, and nothing of it
    will be received.  Not to be used by two threads at once.
    """

    lends = False  # others of this thread may have messages in steps, too

    def __init__(self, connection: Any, sender: Sender, kind: int, content: Any, size: int) -> None:
        self.connection = connection  # which is not closed in the middle of a stream
        self._sender = sender
        self._words: memoryview = sender.ring.view
        self._kind = kind
        pieces = content if type(content) is list else [content]
        self._pieces = [memoryview(piece) for piece in pieces]  # what is left of it
        self._size = size
        self._left = size
        self._begun = False
        self._has_turn = False
        self._over = self._sent = False
        self._token = identity.token

    @property
    def left(self) -> int:
        """Bytes that are still to be sent; they become fewer while a large message is streamed."""
        return self._left

    @property
    def sent(self) -> bool:
        """Whether the message has been sent."""
        return self._sent

    def step(self) -> bool:
        """Send what there is space for, without waiting; True: that was all of it.

        False: again, once ``conn.outgoing.fileno()`` is writable.  (It may be so at once, and in
        vain, while another process or another task has the end for a message of its own.)

        OSError EBUSY: this thread is in a ``reserve()`` block of its own, which has to end first.
        BrokenPipeError: nobody can receive any more.  RuntimeError: the message has been sent, or
        given up.  OSError: the connection is closed.
        """
        self.connection._check_closed()
        if self._over or identity.token != self._token:
            raise RuntimeError("the message has been sent already, or given up")
        try:
            if self._advance():
                self._end()
                return True
        except OutOfTime:  # somebody stands still, for the moment, in a call on the same end
            if not self._begun:
                self._give_back()
        except BaseException:
            try:
                self._sender.side.recover(NOT)
            finally:
                self.cancel()  # whatever else is wrong: the turn does not stay here
            raise
        return False

    def has_begun(self) -> bool:
        """Whether others wait for its end."""
        return self._has_turn

    def cancel(self) -> None:
        """Give the message up, unless it has been sent: nothing of it will be received."""
        if self._over or identity.token != self._token:
            return  # a forked process has begun nothing
        try:
            if self._begun:
                self._close_stream()
        finally:
            self._end()

    def __enter__(self) -> SteppedSend:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Dropped in the middle.  (No lock is taken here: a finalizer runs anywhere.)
        if getattr(self, "_has_turn", False):
            with contextlib.suppress(Exception):
                self._give_back()

    # --- steps -----------------------------------------------------------------------------------

    def _advance(self) -> bool:
        now = time.monotonic()
        if self._size >= LARGE:
            self._grow(now)
        if not self._has_turn and (self._send_whole(now) or not self._begin_stream(now)):
            return self._sent
        for _ in range(_PARTS):
            went_on = self._send_part(now)
            if self._sent or not self._has_turn or not (went_on or self._grow(now)):
                break
        return self._sent

    def _send_whole(self, now: float) -> bool:
        """Publish the message as one frame, if it fits and it is nobody's turn."""
        sender, words = self._sender, self._words
        side, ring, lock = sender.side, sender.ring, sender.lock
        if side.others_gone(False):
            raise broken_pipe()
        lock.enter(now)
        try:
            free = not words[WR_TURN_BY] and not words[W_OPEN]
            if free and ring.append(self._kind, self._pieces, self._size):
                self._sent = True
                words[WRITES] = (words[WRITES] + 1) & WORD
            side.settle(False)  # step: stepped-settle
        finally:
            lock.release()  # step: stepped-unlock (late)
            lock.leave()
        if self._sent:
            side.wake_readers()  # step: stepped-wake
        return self._sent

    def _begin_stream(self, now: float) -> bool:
        """Take the turn if there is something to do with it; False: wait, or it has been sent."""
        sender, words = self._sender, self._words
        taker = words[WR_TURN_BY]
        if taker and identity.is_alive(taker):
            if taker == identity.token and sender.turn.has_lent_here():
                raise lent_out()
            return False
        if self._grow(now) and self._send_whole(now):
            return False
        # To wait, where the end shows writable, would be in vain; and what a dead sender has left
        # open is to be closed.
        # step: stepped-ready (always)
        if not taker and not words[W_OPEN] and not sender.side.is_ready():
            return False
        turn = sender.turn
        turn.enter(now)
        self._has_turn = True
        sender.side.still_open(WOKEN)  # another thread may have closed it since step() looked
        turn.lent = weakref.ref(self)
        words[WR_TURN_BY] = identity.token  # step: stepped-turn
        # A dead predecessor's: what is lent, and the space that it waited for.
        words[WR_LENT] = 0
        words[WR_WANT] = 0  # step: stepped-want
        return True

    def _send_part(self, now: float) -> bool:
        """The next part, or all in one frame; False: there is no space for it."""
        sender = self._sender
        side, ring, lock = sender.side, sender.ring, sender.lock
        put = False
        lock.enter(now)
        try:
            broken = side.others_gone(True)
            if not broken:
                put = self._put(ring)
            side.settle(False)  # step: stepped-part-settle
        finally:
            lock.release()  # step: stepped-part-unlock (late)
            lock.leave()
        side.wake_readers()  # step: stepped-part-wake
        if broken:
            raise broken_pipe()
        if not self._begun:
            self._give_back()
        return put

    def _put(self, ring: ByteRing) -> bool:
        words = self._words
        if not self._begun:
            close_stream(ring)  # a dead predecessor's  # step: stepped-close-dead
            if ring.append(self._kind, self._pieces, self._size):
                self._sent = True
                words[WRITES] = (words[WRITES] + 1) & WORD
                return True
        quarter = (ring.pages() << PAGE_SHIFT) // 4
        best = min(self._left, quarter)
        head = 0 if self._begun else 2 * ALIGN
        count = min(best, ring.space() - _FRAME - head)
        ready = self._sender.side.is_ready()
        # While the end shows writable there has to be progress, or its watchers spin.
        if count < (min(best, _LEAST) if ready else best):
            return False
        if not self._begun:
            words[W_OPEN] = 1  # before there is anything to close  # step: stepped-open (late 3)
            self._begun = True
            begin = BEGIN_DATA if self._kind == DATA else BEGIN_OBJECT
            append_certainly(ring, begin, self._size.to_bytes(ALIGN, "little"), ALIGN)
        place = self._left.to_bytes(ALIGN, "little")
        self._left -= count
        append_certainly(ring, PART, [place, *self._next(count)], ALIGN + count)
        # Not before: whoever dies in between only leaves an idle ABORT.
        if not self._left:  # step: stepped-end-open (early)
            words[W_OPEN] = 0
            words[WRITES] = (words[WRITES] + 1) & WORD
            self._begun, self._sent = False, True
        return True

    def _next(self, count: int) -> list[memoryview]:
        """The next ``count`` bytes of the message."""
        # (A method, so that no frame of an exception's traceback has them in a variable.)
        taken, self._pieces = cut(self._pieces, count)
        return taken

    def _grow(self, now: float) -> bool:
        """Make the ring larger, if it may be: an end counts as writable before its ring has grown.

        (While something of it is lent it may not.)
        """
        sender, ring = self._sender, self._sender.ring
        if ring.pages() >= ring.limit() or ring.is_lent():
            return False
        sender.grow(ALIGN + aligned(self._left), now)
        return True

    # --- the end ---------------------------------------------------------------------------------

    def _close_stream(self) -> None:
        sender = self._sender
        lock = sender.lock
        if not lock.enter_soon():
            return  # if the lock cannot be had, receivers find the stream without a sender
        try:
            close_stream(sender.ring)  # step: cancel-close
            sender.side.settle(False)  # step: cancel-settle
        finally:
            lock.release()
            lock.leave()
        sender.side.wake_readers()  # step: cancel-wake

    def _end(self) -> None:
        self._over = True
        self._give_back()
        release(self._pieces)
        self._pieces = []

    def _give_back(self) -> None:
        if self._has_turn and identity.token == self._token:
            turn = self._sender.turn
            turn.lent = None  # first: interrupted from here on, the turn is one left behind
            # Before the turn goes: the next one's name must not be taken away.
            self._words[WR_TURN_BY] = 0  # step: stepped-turn-over (late 2)
            self._has_turn = False
            turn.let_go()
