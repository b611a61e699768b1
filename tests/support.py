"""Shared helpers of the tests: children, threads, waiting without guessing, plain kernel pipes.

Import them relatively (``from .support import run_child``). What there is:

``run_child(fn, *args, close=())``
    Forks; the child closes the objects in `close`, then runs ``fn(*args)``. The returned `Child`
    has ``pid``, ``join(timeout) -> result`` (the child's exception is raised again here, death by a
    signal is `ChildDied`), ``kill(sig)``, ``alive()``, ``exitcode``, ``wait_asleep()``,
    ``cpu_seconds()``. A forked child inherits every open pipe end: name the ones it must not keep
    in `close`, or end-of-file never comes.
``run_process(method, fn, *args)``
    The same through ``multiprocessing.get_context(method)``; `fn` must be importable.
``run_thread(fn, *args)``
    The same interface over a daemon thread, without ``kill``.
``end_of_program(text, directory) -> (exit status, output, errors)``
    Runs a program of its own, which finds the same package.
``eventually(predicate, timeout=5)``
    Polls until the predicate is true and returns its value; AssertionError when time is up.
``Flag()``
    A one-shot event which works across fork: ``set()``, ``is_set()``, ``wait(timeout)``.
``kernel_pipe(size=None, nonblocking=False) -> (reader, writer)``
    Unbuffered file objects over ``os.pipe2``: what shmpipe is compared with.

Everything started here is registered with the watchdog (`conftest.py`), which dumps the stacks of
the test process and of its descendants (SIGUSR1, through `faulthandler`) and then kills them all
when a test exceeds its limit; so tests that need a signal of their own take SIGUSR2 or SIGALRM.
A test must not leave a child or thread running: conftest kills it and fails the test.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
from collections.abc import Iterator

from .children import (
    START_METHODS,
    Child,
    ChildDied,
    ProcessChild,
    ThreadRun,
    end_everything,
    end_of_program,
    register_pid,
    run_child,
    run_process,
    run_thread,
)
from .kernel import PAGE, kernel_may_exceed_max, kernel_pipe, kernel_slots, unread
from .tasks import context_switches, cpu_seconds, eventually, task_state, wait_asleep

__all__ = [
    "PAGE",
    "START_METHODS",
    "Child",
    "ChildDied",
    "Flag",
    "ProcessChild",
    "ThreadRun",
    "context_switches",
    "cpu_seconds",
    "end_everything",
    "end_of_program",
    "eventually",
    "kernel_may_exceed_max",
    "kernel_pipe",
    "kernel_slots",
    "no_descriptors",
    "register_pid",
    "run_child",
    "run_process",
    "run_thread",
    "task_state",
    "unread",
    "wait_asleep",
]


class Flag:
    """One-shot event between processes related by fork, and between threads."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        os.write(self._writer, b"x")

    def is_set(self) -> bool:
        return bool(select.select([self._reader], [], [], 0)[0])

    def wait(self, timeout: float = 30) -> None:
        if not select.select([self._reader], [], [], timeout)[0]:
            raise TimeoutError(f"flag not set within {timeout} s")

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def __enter__(self) -> Flag:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, before[1]))
    hoard = []
    try:
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in hoard:
            os.close(fd)
