"""Whoever sleeps or watches does nothing: hardly any CPU time, and it is not even scheduled."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import shmpipe
from shmpipe import identity

from .kinds import SETTLE, asleep, both_kinds, fill, make_pipe, page, pipe_of, set_nonblocking
from .pollers import POLLERS, READ_POLLERS, by_epoll
from .support import PAGE, Flag, context_switches, no_descriptors, run_child, run_thread

IDLE = 0.7  # seconds
MOST_CPU = 0.02  # seconds


def cpu_of(call: Callable[[], Any], warm_up: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process during the call, and its result."""
    warm_up()
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, result


def switches_while_idle(children: list[Any]) -> list[int]:
    """How often each child, asleep by now, is scheduled in the next moment."""
    before = [context_switches(child.pid) for child in children]
    time.sleep(IDLE)
    return [context_switches(child.pid) - b for child, b in zip(children, before, strict=True)]


def use(pipes: list[tuple[Any, Any]]) -> None:
    """Leave behind whatever used, watched, slept-on pipes leave behind; empty at the end."""
    for r, w in pipes:
        for _ in range(3):
            fill(w, 2)
            by_epoll(r, False)
            by_epoll(w, True)
            assert len(r.read(1 << 20)) == 2 * PAGE
            set_nonblocking(r)
            assert r.read(1) is None
            set_nonblocking(r, False)
    readers = [run_thread(r.read, 1) for r, _ in pipes]
    time.sleep(2 * SETTLE)
    for (_, w), reader in zip(pipes, readers, strict=True):
        w.write(b"x")
        reader.join()
        fill(w, 2)
    writers = [run_thread(w.write, page(1)) for _, w in pipes]
    time.sleep(2 * SETTLE)
    for (r, _), writer in zip(pipes, writers, strict=True):
        r.read(PAGE)
        writer.join()
        r.read(1 << 20)


@both_kinds
@pytest.mark.parametrize(
    "used", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["new", "used"]
)
def test_sleepers_and_watchers_are_idle(kind: str, used: bool) -> None:
    # Name -> is it about a full pipe's write end, what to call with (end, seconds), is fileno()
    # called before.
    cases: dict[str, tuple[bool, Callable[..., Any], bool]] = {}
    for name, poller in READ_POLLERS.items():
        cases[name] = (False, lambda end, limit, ask=poller: ask(end, False, limit), False)
    for name, poller in POLLERS.items():
        cases[name + ", writing"] = (
            True,
            lambda end, limit, ask=poller: ask(end, True, limit),
            False,
        )
    for early in (False, True):
        cases[f"read, watched: {early}"] = (False, lambda end, _: end.read(1), early)
        cases[f"write, watched: {early}"] = (True, lambda end, _: end.write(page(0)), early)

    pipes = [make_pipe(kind, 2) for _ in cases]
    if used:
        use(pipes)
    children = {}
    for (name, (full, call, early)), (r, w) in zip(cases.items(), pipes, strict=True):
        if full:
            fill(w, 2)
        end = w if full else r
        if early:
            end.fileno()
        sleep = partial(call, end, 30)
        # A poller is asked once before, so that what it imports and makes is not counted.
        warm_up = int if "watched" in name else partial(call, end, 0)
        # The other end stays open in the child: the last one to close it would be an event.
        children[name] = run_child(cpu_of, sleep, warm_up)

    asleep(*children.values())
    switches = switches_while_idle(list(children.values()))
    for r, w in pipes:
        set_nonblocking(r)
        if not r.read(PAGE):
            w.write(b"x")
    for name, child in children.items():
        cpu, result = child.join()
        assert result, name
        assert cpu < MOST_CPU, (name, cpu)
    assert dict(zip(children, switches, strict=True)) == dict.fromkeys(children, 0)
    for ends in pipes:
        for end in ends:
            end.close()


@both_kinds
def test_sleepers_and_watchers_of_the_same_end_are_idle(kind: str) -> None:
    with pipe_of(kind, 1) as (r1, _), pipe_of(kind, 1) as (r2, w2):
        fill(w2, 1)
        calls = [
            lambda: r1.read(1),
            lambda: r1.read(1),
            lambda: by_epoll(r1, False, 30),
            lambda: w2.write(page(0)),
            lambda: w2.write(page(0)),
            lambda: by_epoll(w2, True, 30),
        ]
        children = [run_child(call) for call in calls]
        asleep(*children)
        switches = switches_while_idle(children)
        for child in children:
            child.kill()
        assert switches == [0] * len(children)
        # What the killed ones leave behind disturbs nobody.
        assert r2.read(PAGE) == page(0)
        assert w2.write(page(1)) == PAGE


# ---------------------------------------------------------------- looking after the others


def wait_in_vain(receiver: Any, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        receiver.recv_bytes(timeout=seconds)


def beside(receiver: Any, over: Flag) -> None:
    """A process that uses the pipe, and takes nothing out of it."""
    assert not receiver.poll(0.001)
    over.wait()


def test_without_descriptors_for_a_moment_only() -> None:
    """Who cannot watch the others looks around now and then, for as long as that is so."""
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender, Flag() as over:
        side = receiver._receiver.side
        child = run_child(beside, receiver, over, close=[sender])
        child.wait_asleep()
        wait_in_vain(receiver, 0.1)
        with no_descriptors():
            wait_in_vain(receiver, 0.1)
        assert side.blind is not None
        wait_in_vain(receiver, 0.1)
        assert side.blind is None
        over.set()
        child.join()


def test_short_waits_do_not_watch_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take longer than they do, the more processes use the pipe."""
    watched: list[int] = []
    watch = identity.watch
    monkeypatch.setattr(identity, "watch", lambda token: watched.append(token) or watch(token))
    receiver, sender = shmpipe.Pipe(False, size=4096)
    with receiver, sender, Flag() as over:
        child = run_child(beside, receiver, over, close=[sender])
        child.wait_asleep()
        wait_in_vain(receiver, 0.005)
        while sender.try_send_bytes(bytes(1000)):
            pass
        with pytest.raises(TimeoutError):
            sender.send_bytes(bytes(1000), timeout=0.005)
        assert not watched
        while receiver.try_recv_bytes() is not None:
            pass
        wait_in_vain(receiver, 0.1)
        assert watched
        over.set()
        child.join()


def test_what_a_handler_raises_meanwhile_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender, Flag() as over:
        child = run_child(beside, receiver, over, close=[sender])
        child.wait_asleep()

        def interrupted(token: int) -> Any:
            raise TimeoutError("the handler's")

        with monkeypatch.context() as patched:
            patched.setattr(identity, "watch", interrupted)
            with pytest.raises(TimeoutError, match="the handler's"):
                receiver.recv_bytes(timeout=20)
        sender.send_bytes(b"next")
        assert receiver.recv_bytes() == b"next"
        over.set()
        child.join()
