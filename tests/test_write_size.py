"""F_SETPIPE_WRITE_SZ and the policies' marks: POLLOUT's level, and whom a change wakes."""

from __future__ import annotations

import time
from typing import Any

import pytest

import shmpipe

from .kinds import (
    POLICIES,
    asleep,
    both_runners,
    fill,
    page,
    pipe_of,
    policy_options,
    resize,
    start,
    unread,
)
from .pollers import stand, writable
from .support import PAGE, eventually, run_child

early_and_late = pytest.mark.parametrize("early", [True, False], ids=["early", "late"])

# ---------------------------------------------------------------- write sizes and policies


def ready_pages(policy: str, pages: int, write_pages: int) -> int:
    """The most used pages with which the write end is still writable."""
    if policy == "write-size":
        return pages - write_pages
    return pages // 2 if policy == "half" else pages - 1


@early_and_late
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [1, 2, 4, 16])
def test_writable_as_the_policy_says(early: bool, policy: str, pages: int) -> None:
    write_sizes = [1, 2, 3, 4, 8, 15, 16] if policy == "write-size" else [1]
    for write_pages in write_sizes:
        if write_pages > pages:
            continue
        options: dict[str, Any] = {"wake": policy, "write_size": write_pages * PAGE}
        most = ready_pages(policy, pages, write_pages)
        with pipe_of("shmpipe", pages, **options) as (r, w):
            if early:
                stand(w)
            for used in range(1, pages + 1):
                w.write(bytes(PAGE))
                if early or used == pages:
                    assert writable(w) == (used <= most), used
            for used in reversed(range(pages)):
                r.read(PAGE - 1)
                assert writable(w) == (used + 1 <= most), used + 1
                r.read(1)
                assert writable(w) == (used <= most), used


@pytest.mark.parametrize("side", ["r", "w"])
@pytest.mark.parametrize("used", range(5))
def test_setting_the_write_size_moves_the_mark_at_once(side: str, used: int) -> None:
    with pipe_of("shmpipe", 4) as (r, w):
        stand(w)
        fill(w, used)
        for write_pages in (4, 1, 3, 2, 1, 4, 2):
            end = r if side == "r" else w
            shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, write_pages * PAGE)
            assert writable(w) == (4 - used >= write_pages), write_pages


@early_and_late
def test_write_size_is_not_looked_at_by_write(early: bool) -> None:
    with pipe_of("shmpipe", 4, nonblocking=True, write_size=4 * PAGE) as (r, w):
        if early:
            stand(w)
        for _ in range(4):
            assert w.write(bytes(PAGE)) == PAGE
            assert not writable(w)
        assert w.write(b"x") is None
        r.read(3 * PAGE)
        assert not writable(w)
        assert w.write(b"x") == 1
        r.read(1 << 20)
        assert writable(w)


@pytest.mark.parametrize("write_pages", [1, 2, 4])
def test_resizing_moves_the_mark(write_pages: int) -> None:
    with pipe_of("shmpipe", 4, write_size=write_pages * PAGE) as (r, w):
        stand(w)
        fill(w, 4)
        for end, pages in ((r, 8), (w, 4), (w, 16), (r, 4), (r, 8)):
            resize(end, pages)
            assert writable(w) == (pages - 4 >= write_pages), pages


@pytest.mark.parametrize("policy", POLICIES)
def test_without_reader_always_writable(policy: str) -> None:
    with pipe_of("shmpipe", 4, wake=policy) as (r, w):
        stand(w)
        fill(w, 4)
        assert not writable(w)
        r.close()
        assert writable(w)


# ---------------------------------------------------------------- the write size changes meanwhile


@both_runners
@pytest.mark.parametrize("side", ["r", "w"])
def test_lowering_the_write_size_wakes_nobody_by_itself(how: str, side: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options("write-size", 4)) as (r, w):
        fill(w, 4)
        writer = start(how, w.write, page(5), close=[r])
        asleep(writer)
        r.read(2 * PAGE)
        asleep(writer)
        end = r if side == "r" else w
        shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, PAGE)
        asleep(writer)
        assert unread(r) == 2 * PAGE
        r.read(PAGE - 1)
        asleep(writer)
        r.read(1)
        assert writer.join() == PAGE
        assert r.read(1 << 20) == page(3) + page(5)


@both_runners
@pytest.mark.parametrize("side", ["r", "w"])
def test_raising_the_write_size_holds_for_those_who_sleep(how: str, side: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options("write-size", 1)) as (r, w):
        fill(w, 4)
        writer = start(how, w.write, page(5), close=[r])
        asleep(writer)
        end = r if side == "r" else w
        shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 3 * PAGE)
        for used in (3, 2):
            r.read(PAGE)
            asleep(writer)
            assert w.stats().pages_used == used
        r.read(PAGE)
        assert writer.join() == PAGE
        assert w.stats().pages_used == 2


@both_runners
def test_woken_writer_goes_on_with_any_free_page(how: str) -> None:
    """The write size decides when it wakes, not what it takes: it fills the pipe."""
    with pipe_of("shmpipe", 4, **policy_options("write-size", 3)) as (r, w):
        fill(w, 4)
        writer = start(how, w.write, bytes(5 * PAGE), close=[r])
        asleep(writer)
        r.read(3 * PAGE)
        eventually(lambda: unread(r) == 4 * PAGE)
        asleep(writer)
        r.read(3 * PAGE)
        assert writer.join() == 5 * PAGE
        assert w.stats().pages_used == 3


# ---------------------------------------------------------------- beside those who sleep


def kill_a_sleeping_writer(r: Any, w: Any) -> None:
    assert unread(r) == 0  # a reader's first call has writers that sleep look again
    fill(w, 4)
    writer = run_child(w.write, page(7), close=[r])
    asleep(writer)
    writer.kill()


@pytest.mark.parametrize("side", ["r", "w"])
def test_write_size_after_a_sleeper_was_killed(side: str) -> None:
    with pipe_of("shmpipe", 4) as (r, w):
        kill_a_sleeping_writer(r, w)
        stand(w)
        r.read(2 * PAGE)
        assert writable(w)
        for write_pages in (3, 2, 4, 1):
            end = r if side == "r" else w
            shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, write_pages * PAGE)
            assert writable(w) == (write_pages <= 2), write_pages


@pytest.mark.parametrize("side", ["r", "w"])
def test_size_after_a_sleeper_was_killed(side: str) -> None:
    with pipe_of("shmpipe", 4) as (r, w):
        kill_a_sleeping_writer(r, w)
        stand(w)
        shmpipe.fcntl(w, shmpipe.F_SETPIPE_WRITE_SZ, 3 * PAGE)
        r.read(2 * PAGE)
        assert not writable(w)
        end = r if side == "r" else w
        for pages in (4, 8, 4):
            resize(end, pages)
            assert writable(w) == (pages - 2 >= 3), pages


@pytest.mark.parametrize("policy", POLICIES)
def test_level_after_a_sleeper_was_killed(policy: str) -> None:
    with pipe_of("shmpipe", 4, wake=policy) as (r, w):
        kill_a_sleeping_writer(r, w)
        stand(w)
        for used in (3, 2, 1, 0):
            r.read(PAGE)
            assert writable(w) == (used <= ready_pages(policy, 4, 1)), used


@pytest.mark.parametrize("case", ["edge-half", "write-size"])
def test_showing_the_level_wakes_no_sleeper(case: str) -> None:
    """Writable by the level, though the policy has given no wake: the sleeper stays asleep."""
    with pipe_of("shmpipe", 4, **policy_options(case, 4)) as (r, w):
        fill(w, 4)
        writer = run_child(w.write, page(7), close=[r])
        asleep(writer)
        try:
            r.read(PAGE)
            shmpipe.fcntl(w, shmpipe.F_SETPIPE_WRITE_SZ, PAGE)
            asleep(writer)
            assert writable(w)
            time.sleep(0.2)  # it may look now and then, but takes nothing
            assert w.stats().pages_used == 3
        finally:
            r.read(1 << 20)
            writer.join()
