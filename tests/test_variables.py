"""Looks at the variables of running functions leave nothing behind, and nothing hangs on them.

Python before 3.13 keeps a copy of what was looked at; see ``shmpipe.variables``.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy
import pytest

import shmpipe
from shmpipe import variables

from .kinds import pure_only
from .steps import PACKAGE, interpreted_only
from .support import run_thread

KiB = 1024


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Whatever goes has to go by itself."""
    gc.disable()
    yield
    gc.enable()


def send_late(sender: Any) -> None:
    with contextlib.suppress(TimeoutError):
        sender.send_bytes(bytes(900), timeout=0.01)


def by_thread(sender: Any, handling: Callable[[Callable[[], None]], None]) -> None:
    """Another thread waits for the turn, in vain, while the exception is being handled."""
    at, go = threading.Event(), threading.Event()

    def stay() -> None:
        at.set()
        assert go.wait(30)

    handling(stay)
    sending = run_thread(send_late, sender)
    assert at.wait(30)
    assert not sender.try_send_bytes(bytes(900))
    go.set()
    sending.join()


def by_handler(sender: Any, handling: Callable[[Callable[[], None]], None]) -> None:
    """A signal's handler wants to send while the exception is being handled."""
    refused = []

    def handler(*_: Any) -> None:
        with pytest.raises(RuntimeError, match="reentrant"):
            sender.try_send_bytes(bytes(900))
        refused.append(True)

    handling(lambda: signal.raise_signal(signal.SIGUSR2))
    old = signal.signal(signal.SIGUSR2, handler)
    try:
        send_late(sender)
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert refused


@pure_only
@pytest.mark.parametrize("look", [by_thread, by_handler])
def test_mapping_goes_though_a_look_met_an_exception(look: Callable[..., None]) -> None:
    """(The soak found a mapping that was still there when all ends had been closed.)"""
    receiver, sender = shmpipe.Pipe(False, size=4 * KiB, spin=0)
    with sender.reserve(10):
        pass
    receiver.recv_bytes()
    while sender.try_send_bytes(bytes(500)):
        pass
    part = sender._sender
    assert part is not None
    mappings = weakref.ref(sender._segment.map), weakref.ref(part.window._map)

    def handling(act: Callable[[], None], side: Any = part.side) -> None:
        """``act`` at the time when the TimeoutError of ``send_late`` is being handled."""
        abandon = side.abandon

        def act_first(kind: int) -> None:
            del side.abandon
            act()
            abandon(kind)

        side.abandon = act_first

    look(sender, handling)
    del handling, part
    receiver.close()
    sender.close()
    assert [mapping() for mapping in mappings] == [None, None]


@interpreted_only
def test_a_view_ends_though_somebody_still_has_the_frames_of_its_calls() -> None:
    """Who walks down another thread's stack has them for a moment, which may be a long one."""
    receiver, sender = shmpipe.Pipe(False)
    held: list[FrameType] = []

    def hold(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            held.append(frame)

    with receiver, sender:
        sender.send_bytes(b"a message")
        sys.settrace(hold)
        try:
            with receiver.recv_view() as view:
                assert view == b"a message"
            with sender.reserve(3) as room:
                room[:] = b"two"
        finally:
            sys.settrace(None)
        assert any(frame.f_code.co_name == "_begin" for frame in held)
        assert receiver.recv_bytes() == b"two"


def two_arrays() -> tuple[Any, Any]:
    ends = []
    for _ in range(2):
        receiver, sender = shmpipe.Pipe(False)
        sender.send_array(numpy.arange(10))
        ends.append(receiver)
    return ends[0], ends[1]


def test_blocks_with_arrays_inside_of_each_other() -> None:
    first, second = two_arrays()
    with first, second, first.recv_array_view() as one:
        with second.recv_array_view() as two:
            assert (one == two).all()
        assert len(two) == 0
        assert len(one) == 10
    assert len(one) == 0


class Thing:
    pass


def test_a_block_with_an_array_keeps_nothing_that_is_deleted_behind_it() -> None:
    first, second = two_arrays()
    with first, second:
        thing = Thing()
        gone = weakref.ref(thing)
        with first.recv_array_view() as array:
            assert len(array) == 10
        del thing
        assert gone() is None


def test_a_block_with_an_array_keeps_no_exception() -> None:
    first, second = two_arrays()

    def receive() -> Any:
        thing = Thing()
        try:
            raise ValueError
        except ValueError as error:  # noqa: F841
            with first.recv_array_view() as array:
                assert len(array) == 10
        return weakref.ref(thing)

    with first, second:
        assert receive()() is None


def test_what_locals_gave_is_not_touched() -> None:
    first, second = two_arrays()
    with first, second:
        mine = locals()
        with first.recv_array_view() as array:
            assert len(array) == 10
        assert mine["first"] is first


def test_a_function_that_is_traced_keeps_its_variables() -> None:
    """A debugger may write the copy back into them."""
    thing = Thing()
    found = []

    def traced(thing: Thing) -> Thing:
        found.append(thing)
        return thing

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            found.append(variables.count(frame, thing))
        return look if frame.f_code.co_name == "traced" else None

    sys.settrace(look)
    try:
        assert traced(thing) is thing
    finally:
        sys.settrace(None)
    assert found == [1, thing, 1]


def test_a_function_whose_profiler_looks_keeps_its_variables() -> None:
    """After a profiler's call, too, the interpreter writes the copy back (before Python 3.12)."""
    thing = Thing()
    found = []

    def profiled(thing: Thing) -> Thing:
        len(found)
        return thing

    def look(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "profiled":
            found.append(variables.count(frame, thing))

    sys.setprofile(look)
    try:
        assert profiled(thing) is thing
    finally:
        sys.setprofile(None)
    assert set(found) == {1}


def test_variables_of_a_module_and_of_a_class_stay() -> None:
    namespace = {"count": variables.count, "frame": sys._getframe}
    source = """
thing = object()
assert count(frame(), thing) == 1
class Body:
    same = thing
    assert count(frame(), thing) == 1
    kept = same
assert Body.kept is thing
"""
    exec(source, namespace)  # as a module's
    assert "thing" in namespace
