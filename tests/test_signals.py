"""Signals while a call sleeps: it resumes, returns what it has done, or lets the exception out.

The sleeper is the main thread of a forked child, where Python runs its handlers. Each case comes
early, a moment after the call began, and late, when it sleeps for good, since ours sleeps in two
ways in turn.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from .kinds import asleep, both_kinds, drain_slots, fill, page, pipe_of, unread
from .support import PAGE, Child, Flag, eventually, run_child

early_and_late = pytest.mark.parametrize("when", ["early", "late"])


class FromHandler(Exception):
    pass


class Sleeper:
    """A child in the middle of ``call()``, with a handler for SIGUSR2 that counts or raises."""

    def __init__(
        self,
        when: str,
        call: Callable[[], Any],
        then: Callable[[], Any] | None = None,
        *,
        raises: bool = False,
        close: Any,
    ) -> None:
        self._about_to_call, self.handled = Flag(), Flag()

        def handler(*_: Any) -> None:
            self.handled.set()
            if raises:
                raise FromHandler

        def run() -> tuple[Any, Any]:
            signal.signal(signal.SIGUSR2, handler)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._about_to_call.set()
                result = call()
            except (FromHandler, KeyboardInterrupt) as error:
                result = type(error)
                self.handled.set()
            return result, then() if then else None

        self.child: Child = run_child(run, close=close)
        if when == "late":
            asleep(self.child)
        else:
            self._about_to_call.wait()
            time.sleep(0.003)

    def interrupt(self, sig: int = signal.SIGUSR2) -> None:
        self.child.kill(sig)
        self.handled.wait()

    def join(self) -> Any:
        result = self.child.join()
        self._about_to_call.close()
        self.handled.close()
        return result


# ---------------------------------------------------------------- the handler returns


@both_kinds
@early_and_late
def test_read_resumes(kind: str, when: str) -> None:
    with pipe_of(kind) as (r, w):
        sleeper = Sleeper(when, lambda: r.read(10), close=[w])
        sleeper.interrupt()
        asleep(sleeper.child)
        w.write(b"data")
        assert sleeper.join() == (b"data", None)


@both_kinds
@early_and_late
def test_read_resumes_and_sees_end_of_file(kind: str, when: str) -> None:
    with pipe_of(kind) as (r, w):
        sleeper = Sleeper(when, lambda: r.read(10), close=[w])
        sleeper.interrupt()
        asleep(sleeper.child)
        w.close()
        assert sleeper.join() == (b"", None)


@both_kinds
@early_and_late
def test_write_that_has_done_nothing_resumes(kind: str, when: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        sleeper = Sleeper(when, lambda: w.write(page(5)), close=[r])
        sleeper.interrupt()
        asleep(sleeper.child)
        assert r.read(PAGE) == page(0)
        assert sleeper.join() == (PAGE, None)
        assert r.read(1 << 20) == page(1) + page(5)


@both_kinds
@early_and_late
def test_write_returns_the_pages_it_has_done(kind: str, when: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        assert unread(r) == 0  # a reader's first call has writers that sleep look again
        sleeper = Sleeper(when, lambda: w.write(b"x" * 20000), close=[r])
        # In the early case the handler may run before the first page is in.
        eventually(lambda: unread(r) == 2 * PAGE)
        sleeper.interrupt()
        assert sleeper.join() == (2 * PAGE, None)
        assert r.read(1 << 20) == b"x" * (2 * PAGE)


@both_kinds
def test_write_returns_what_it_merged_and_filled(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        w.write(b"a" * 100)
        data = b"m" * 96 + page(1) + page(2)
        sleeper = Sleeper("late", lambda: w.write(data), close=[r])
        sleeper.interrupt()
        assert sleeper.join() == (96 + PAGE, None)
        assert drain_slots(r) == [b"a" * 100 + b"m" * 96, page(1)]


@both_kinds
def test_write_that_was_woken_once_returns_one_page(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        sleeper = Sleeper("late", lambda: w.write(b"x" * 20000), close=[r])
        r.read(PAGE)
        eventually(lambda: unread(r) == 2 * PAGE)
        asleep(sleeper.child)
        sleeper.interrupt()
        assert sleeper.join() == (PAGE, None)
        assert r.read(1 << 20) == page(1) + b"x" * PAGE


def with_timer_signals(call: Callable[[], Any]) -> tuple[Any, int]:
    """``call()`` under a signal every millisecond; its result and how many came."""
    count = 0

    def handler(*_: Any) -> None:
        nonlocal count
        count += 1

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    result = call()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return result, count


@both_kinds
def test_read_under_a_rain_of_signals(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(with_timer_signals, lambda: r.read(10), close=[w])
        time.sleep(0.2)
        assert child.alive()
        w.write(b"data")
        result, count = child.join()
        assert result == b"data"
        assert count > 10


@both_kinds
def test_write_under_a_rain_of_signals(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        child = run_child(with_timer_signals, lambda: w.write(page(7)), close=[r])
        time.sleep(0.2)
        assert child.alive()
        r.read(PAGE)
        result, count = child.join()
        assert result == PAGE
        assert count > 10
        assert r.read(1 << 20) == page(1) + page(7)


# ---------------------------------------------------------------- the handler raises

raising = pytest.mark.parametrize(
    ("sig", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR2, FromHandler)]
)


@both_kinds
@early_and_late
@raising
def test_exception_comes_out_of_read_and_the_pipe_goes_on(
    kind: str, when: str, sig: int, error: type[BaseException]
) -> None:
    with pipe_of(kind) as (r, w):
        sleeper = Sleeper(when, lambda: r.read(10), lambda: r.read(10), raises=True, close=[w])
        sleeper.interrupt(sig)
        asleep(sleeper.child)
        w.write(b"data")
        assert sleeper.join() == (error, b"data")


@both_kinds
@early_and_late
@raising
def test_exception_comes_out_of_write_and_the_pipe_goes_on(
    kind: str, when: str, sig: int, error: type[BaseException]
) -> None:
    with pipe_of(kind, 2) as (r, w):
        sleeper = Sleeper(
            when,
            lambda: w.write(b"x" * 20000),
            lambda: w.write(b"y" * 100),
            raises=True,
            close=[r],
        )
        eventually(lambda: unread(r) == 2 * PAGE)
        sleeper.interrupt(sig)
        asleep(sleeper.child)
        # What was in when the handler raised stays in.
        assert unread(r) == 2 * PAGE
        assert r.read(PAGE) == b"x" * PAGE
        assert sleeper.join() == (error, 100)
        assert r.read(1 << 20) == b"x" * PAGE + b"y" * 100


@both_kinds
@early_and_late
def test_exception_before_anything_was_written(kind: str, when: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        before = fill(w, 2)
        sleeper = Sleeper(when, lambda: w.write(page(7)), close=[r], raises=True)
        sleeper.interrupt()
        assert sleeper.join() == (FromHandler, None)
        assert r.read(1 << 20) == before
        assert w.write(b"again") == 5
        assert r.read(10) == b"again"


# ---------------------------------------------------------------- a wake is not lost with a sleeper


def result_or_interrupt(call: Callable[[], Any]) -> Any:
    """``call()``, or KeyboardInterrupt; a signal that comes after the call changes nothing."""

    def interrupt(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        result = call()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return result
    except KeyboardInterrupt:
        return KeyboardInterrupt


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("signal_first", [True, False])
def test_interrupted_reader_leaves_the_data_to_the_next(kind: str, signal_first: bool) -> None:
    for _ in range(5):
        with pipe_of(kind) as (r, w):
            first = run_child(result_or_interrupt, lambda: r.read(1), close=[w])
            asleep(first)
            second = run_child(lambda: r.read(1), close=[w])
            asleep(second)
            if signal_first:
                os.kill(first.pid, signal.SIGINT)
            w.write(b"x")
            if not signal_first:
                os.kill(first.pid, signal.SIGINT)
            # The first reader may have taken the byte along into its exception; if not, the second
            # must not sleep beside it.
            eventually(lambda: unread(w) == 0)
            assert first.join() in (b"x", KeyboardInterrupt)
            if first.join() == b"x":
                asleep(second)
            w.write(b"y")
            assert second.join() in (b"x", b"y")


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("signal_first", [True, False])
def test_interrupted_writer_leaves_the_page_to_the_next(kind: str, signal_first: bool) -> None:
    for _ in range(5):
        with pipe_of(kind, 1) as (r, w):
            fill(w, 1)
            first = run_child(result_or_interrupt, lambda: w.write(page(1)), close=[r])
            asleep(first)
            second = run_child(w.write, page(2), close=[r])
            asleep(second)
            if signal_first:
                os.kill(first.pid, signal.SIGINT)
            r.read(PAGE)
            if not signal_first:
                os.kill(first.pid, signal.SIGINT)
            # One of them fills the page, the first perhaps without living to tell.
            eventually(lambda: unread(r) == PAGE)
            assert first.join() in (PAGE, KeyboardInterrupt)
            written = r.read(PAGE)
            assert written in (page(1), page(2))
            assert second.join() == PAGE
            if written == page(1):
                assert r.read(PAGE) == page(2)
