"""Messages as frames on a byte ring: what one send publishes and one receive takes.

A frame is an 8-byte header (the kind in the top byte, the length below) and its bytes, padded to a
multiple of 8.  A message that fits the ring is one frame, published by one store: it is there whole
or not at all.  A longer one is streamed:

    BEGIN total   PART left bytes   PART left bytes ...   until nothing is left
    ABORT                                                 if its sender gives up or dies in between

``left`` is how much of the message comes from this part on, so every part tells its own place in
the message, and the last one that it is the last.  No word beside the ring says how far a stream
has come; only positions do, and one store of a position moves each side by a whole frame.

Invariants: a process may be killed, or interrupted by a handler that raises, at any instruction.
* Streams do not interleave: their sender holds the writers' *turn* from BEGIN to the end, their
  receiver the readers'.  Whole frames respect a turn that is taken, so none lands inside a stream.
* W_OPEN (writers' lock) is 1 from before BEGIN is published until after the last PART or the ABORT
  is.  So every stream without an end has it set, and whoever gets the turn and finds it set closes
  with ABORT.  It may be set when the stream is not there yet, or over: then the ABORT is idle, and
  is skipped.
* While W_OPEN is set at least the 8 bytes of an ABORT stay free (resizing respects that, too), so
  closing never has to wait.  If they are not free, the ABORT has been published already.
* R_KEEPER (readers' lock and turn) names the process that has a part of a stream: from before the
  BEGIN is taken until after the last PART is; R_BEGAN says where that BEGIN is, or was.  Only that
  process goes on with it.  The others wait while it lives, and touch nothing; once it is gone, or
  has closed its last end (it then clears R_KEEPER itself, whoever has the turn), the stream is
  lost, and is counted, unless its BEGIN is still there.
* A loss is counted by one store, DROPPED = R_LOST + 1, which changes nothing if it is done again:
  R_LOST is how many were lost before the stream at R_BEGAN, and streams are taken one by one.  So
  whoever is killed in the middle of giving one up has that repeated, and a loss is counted once.
* A PART in front that nobody has the beginning of belongs to a lost stream: it is skipped.
* A stream is delivered when all its parts are there; otherwise it is dropped, and counted.
"""

from __future__ import annotations

from typing import Any

from .bytering import ByteRing
from .segment import ALIGN, DROPPED, R_BEGAN, R_LOST, RPOS, W_OPEN, WORD, damaged

DATA, OBJECT, BEGIN_DATA, BEGIN_OBJECT, PART, ABORT = range(1, 7)
WHOLE = {BEGIN_DATA: DATA, BEGIN_OBJECT: OBJECT}
"""What a stream is once all its parts are there."""

LARGE = 1 << 13
"""Bytes of a message for which the ring becomes as large as it may at once.

What was just written is read faster from the cache that all cores share than from another core's
own; in a ring larger than that one, it has got there by the time the ring comes round again.
"""

STREAMED = 1 << 16
"""Bytes from which a message goes in parts if the ring has no space for two of them.

Whole, such messages would be copied in and out in turns; in parts, at the same time.
"""

IN_PARTS = 16 * ALIGN
"""Bytes that a message which would fit the ring takes at most, beside its own, in parts."""


def cut(pieces: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first ``count`` bytes of pieces in a row, and the rest."""
    taken: list[memoryview] = []
    for number, piece in enumerate(pieces):
        if len(piece) > count:
            return [*taken, piece[:count]], [piece[count:], *pieces[number + 1 :]]
        taken.append(piece)
        count -= len(piece)
    return taken, []


def append_certainly(ring: ByteRing, kind: int, content: Any, size: int) -> None:
    """Publish a frame that has been found to fit; under the writers' lock.

    OSError EBADMSG: it does not, so somebody has moved the readers' position back.
    """
    if not ring.append(kind, content, size):
        raise damaged(f"no space any more for a frame of {size} bytes")


def close_stream(ring: ByteRing) -> bool:
    """Close off the stream that a sender has left unfinished; under the writers' lock.

    False: there is none.
    """
    unfinished = bool(ring.view[W_OPEN])
    if unfinished:
        ring.append(ABORT, b"", 0)  # where there is no space for it, it is there
        # Not before: whoever dies in between leaves an idle one more.
        ring.view[W_OPEN] = 0  # step: close-open-last (early)
    return unfinished


def note_beginning(ring: ByteRing) -> None:
    """The stream in front is about to be taken, or given up; under the readers' lock.

    Done already: by somebody who has died since, and may have counted it.
    """
    words = ring.view
    if words[R_BEGAN] != words[RPOS]:  # step: began-again (always)
        words[R_LOST] = words[DROPPED]
        # Not before: a stream that is named here has its number.
        words[R_BEGAN] = words[RPOS]  # step: began-first (early)


def count_lost(ring: ByteRing) -> None:
    """Nobody will receive the stream at R_BEGAN; under the readers' lock, or the readers' turn."""
    ring.view[DROPPED] = (ring.view[R_LOST] + 1) & WORD
