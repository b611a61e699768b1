"""What fileno() shows of a pipe's state, to every poller, at every moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import select
from collections.abc import Callable
from typing import Any

import pytest

from .kinds import asleep, both_kinds, fill, pipe_of, resize, set_nonblocking, start, unread
from .pollers import POLLERS, READ_POLLERS, readable, stand, writable
from .support import PAGE, START_METHODS, Flag, run_child, run_process

every_poller = pytest.mark.parametrize("poller", POLLERS)
every_read_poller = pytest.mark.parametrize("poller", READ_POLLERS)
# Registered once, on the new pipe; or only in the state that is asked about.
early_and_late = pytest.mark.parametrize("early", [True, False], ids=["early", "late"])


# ---------------------------------------------------------------- the table of states


def one_byte(r: Any, w: Any) -> None:
    w.write(b"x")


def some_pages(r: Any, w: Any) -> None:
    fill(w, 2)


def all_pages(r: Any, w: Any) -> None:
    fill(w, 4)


def all_pages_short(r: Any, w: Any) -> None:
    for _ in range(4):
        w.write(bytes(2049))


def filled_and_drained(r: Any, w: Any) -> None:
    fill(w, 4)
    r.read(1 << 20)


def page_freed(r: Any, w: Any) -> None:
    fill(w, 4)
    r.read(PAGE)


def page_almost_freed(r: Any, w: Any) -> None:
    fill(w, 4)
    r.read(PAGE - 1)


def merged_on_full(r: Any, w: Any) -> None:
    fill(w, 3)
    w.write(b"x")
    w.write(b"y")


def empty_write(r: Any, w: Any) -> None:
    w.write(b"")


def failed_read(r: Any, w: Any) -> None:
    set_nonblocking(r)
    assert r.read(1) is None


def failed_write(r: Any, w: Any) -> None:
    set_nonblocking(w)
    fill(w, 4)
    assert w.write(b"x") is None


def short_write(r: Any, w: Any) -> None:
    set_nonblocking(w)
    assert w.write(bytes(5 * PAGE)) == 4 * PAGE


def grown(r: Any, w: Any) -> None:
    fill(w, 4)
    resize(r, 8)


def grown_and_shrunk(r: Any, w: Any) -> None:
    fill(w, 4)
    resize(w, 8)
    resize(r, 4)


def writer_gone(r: Any, w: Any) -> None:
    w.close()


def writer_gone_with_data(r: Any, w: Any) -> None:
    w.write(b"x")
    w.close()


def end_of_file_read(r: Any, w: Any) -> None:
    w.close()
    assert r.read(1) == b""


def reader_gone(r: Any, w: Any) -> None:
    r.close()


def reader_gone_with_data(r: Any, w: Any) -> None:
    w.write(b"x")
    r.close()


def reader_gone_and_full(r: Any, w: Any) -> None:
    fill(w, 4)
    r.close()


def reader_gone_and_grown(r: Any, w: Any) -> None:
    fill(w, 4)
    r.close()
    resize(w, 8)


# State of a pipe of 4 pages -> is the read end readable, is the write end writable; None: closed.
State = Callable[[Any, Any], None]
STATES: dict[State, tuple[bool | None, bool | None]] = {
    empty_write: (False, True),
    failed_read: (False, True),
    one_byte: (True, True),
    some_pages: (True, True),
    all_pages: (True, False),
    all_pages_short: (True, False),
    filled_and_drained: (False, True),
    page_freed: (True, True),
    page_almost_freed: (True, False),
    merged_on_full: (True, False),
    failed_write: (True, False),
    short_write: (True, False),
    grown: (True, True),
    grown_and_shrunk: (True, False),
    writer_gone: (True, None),
    writer_gone_with_data: (True, None),
    end_of_file_read: (True, None),
    reader_gone: (None, True),
    reader_gone_with_data: (None, True),
    reader_gone_and_full: (None, True),
    reader_gone_and_grown: (None, True),
}

every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)


@both_kinds
@every_read_poller
@early_and_late
def test_read_end_in_every_state(kind: str, poller: str, early: bool) -> None:
    ask = READ_POLLERS[poller]
    for state, (expected, _) in STATES.items():
        if expected is None:
            continue
        with pipe_of(kind, 4) as (r, w):
            if early:
                stand(r)
                assert not readable(r)
            state(r, w)
            if early:
                assert readable(r) == expected, state.__name__
            for _ in range(2):  # asking changes nothing
                assert ask(r, False, 0) == expected, state.__name__


@both_kinds
@every_poller
@early_and_late
def test_write_end_in_every_state(kind: str, poller: str, early: bool) -> None:
    ask = POLLERS[poller]
    for state, (_, expected) in STATES.items():
        if expected is None:
            continue
        with pipe_of(kind, 4) as (r, w):
            if early:
                stand(w)
                assert writable(w)
            state(r, w)
            if early:
                assert writable(w) == expected, state.__name__
            for _ in range(2):
                assert ask(w, True, 0) == expected, state.__name__


@both_kinds
@every_state
def test_only_hang_up_shows_in_the_other_direction(kind: str, state: State) -> None:
    with pipe_of(kind, 4) as (r, w):
        state(r, w)
        if not r.closed:
            assert select.select([], [r], [r], 0) == ([], [], [])
        if not w.closed:
            broken = r.closed
            assert select.select([w], [], [w], 0) == ([w] if broken else [], [], [])


@both_kinds
@every_read_poller
def test_pollers_wait_for_data(kind: str, poller: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(READ_POLLERS[poller], r, False, 20, close=[w])
        asleep(child)
        w.write(b"x")
        assert child.join()


@both_kinds
@every_poller
def test_pollers_wait_for_space(kind: str, poller: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        child = run_child(POLLERS[poller], w, True, 20, close=[r])
        asleep(child)
        r.read(PAGE)
        assert child.join()


@both_kinds
def test_calls_that_do_not_block_do_not_sleep(kind: str) -> None:
    with pipe_of(kind, 1, nonblocking=True) as (r, w):
        stand(r, w)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(300):
            fill(w, 1)
            assert w.write(b"x") is None
            assert readable(r)
            assert not writable(w)
            assert len(r.read(PAGE)) == PAGE
            assert r.read(1) is None
            assert not readable(r)
            assert writable(w)
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 30


# ---------------------------------------------------------------- in small steps


@both_kinds
@early_and_late
def test_full_pipe_read_byte_by_byte(kind: str, early: bool) -> None:
    with pipe_of(kind, 2) as (r, w):
        if early:
            stand(w)
        fill(w, 2)
        for count, expected in ((1, False), (4094, False), (1, True), (1, True)):
            r.read(count)
            assert writable(w) == expected
        w.write(b"x")
        assert not writable(w)


@both_kinds
@early_and_late
def test_short_pages(kind: str, early: bool) -> None:
    with pipe_of(kind, 2) as (r, w):
        if early:
            stand(w)
        w.write(bytes(2049))
        w.write(bytes(2049))
        assert not writable(w)
        r.read(2048)
        assert not writable(w)
        r.read(1)
        assert writable(w)


@both_kinds
def test_merging_write_on_a_full_pipe_succeeds_while_not_writable(kind: str) -> None:
    with pipe_of(kind, 2, nonblocking=True) as (r, w):
        w.write(bytes(PAGE))
        w.write(b"x")
        for _ in range(3):
            assert not writable(w)
            assert w.write(b"y") == 1
        assert r.read(1 << 20) == bytes(PAGE) + b"xyyy"
        assert writable(w)


@both_kinds
@early_and_late
@pytest.mark.parametrize("pages", [1, 2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_random_steps(kind: str, early: bool, pages: int, seed: int) -> None:
    """Readable iff there is data, writable iff a slot is free, after each of many steps.

    Whether a slot is free is known from the kernel pipe that takes the same steps.
    """
    chance = random.Random(f"{pages}/{seed}")
    with (
        pipe_of(kind, pages, nonblocking=True) as (r, w),
        pipe_of("kernel", pages, nonblocking=True) as (kr, kw),
    ):
        if early:
            stand(r, w)
        for step in range(400):
            count = chance.choice([1, 10, 100, 2049, 4095, 4096, 4097, 9000])
            action = chance.random()
            if action < 0.5:
                assert w.write(bytes(count)) == kw.write(bytes(count))
            elif action < 0.95:
                assert r.read(count) == kr.read(count)
            else:
                new = chance.choice([1, 2, 4, 8])
                for end in (r, kr):
                    try:
                        resize(end, new)
                    except OSError:
                        pass
            # Sometimes not asked for a while: what was shown last must not matter.
            if early or (step > 50 and chance.random() < 0.5):
                assert readable(r) == (unread(r) > 0) == readable(kr), step
                assert writable(w) == writable(kw), step


# ---------------------------------------------------------------- the descriptor itself


@both_kinds
@pytest.mark.parametrize("side", [0, 1])
def test_fileno_stays_the_same(kind: str, side: int) -> None:
    with pipe_of(kind) as ends:
        fd = ends[side].fileno()
        ends[1].write(b"x")
        assert ends[0].read(1) == b"x"
        assert ends[side].fileno() == fd
        assert not os.get_inheritable(fd)
    with pytest.raises(ValueError):
        ends[side].fileno()


def answer_questions(r: Any, w: Any, early: bool, questions: Any) -> None:
    if early:
        stand(r, w)
    while questions.recv():
        questions.send((readable(r), writable(w)))


@both_kinds
@early_and_late
@pytest.mark.parametrize("method", START_METHODS)
def test_level_in_another_process(kind: str, early: bool, method: str) -> None:
    """Two processes watch and use the same ends, and always see the same."""
    questions, theirs = multiprocessing.Pipe()
    with pipe_of(kind, 2) as (r, w), questions, theirs:
        if early:
            stand(r, w)
        process = run_process(method, answer_questions, r, w, early, theirs)

        def shown() -> tuple[bool, bool]:
            questions.send(True)
            there: tuple[bool, bool] = questions.recv()
            assert there == (readable(r), writable(w))
            return there

        for _ in range(3):
            assert shown() == (False, True)
            fill(w, 2)
            assert shown() == (True, False)
            r.read(PAGE)
            assert shown() == (True, True)
            w.write(b"x")
            assert shown() == (True, False)
            r.read(1 << 20)
        questions.send(False)
        process.join()


@both_kinds
def test_data_taken_by_a_process_from_before(kind: str) -> None:
    """It was there before this one began to watch, which was when data was in already."""
    with pipe_of(kind, 2) as (r, w), Flag() as go:

        def read_when_told() -> int:
            go.wait()
            return len(r.read(1 << 20))

        child = run_child(read_when_told, close=[w])
        fill(w, 2)
        stand(r, w)
        assert readable(r)
        assert not writable(w)
        go.set()
        assert child.join() == 2 * PAGE
        if kind == "shmpipe":
            # One of the listed exceptions: this process has declared its own descriptor readable,
            # and nobody else can take that back. The read that follows a readiness does.
            set_nonblocking(r)
            assert r.read(1) is None
        assert not readable(r)
        assert writable(w)


@both_kinds
@early_and_late
def test_changes_by_another_process_show_here(kind: str, early: bool) -> None:
    with pipe_of(kind, 2) as (r, w):
        if early:
            stand(r, w)
        start("child", fill, w, 2, close=[r]).join()
        assert readable(r)
        assert not writable(w)
        assert start("child", r.read, PAGE, close=[w]).join()
        assert readable(r)
        assert writable(w)
        assert start("child", r.read, 1 << 20, close=[w]).join()
        assert not readable(r)
        assert writable(w)
