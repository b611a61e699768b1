"""Messages as frames on a byte ring: what one send publishes and one receive takes.

A frame is an 8-byte header (the kind in the top byte, the length below) and its bytes, padded to a
multiple of 8.  A message that fits the ring is one frame, published by one store: it is there whole
or not at all.  A longer one is streamed:

    BEGIN total   PART bytes   PART bytes ...   until the parts add up to the total
    ABORT                                       if its sender gives up or dies in between

Invariants.
* Streams do not interleave: their sender holds the writers' *turn* from BEGIN to the end, their
  receiver the readers'.  Whole frames respect a turn that is taken, so none lands inside a stream.
* W_PART (writers' lock) counts the bytes still to come of the stream being sent, R_PART (readers'
  lock) those still to be taken.  Whoever gets a turn and finds its count not 0 knows that its
  predecessor died: a sender closes the stream with ABORT, a receiver skips what is left.
* While W_PART is not 0 at least the 8 bytes of an ABORT stay free, so closing never has to wait.
* A stream is delivered when all its parts are there; otherwise it is dropped, and counted.
"""

from __future__ import annotations

import time

from .bytering import ByteRing
from .segment import W_PART

DATA, OBJECT, BEGIN_DATA, BEGIN_OBJECT, PART, ABORT = range(1, 7)
WHOLE = {BEGIN_DATA: DATA, BEGIN_OBJECT: OBJECT}
"""What a stream is once all its parts are there."""


def remaining(deadline: float | None) -> float | None:
    """Seconds until ``deadline``; None: no limit."""
    return None if deadline is None else deadline - time.monotonic()


def close_stream(ring: ByteRing) -> None:
    """Close off the stream that a sender has left unfinished; under the writers' lock."""
    if ring.view[W_PART]:
        ring.view[W_PART] = 0
        ring.append(ABORT, b"", 0)
