"""Every descriptor has one owner: whatever is raised wherever, none is leaked or closed twice."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import shmpipe
from shmpipe.connection import _rebuild as rebuild_connection
from shmpipe.pipe import _rebuild as rebuild_pipe

from .steps import interruptible
from .support import run_child, run_thread

PACKAGE = os.path.dirname(shmpipe.__file__)


class Boom(BaseException):
    pass


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Steps:
    """Raises Boom at one step (bytecode) of shmpipe's own code; says whether there was one."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.raised = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "call":
            frame.f_trace = self  # or Python 3.13 does not see that it wants them
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        if event == "opcode" and not self.raised and interruptible(frame):
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise Boom
        return self

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # or Python 3.12 reports none
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


class Handed:
    """A descriptor on its way here, as multiprocessing hands it over."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        return os.dup(self.fd)


def rebuilt_connection(ends: Any) -> Any:
    end = ends[0]
    memory, sock = end._segment.memory.fileno(), end._bell.writer_fd()
    return lambda: rebuild_connection(Handed(memory), Handed(sock), 0, 1, True, True, None)


def rebuilt_pipe(ends: Any) -> Any:
    end = ends[0]
    memory, sock = end._side.ring.segment.memory.fileno(), end._side.bell.writer_fd()
    return lambda: rebuild_pipe(type(end), Handed(memory), Handed(sock), 16, None)


def first_use(ends: Any) -> Any:
    # The only copy in this process that has not been used yet: it looks for a place.
    ends[1].send(1)
    return ends[0].recv


def watch_a_process(ends: Any) -> Any:
    side = ends[0]._side
    side.ring.segment.places.users = lambda: [os.getppid() << 40] * 2  # identities
    return side.watch_others


CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "Pipe": (tuple, lambda _: shmpipe.Pipe),
    "pipe": (tuple, lambda _: shmpipe.pipe),
    "rebuilt connection": (shmpipe.Pipe, rebuilt_connection),
    "rebuilt pipe": (shmpipe.pipe, rebuilt_pipe),
    "first use": (shmpipe.Pipe, first_use),
    "fileno": (shmpipe.pipe, lambda ends: ends[0].fileno),
    "lend": (shmpipe.Pipe, lambda ends: lambda: [e._segment.lend(e) for e in ends]),
    "watch": (shmpipe.pipe, watch_a_process),
}


@pytest.mark.parametrize("case", CASES)
def test_exception_at_any_step(case: str) -> None:
    make, prepare = CASES[case]
    gc.collect()
    step, raised = 0, True
    before = descriptors()
    while raised:
        ends = list(make())
        steps = Steps(step)
        kept: Any = None
        result = act = None
        try:
            act = prepare(ends)
            with steps.on():
                result = act()  # dropped when nothing is raised any more
        except Boom as boom:
            kept = boom  # its traceback refers to what was half-made
        raised = steps.raised
        while ends:
            ends.pop().close()
        strangers = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]
        del kept, result, act
        for stranger in strangers:
            os.close(stranger)  # EBADF, if somebody has done so already
        if descriptors() != before:
            gc.collect()  # cycles through a traceback are the interpreter's
        assert descriptors() == before, f"at step {step}"
        # Many steps are alike, and some cases have thousands.
        step += 1 if step < 400 else 7


def boom(*_: Any) -> None:
    raise Boom


@pytest.mark.parametrize("make", [shmpipe.Pipe, shmpipe.pipe])
def test_signals_while_ends_are_made_and_dropped(make: Callable[[], Any]) -> None:
    before = descriptors()
    old = signal.signal(signal.SIGALRM, boom)
    raised = 0
    hook, sys.unraisablehook = sys.unraisablehook, bool  # what is raised in finalizers
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0007)
                try:
                    while True:
                        make()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Boom as kept:
                raised += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                strangers = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]
                kept.__traceback__ = kept.__context__ = None
                for stranger in strangers:
                    os.close(stranger)
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGALRM, old)
    gc.collect()
    assert raised
    assert descriptors() == before


def test_close_that_is_interrupted_can_be_repeated() -> None:
    for make in (shmpipe.Pipe, shmpipe.pipe):
        step, raised = 0, True
        while raised:
            first, second = make()
            steps = Steps(step)
            try:
                with steps.on():
                    second.close()
            except Boom as kept:
                kept.__traceback__ = None
            second.close()
            end_of_file(first)
            first.close()
            raised = steps.raised
            step += 1


def end_of_file(end: Any) -> None:
    if isinstance(end, shmpipe.Connection):
        with pytest.raises(EOFError):
            end.recv()
    else:
        assert end.read(1) == b""


def test_forked_while_a_thread_is_in_a_system_call() -> None:
    """Its references are in the child's memory for good, but hold nothing open there."""
    reader, writer = shmpipe.pipe()
    stop = False

    def ask() -> None:
        while not stop:
            writer._side.bell.hung_up()

    asking = run_thread(ask)
    children = []
    for _ in range(20):

        def child() -> None:
            reader.close()
            writer.close()
            time.sleep(20)

        children.append(run_child(child))
    stop = True
    asking.join()
    writer.close()
    assert reader.read(1) == b""
    reader.close()
    for one in children:
        one.kill()
