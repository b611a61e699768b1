"""A lock among all threads of all processes that the kernel drops with its holder.

It is slow, and for rare decisions only: who gets which place, and whether a lock is a dead man's.

It is a flock(2) on a file description of its own, which is made for the purpose by opening the file
anew through /proc.  (On the description that came with the segment it would exclude nobody, because
all holders share that one; and a record lock knows no threads and vanishes when any descriptor of
the file is closed in the process.)  The lock goes with the descriptor, so whatever happens to the
call, it is not left behind.  A child that another thread forks meanwhile closes its copy.

A signal handler that comes here while its thread is inside already shares the lock of the call it
has interrupted, which could not let go of it before the handler ends.  So what is done under the
lock must bear being interrupted by itself.

Where /proc cannot be used, a record lock stands in.  It excludes neither other threads nor those
who have /proc, and is lost if another copy of the pipe's ends is closed at that moment.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable

from .descriptors import Descriptor, owned
from .errors import OutOfTime
from .living import Living

File = tuple[int, int, int]  # device, inode and a mark
_PRIVATE = os.O_CLOEXEC | os.O_APPEND  # by which a description is known that is only for locking
_BEHIND = 1 << 40  # the byte a record lock is on lies far behind the end of any segment
# Seconds between tries: a wait for a flock has no limit, and one for a record lock finds deadlocks
# where there are none.
_AGAIN = 0.001


class _Guard:
    """What one thread locks of one file; closing its descriptor unlocks it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.descriptor: Descriptor | None = None
        self.private = True

    def lock(self, memory: Descriptor, deadline: float | None) -> None:
        """Nothing new if this guard has the lock.  TimeoutError: others had it at ``deadline``."""
        guard = self.descriptor
        if guard is None:
            try:
                guard = owned(os.open, f"/proc/self/fd/{memory.fileno()}", os.O_RDWR | _PRIVATE)
            except (FileNotFoundError, PermissionError):
                guard = owned(os.dup, memory.fileno())  # no crash: only where there is no /proc
                self.private = False
            self.descriptor = guard
        if self.private and deadline is None:
            fcntl.flock(guard.fileno(), fcntl.LOCK_EX)
            return
        while True:
            try:
                if self.private:
                    fcntl.flock(guard.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    # no crash: only where there is no /proc
                    fcntl.lockf(guard.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _BEHIND)
                return
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise OutOfTime("timed out: another process keeps the segment locked") from None
                time.sleep(_AGAIN)


_inside: Living[_Guard] = Living()  # by (file, thread)


def exclusively(
    memory: Descriptor, file: File, act: Callable[[], None], deadline: float | None
) -> None:
    """Call ``act`` while nobody else is in here for the file ``memory``, which ``file`` names.

    TimeoutError: others were at ``deadline``.
    """
    whose = file, threading.get_ident()
    guard = _inside.get(whose)
    mine = None
    try:
        if guard is None or (guard.descriptor is not None and guard.descriptor.closed):
            mine = guard = _Guard(file)
            _inside.put(whose, guard)  # before there is anything that a child could inherit
        # Also a handler: it may have come just before its thread did this.
        guard.lock(memory, deadline)
        act()
    finally:
        locked = None if mine is None else mine.descriptor
        if mine is not None and locked is not None and not locked.closed:
            if mine.private:  # a child may have a copy that it has not closed yet
                fcntl.flock(locked, fcntl.LOCK_UN)
            locked.close()


def _after_fork() -> None:
    """A lock that a thread of the parent has would last as long as the child's copy of it."""
    guards = _inside.all()
    for guard in guards:
        if guard.descriptor is not None:
            guard.descriptor.close()
    if guards:
        _close_unborn({guard.file[:2] for guard in guards})


def _close_unborn(inodes: set[tuple[int, int]]) -> None:
    """Close those that a thread of the parent was just opening, so that nobody knows of them."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return  # and none was opened
    for number in numbers:
        try:
            status = os.fstat(number)
            ours = (status.st_dev, status.st_ino) in inodes
            if ours and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND:
                os.close(number)
        except OSError:
            pass  # the one that listed them


os.register_at_fork(after_in_child=_after_fork)
