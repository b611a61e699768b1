"""A lock among processes that the kernel drops when its holder dies; slow, for rare decisions."""

from __future__ import annotations

import fcntl
import os
import threading

_BEHIND = 1 << 40  # the byte it locks lies far behind the end of any segment

_threads = threading.Lock()  # record locks do not tell the threads of a process apart


class RecordLock:
    """The record lock of one segment."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        _threads.acquire()
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _BEHIND)
        except BaseException:
            _threads.release()
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _BEHIND)
        finally:
            _threads.release()


def _after_fork() -> None:
    global _threads
    _threads = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
