"""Edge-triggered epoll: the edges on which a correct user relies.

Such a user goes on until a call would block or comes back short, and then waits for the next edge;
so one must come for data after a read that drained the pipe, for space after a write that was
refused or cut short, and for the other side's end. More edges than the kernel's are allowed.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import pytest

import shmpipe

from .kinds import (
    KINDS,
    POLICIES,
    asleep,
    both_kinds,
    both_runners,
    fill,
    page,
    pipe_of,
    resize,
    start,
)
from .support import PAGE, run_child, run_thread

EDGE = select.EPOLLET


class Edges:
    """One edge-triggered registration."""

    def __init__(self, end: Any) -> None:
        self.epoll = select.epoll()
        wanted = select.EPOLLIN if end.readable() else select.EPOLLOUT
        self.epoll.register(end, wanted | EDGE)

    def came(self, timeout: float = 0) -> bool:
        return bool(self.epoll.poll(timeout))

    def used_up(self) -> None:
        """Swallow what there is; a state that does not change gives no edges without end."""
        for _ in range(3):
            if not self.came():
                return
        raise AssertionError("edge after edge though nothing happens")

    def __enter__(self) -> Edges:
        return self

    def __exit__(self, *_: object) -> None:
        self.epoll.close()


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A non-blocking pipe of four pages."""
    with pipe_of(request.param, 4, nonblocking=True) as both:
        yield both


# ---------------------------------------------------------------- read end


def test_registration_shows_what_is_there(ends: tuple[Any, Any]) -> None:
    r, w = ends
    with Edges(r) as edges:
        assert not edges.came()
    with Edges(w) as edges:
        assert edges.came()
    fill(w, 4)
    with Edges(r) as edges:
        assert edges.came()
        edges.used_up()
    with Edges(w) as edges:
        assert not edges.came()


def test_data_after_a_read_that_would_have_blocked(ends: tuple[Any, Any]) -> None:
    r, w = ends
    with Edges(r) as edges:
        for count in range(1, 50):
            w.write(bytes(count * 300))
            assert edges.came()
            while r.read(1000) is not None:
                pass
            edges.used_up()


def test_data_after_a_read_that_drained_the_pipe(ends: tuple[Any, Any]) -> None:
    r, w = ends
    with Edges(r) as edges:
        for count in range(1, 50):
            w.write(bytes(count))
            assert edges.came()
            # Exactly what is there, or a count that comes back short.
            assert len(r.read(count if count % 2 else 1000)) == count
            edges.used_up()


def test_data_after_a_read_that_would_have_blocked_before_any(ends: tuple[Any, Any]) -> None:
    r, w = ends
    with Edges(r) as edges:
        assert r.read(1) is None
        w.write(b"x")
        assert edges.came()


def test_data_that_comes_between_edge_and_read(ends: tuple[Any, Any]) -> None:
    r, w = ends
    with Edges(r) as edges:
        for _ in range(20):
            w.write(b"a")
            assert edges.came()
            w.write(b"b")
            assert r.read(10) == b"ab"
            w.write(b"c")
            assert edges.came()
            assert r.read(10) == b"c"
            assert r.read(10) is None


@pytest.mark.parametrize("left", [0, 1, 5000])
@pytest.mark.parametrize("seen", [True, False])
def test_end_of_file(ends: tuple[Any, Any], left: int, seen: bool) -> None:
    r, w = ends
    with Edges(r) as edges:
        w.write(bytes(left))
        if seen:
            edges.used_up()
        w.close()
        assert edges.came()
        assert len(r.read(1 << 20)) == left
        assert r.read(1) == b""


# ---------------------------------------------------------------- write end


@pytest.mark.parametrize("how", ["refused", "short"])
@pytest.mark.parametrize("late", [True, False])
def test_space_after_a_full_pipe(ends: tuple[Any, Any], how: str, late: bool) -> None:
    r, w = ends
    if late:
        fill(w, 4)
        assert w.write(b"x") is None
        r.read(1 << 20)
    with Edges(w) as edges:
        assert edges.came()
        for count in range(20):
            if how == "refused":
                while w.write(bytes(1500)) is not None:
                    pass
            else:
                size = 4 * PAGE + 100
                while w.write(bytes(size)) == size:
                    pass
            edges.used_up()
            # A page freed by one read, a page by two, everything.
            if count % 3 == 0:
                r.read(PAGE)
            elif count % 3 == 1:
                r.read(1)
                r.read(PAGE - 1)
            else:
                r.read(1 << 20)
            assert edges.came()
            r.read(1 << 20)


@pytest.mark.parametrize("event", ["page freed", "drained", "grown", "reader closed"])
@pytest.mark.parametrize("late", [True, False])
def test_registered_while_full(ends: tuple[Any, Any], event: str, late: bool) -> None:
    r, w = ends
    if not late:
        w.fileno()
    fill(w, 4)
    assert w.write(page(0)) is None
    with Edges(w) as edges:
        assert not edges.came()
        if event == "page freed":
            r.read(PAGE)
        elif event == "drained":
            r.read(1 << 20)
        elif event == "grown":
            resize(r, 8)
        else:
            r.close()
        assert edges.came()


@pytest.mark.parametrize("used", [0, 1, 4])
@pytest.mark.parametrize("seen", [True, False])
def test_reader_closes(ends: tuple[Any, Any], used: int, seen: bool) -> None:
    r, w = ends
    with Edges(w) as edges:
        fill(w, used)
        if seen:
            edges.used_up()
        r.close()
        assert edges.came()


@pytest.mark.parametrize("write_pages", [1, 2, 3, 4])
def test_space_of_the_write_size(write_pages: int) -> None:
    with (
        pipe_of("shmpipe", 4, nonblocking=True, write_size=write_pages * PAGE) as (r, w),
        Edges(w) as edges,
    ):
        for _ in range(10):
            while w.write(page(0)) is not None:
                pass
            edges.used_up()
            for free in range(1, 5):
                r.read(PAGE)
                if free == write_pages:
                    assert edges.came()
            while w.write(page(0)) is not None:
                pass
            edges.used_up()
            r.read(1 << 20)
            assert edges.came()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [1, 2, 4])
def test_draining_gives_an_edge_under_every_policy(policy: str, pages: int) -> None:
    with (
        pipe_of("shmpipe", pages, nonblocking=True, wake=policy) as (r, w),
        Edges(w) as edges,
    ):
        for _ in range(10):
            while w.write(page(0)) is not None:
                pass
            edges.used_up()
            r.read(1 << 20)
            assert edges.came()
        shmpipe.fcntl(r, shmpipe.F_SETPIPE_SZ, pages * PAGE)


# ---------------------------------------------------------------- several registrations


@both_kinds
def test_every_registration_gets_the_edge(kind: str) -> None:
    with (
        pipe_of(kind, 2, nonblocking=True) as (r, w),
        Edges(r) as first,
        Edges(r) as second,
        Edges(w) as third,
        Edges(w) as fourth,
    ):
        for _ in range(10):
            while w.write(page(0)) is not None:
                pass
            assert first.came()
            assert second.came()
            third.used_up()
            fourth.used_up()
            while r.read(1000) is not None:
                pass
            assert third.came()
            assert fourth.came()
            first.used_up()
            second.used_up()


def wait_for_edge(end: Any, block: Any) -> bool:
    with Edges(end) as edges:
        while block() is not None:
            pass
        edges.used_up()
        return edges.came(20)


@both_kinds
@both_runners
@pytest.mark.parametrize("event", ["data", "close"])
def test_sleeping_for_an_edge_of_the_read_end(kind: str, how: str, event: str) -> None:
    with pipe_of(kind, 2, nonblocking=True) as (r, w):
        sleeper = start(how, wait_for_edge, r, lambda: r.read(100), close=[w])
        asleep(sleeper)
        if event == "data":
            w.write(b"x")
        else:
            w.close()
        assert sleeper.join()


@both_kinds
@both_runners
@pytest.mark.parametrize("event", ["space", "grow", "close"])
def test_sleeping_for_an_edge_of_the_write_end(kind: str, how: str, event: str) -> None:
    with pipe_of(kind, 2, nonblocking=True) as (r, w):
        sleeper = start(how, wait_for_edge, w, lambda: w.write(page(0)), close=[r])
        asleep(sleeper)
        if event == "space":
            r.read(PAGE)
        elif event == "grow":
            resize(r, 4)
        else:
            r.close()
        assert sleeper.join()


@both_kinds
def test_edges_in_parent_and_child_of_one_end(kind: str) -> None:
    with pipe_of(kind, 2, nonblocking=True) as (r, w), Edges(r) as edges:
        # The child has its own registration, of a descriptor that the parent watches, too.
        child = run_child(wait_for_edge, r, lambda: r.read(100), close=[w])
        thread = run_thread(edges.came, 20)
        asleep(child, thread)
        w.write(b"x")
        assert thread.join()
        assert child.join()
