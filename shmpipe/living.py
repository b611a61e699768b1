"""Objects found by a key for as long as they live.

Like ``weakref.WeakValueDictionary``, but each operation is one step for other threads, for signal
handlers and for forks: there is no lock that a fork could copy in its locked state or that an
exception could leave behind, and nobody sees a half-made change.
"""

from __future__ import annotations

import weakref

# Takes a key out if its reference is dead, in one step; the standard library's weak dictionaries
# are built on it.
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_ROOM = 16  # entries, dead ones included, before it is worth looking for the dead


class Living(Generic[_T]):
    """Weak references by key."""

    def __init__(self) -> None:
        self._refs: dict[Any, weakref.ref[_T]] = {}
        self._sweep_at = _ROOM

    def get(self, key: Any) -> _T | None:
        ref = self._refs.get(key)
        return None if ref is None else ref()

    def add(self, key: Any, thing: _T) -> _T:
        """Who has the key from now on: ``thing``, or one that came before and is alive."""
        if len(self._refs) >= self._sweep_at:
            self._sweep()
        mine = weakref.ref(thing)
        while True:
            found = self._refs.setdefault(key, mine)()
            if found is not None:
                return found
            _remove_dead_weakref(self._refs, key)

    def put(self, key: Any, thing: _T) -> None:
        """``thing`` has the key, whoever had it."""
        if len(self._refs) >= self._sweep_at:
            self._sweep()
        self._refs[key] = weakref.ref(thing)

    def discard(self, key: Any) -> None:
        self._refs.pop(key, None)

    def all(self) -> list[_T]:
        """Those that are alive, in the order they were added."""
        # A copy of a dict is made in one step in both engines; a compiled loop over a list of its
        # items goes through the dict itself.
        return [thing for ref in self._refs.copy().values() if (thing := ref()) is not None]

    def _sweep(self) -> None:
        for key, ref in self._refs.copy().items():
            if ref() is None:
                _remove_dead_weakref(self._refs, key)
        self._sweep_at = 2 * len(self._refs) + _ROOM
