"""Who uses a segment: its *places*, one for each process.

A place is a cache line: the identity of the process, a 32-bit number for each lock of the segment
(see ``locking``), and in its last word a mark of the object here that has the place.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from errno import EAGAIN

from . import identity

PLACES = 256
PLACE_BYTES = 64

_NUMBERS, _MARK = 1, 7  # words of a place
_LOCKS = 8  # numbers, two to a word
_NO_NUMBERS = memoryview(bytes(8 * (_MARK - _NUMBERS))).cast("Q")

_marks = itertools.count(1)


class Places:
    """The places of a segment, and the one that this process has; it is free when this goes.

    Taking a place and finding out about the dead are done under the segment's file lock.
    """

    mine = -1  # also for an object whose construction failed

    def __init__(self, memory: memoryview) -> None:
        self.numbers = memory.cast("I")
        self._words = memory.cast("Q")
        self._mark = next(_marks)  # not the one of an object that is just going
        self._token = 0
        self._pid = 0
        self.mine = -1

    def number(self, lock: int) -> int:
        """Where in ``numbers`` this process keeps the one for ``lock``."""
        return self.mine * 16 + 2 * _NUMBERS + lock

    def taken(self) -> bool:
        """Whether this process has a place."""
        words, at = self._words, self.mine * 8
        return at >= 0 and words[at] == self._token and words[at + _MARK] == self._mark

    def take(self) -> None:
        """Take a place, if need be.  Also in a handler that has interrupted just this."""
        if self.taken():
            return
        words = self._words
        place = self._find()
        words[place * 8 + _NUMBERS : place * 8 + _MARK] = _NO_NUMBERS
        words[place * 8 + _MARK] = self._mark
        # Known before it is ours: whatever comes between, it is given back.
        self._token, self._pid = identity.token, os.getpid()
        self.mine = place
        words[place * 8] = self._token

    def _find(self) -> int:
        words = self._words
        for place in range(PLACES):
            if not words[place * 8]:
                return place
        for place in range(PLACES):
            # The place of a process that may have died holding a lock still has to tell so.
            first = place * 16 + 2 * _NUMBERS
            odd = any(number & 1 for number in self.numbers[first : first + _LOCKS])
            if not odd and not identity.is_alive(words[place * 8]):
                return place
        raise OSError(EAGAIN, f"more than {PLACES} processes share one pipe")

    def users(self) -> list[int]:
        """The identities of all processes that have a place, dead ones included."""
        return [token for token in self._words[::8].tolist() if token]

    def numbers_of(self, lock: int) -> list[tuple[int, int]]:
        """(identity, where its number for ``lock`` is) of every process that has a place."""
        words = self._words
        places = range(PLACES)
        first = 2 * _NUMBERS + lock
        return [(words[n * 8], n * 16 + first) for n in places if words[n * 8]]

    def forget(self) -> None:
        """In a forked child: the place is the parent's."""
        self.mine = -1

    # (The defaults: when the interpreter ends, modules are emptied first.)
    def __del__(self, getpid: Callable[[], int] = os.getpid, mark: int = _MARK) -> None:
        # Only here: a thread that is still in a call uses its place to the end.  (In a child, what
        # the parent's other threads had of their own goes before anybody is told of the fork.)
        at = self.mine * 8
        if at >= 0 and self._pid == getpid():
            words = self._words
            if words[at] == self._token and words[at + mark] == self._mark:
                words[at] = 0
