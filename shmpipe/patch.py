"""``install()``: the pipes that multiprocessing makes, for queues and pools too, are shmpipe's."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .connection import Connection, Pipe


def _context_pipe(
    self: multiprocessing.context.BaseContext, duplex: bool = True, **options: Any
) -> tuple[Connection, Connection]:
    """``shmpipe.Pipe()``, made for this context."""
    options.setdefault("context", self)
    return Pipe(duplex, **options)


_context_pipe.__name__ = "Pipe"
_context_pipe.__qualname__ = "BaseContext.Pipe"

# Where Pipe is looked up when a pipe is made, in Python 3.10 to 3.13: by users and
# concurrent.futures; by queues, pools and managers, and through a name that was bound by
# ``from multiprocessing import Pipe`` before; and by whoever has a context.
_PLACES: tuple[tuple[Any, Any], ...] = (
    (multiprocessing, Pipe),
    (multiprocessing.connection, Pipe),
    (multiprocessing.context.BaseContext, _context_pipe),
)

# Reentrant: a signal handler may fork, or use `installed`, in the middle of the functions below.
_lock = threading.RLock()
_depth = 0  # more than 0 while anything is in place, so that a handler does not take it for found
_originals: list[Any] = []

# A child forked by one thread while another is in here would find the lock taken for good.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def install() -> None:
    """Make ``multiprocessing.Pipe``, and every context's ``Pipe``, `shmpipe.Pipe`.

    Queues, pools and executors made from then on use it; what exists already stays as it is, and so
    does a name that was bound by ``from multiprocessing.connection import Pipe`` before.  Each
    call needs its `uninstall`; the last of these brings the standard library's Pipe back.  Forked
    children have it installed too, those of other start methods only if they call this themselves;
    to use the connections, queues and the like that they are given, they need not.
    """
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _originals[:] = [vars(owner)["Pipe"] for owner, _ in _PLACES]
            for owner, ours in _PLACES:
                owner.Pipe = ours


def uninstall() -> None:
    """Undo one `install`; pipes and queues in use go on working.

    A place where somebody else has put another Pipe meanwhile keeps that one.  RuntimeError: not
    installed.
    """
    global _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("uninstall() without an install() before it")
        if _depth == 1:
            for (owner, ours), original in zip(_PLACES, _originals, strict=True):
                if vars(owner)["Pipe"] is ours:
                    owner.Pipe = original
        _depth -= 1


@contextmanager
def installed() -> Iterator[None]:
    """``with installed():`` calls `install` now and `uninstall` at the end of the block."""
    install()
    try:
        yield
    finally:
        uninstall()
