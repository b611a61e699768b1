"""Names and what happens in the middle: killed, or interrupted, at every step."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmpipe

from .meeting import LIMIT, files, place, refusal
from .steps import Boom, at_step, boom, die
from .support import Child, ChildDied, Flag, eventually, run_child

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(place.__name__)]

MODULES = ["answers", "naming", "peers", "rendezvous"]  # which are interpreted in both engines


# ---------------------------------------------------------------- killed


def killed_at_steps(
    act: Callable[[int, Flag], None], meet: Callable[[Child, Flag], Any]
) -> set[Any]:
    """What `meet` has seen of children that run `act(number, ready)`, until they are not killed.

    How many steps there are depends on who is faster, so a few more are tried than the first time
    that a child has lived.
    """
    seen, number, lived = set(), 0, 0
    while lived < 20:
        with Flag() as ready:
            child = run_child(act, number, ready)
            seen.add(meet(child, ready))
            if child.alive():
                lived += 1
                child.kill()
            with pytest.raises(ChildDied):
                child.join()
        number += 1
    return seen


def test_killed_at_any_step_of_listening(place: Path) -> None:
    def take(number: int, ready: Flag) -> None:
        with at_step(number, die, MODULES):
            listener = shmpipe.listen("fragile")
        ready.set()
        assert not listener.closed
        signal.pause()

    def meet(child: Child, ready: Flag) -> int | None:
        eventually(lambda: ready.is_set() or not child.alive())
        return refusal("fragile")

    assert killed_at_steps(take, meet) == {0, errno.EADDRINUSE}
    assert refusal("fragile") == 0
    assert files(place) == []


def test_killed_at_any_step_of_accepting() -> None:
    """Who has connected is not left waiting, and nor is the name."""

    def serve(number: int, ready: Flag) -> None:
        with shmpipe.listen("fragile") as listener:
            ready.set()
            select.select([listener], [], [])
            with at_step(number, die, MODULES):
                connection = listener.accept(LIMIT)
            connection.send("welcome")
            signal.pause()

    def meet(child: Child, ready: Flag) -> str:
        ready.wait()
        try:
            with shmpipe.connect("fragile", timeout=LIMIT) as connection:
                text: str = connection.recv(timeout=LIMIT)
                return text
        except (ConnectionResetError, EOFError) as error:
            eventually(lambda: not child.alive())
            assert refusal("fragile") == 0
            return type(error).__name__

    seen = killed_at_steps(serve, meet)
    assert seen == {"ConnectionResetError", "EOFError", "welcome"}


def test_killed_at_any_step_of_connecting() -> None:
    def use(number: int, ready: Flag) -> None:
        with at_step(number, die, MODULES):
            connection = shmpipe.connect("sturdy")
        connection.send("hello")
        signal.pause()

    def meet(child: Child, ready: Flag) -> str | None:
        while True:
            over = not child.alive()
            try:
                with listener.accept(0.01) as connection:
                    text: str = connection.recv(timeout=LIMIT)
                    return text
            except TimeoutError:
                if over:
                    return None
            except EOFError:
                return "EOFError"

    with shmpipe.listen("sturdy") as listener:
        seen = killed_at_steps(use, meet)
    assert seen == {None, "EOFError", "hello"}


# ---------------------------------------------------------------- interrupted


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def collected() -> set[str]:
    """Once those are gone that earlier tests have left to the collector."""
    gc.collect()
    return descriptors()


def same_descriptors(before: set[str]) -> bool:
    if descriptors() != before:
        gc.collect()  # cycles through a traceback are the interpreter's
    return descriptors() == before


def interrupted(call: Callable[[], Any], number: int) -> bool:
    """Whether `call` ended with what was raised at instruction `number` of it."""
    step = at_step(number, boom, MODULES, opcodes=True)
    try:
        with step:
            call().close()
    except Boom:
        return True
    # (One that was raised in a finalizer goes nowhere.)
    return step.reached


@pytest.mark.timeout_s(200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exception_at_any_step_of_listening(place: Path) -> None:
    number, before = 0, collected()
    while interrupted(lambda: shmpipe.listen("i"), number):
        number += 1
        assert same_descriptors(before), f"at step {number}"
        assert refusal("i") == 0, f"at step {number}"
    assert number > 300
    assert files(place) == []


@pytest.mark.timeout_s(200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("who", ["listener", "client"])
def test_exception_at_any_step_of_meeting(who: str) -> None:
    """One side is interrupted, the other one sees that it has gone."""

    def clients() -> None:
        while True:
            with contextlib.suppress(ConnectionResetError, EOFError), shmpipe.connect("i") as ours:
                ours.recv(timeout=LIMIT)

    def listeners() -> None:
        with shmpipe.listen("i") as listener:
            for connection in listener:
                with connection, contextlib.suppress(EOFError):
                    connection.recv(timeout=LIMIT)

    if who == "client":
        child = run_child(listeners)
        shmpipe.connect("i", wait=True, timeout=LIMIT).close()
        number, before = 0, collected()
        while interrupted(lambda: shmpipe.connect("i", timeout=LIMIT), number):
            number += 1
            assert same_descriptors(before), f"at step {number}"
    else:
        with shmpipe.listen("i") as listener:
            child = run_child(clients)
            listener.accept(LIMIT).close()
            number, before = 0, collected()
            while interrupted(lambda: listener.accept(LIMIT), number):
                number += 1
                assert same_descriptors(before), f"at step {number}"
            listener.accept(LIMIT).close()
            child.kill()
    child.kill()
    assert number > 100
