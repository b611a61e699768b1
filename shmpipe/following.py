"""Falling back from a sender whom one follows too closely.

A receiver that waits for each message and takes it at once makes all that the two share go from one
core's cache to the other's: the message, which is still in the sender's, and, with each look, the
position.  Both wait for these lines, so the sender never comes ahead, and it goes on like that.  If
the receiver stays away for once, the sender fills the ring, and from there on each finds what it
needs in the cache that all cores share.  The same two are then up to three times as fast.

**The rule: where one would wait once more, after some waits, do nothing for a moment, and see if
the sender is faster when it is left alone.**  If it is, stay away until it is far enough ahead.  If
not, that is its own speed, or it waits for an answer: do so again after twice as many waits.

Nothing depends on it but time: all looks that sleeping needs come after it.
"""

from __future__ import annotations

import time

from . import primitives
from .ring import Ring
from .segment import PAGE_SHIFT, WPOS

OFTEN = 64
"""Waits after which it is tried; where it is in vain, up to SELDOM."""
SELDOM = 1 << 16
COMPARED = 16
"""So many of these waits, the last ones, tell how fast the sender is when it is followed."""
MOMENT = 10e-6
"""Seconds without a look, for a start."""
LONGEST = 200e-6
"""Seconds more, at most, for a sender that is faster alone."""
FASTER = 1.25
"""What is faster."""
AHEAD = 1 << 20
"""Bytes that are far enough; smaller rings than two of it lie in the cores' own caches."""
PATIENT = 0.01
"""Seconds that a call must have left."""


class Follower:
    """How closely one process has been following the senders of a ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.words = self.ring.words
        self.left = OFTEN  # waits, until the next time
        self.often = OFTEN
        self.since = 0.0
        self.start = 0

    def waits(self) -> None:
        """To be called before each wait for data that begins with spinning."""
        self.left -= 1
        if self.left <= COMPARED:
            self._compare()

    def _compare(self) -> None:
        if self.left <= 0:
            gained = self._may_get_far() and self._fall_back()
            self.often = OFTEN if gained else min(2 * self.often, SELDOM)
            self.left = self.often
        elif self.left == COMPARED:
            self.since = time.monotonic()
            self.start = self.words[WPOS]

    def _may_get_far(self) -> bool:
        return self.ring.limit() << PAGE_SHIFT >= 2 * AHEAD

    def _fall_back(self) -> bool:
        """Stay away; whether the sender came ahead faster than before."""
        words = self.words
        begun, here = time.monotonic(), words[WPOS]
        time_before, came_before = begun - self.since, here - self.start
        primitives.idle(MOMENT)
        took, came = time.monotonic() - begun, words[WPOS] - here
        enough = min(AHEAD, self.ring.pages() << PAGE_SHIFT >> 1)
        if 0 < came < enough and came * time_before > FASTER * came_before * took:
            primitives.idle(min(took * (enough - came) / came, LONGEST))
            took, came = time.monotonic() - begun, words[WPOS] - here
        # A full ring has held the sender up: it may grow now, and then is the time to compare.
        return came >= enough or came * time_before > FASTER * came_before * took
