"""Wake policies: which reads wake a writer that sleeps on a full pipe, and which do not.

In the words of the rules: N is the pipe's size in pages, B the pages used just before a read frees
one, A = B - 1 those just after, W the write size in pages. The stock kernel is `full-edge`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import shmpipe

from .kinds import (
    POLICIES,
    asleep,
    both_runners,
    drain_slots,
    fill,
    is_kernel,
    page,
    pipe_of,
    policy_options,
    resize,
    start,
    unread,
)
from .support import PAGE, eventually, run_child, run_thread

every_policy = pytest.mark.parametrize("policy", POLICIES)
# How long the writer has been asleep: it begins on a semaphore and changes to its doorbell later.
LATE = pytest.param("late", marks=pytest.mark.slow)
early_and_late = pytest.mark.parametrize("when", ["early", LATE])


def first_wake(policy: str, pages: int, write_pages: int = 1) -> int:
    """The A at which a writer that fell asleep at A = N is woken, reading page by page."""
    return {
        "page": pages - 1,
        "half": min(pages // 2, pages - 1),
        "write-size": pages - write_pages,
        "edge-half": pages // 2 - 1 if pages > 1 else 0,
        "full-edge": pages - 1,
    }[policy]


def wakes_at_once(policy: str, pages: int, after: int, write_pages: int = 1) -> bool:
    """Whether one read of all but `after` pages of a full pipe wakes."""
    passed = range(after, pages)
    return {
        "page": True,
        "half": any(a <= pages // 2 for a in passed),
        "write-size": any(pages - a >= write_pages for a in passed),
        "edge-half": pages == 1 or pages // 2 - 1 in passed,
        "full-edge": True,
    }[policy]


def fall_asleep(when: str, writer: Any, end: Any, sleeps: int) -> None:
    if when == "late":
        asleep(writer)
    else:
        eventually(lambda: end.stats().writer_sleeps >= sleeps)


CASES = [
    (policy, pages, write_pages)
    for policy in POLICIES
    for pages in (16, 4, 2, 1)
    for write_pages in ((1, 2, 4, 16) if policy == "write-size" else (1,))
    if write_pages <= pages
]
every_case = pytest.mark.parametrize(("policy", "pages", "write_pages"), CASES)


def test_the_table() -> None:
    """`first_wake` says what the rules' table says."""
    table = {16: (15, 8, 12, 7, 15), 4: (3, 2, 0, 1, 3), 2: (1, 1, 0, 0, 1), 1: (0, 0, 0, 0, 0)}
    policies = ("page", "half", "write-size", "edge-half", "full-edge")
    for pages, row in table.items():
        assert tuple(first_wake(policy, pages, min(4, pages)) for policy in policies) == row


# ---------------------------------------------------------------- which reads wake


@pytest.mark.parametrize(
    ("kind", "policy", "pages", "write_pages"),
    [pytest.param("kernel", "full-edge", n, 1, marks=pytest.mark.slow) for n in (16, 4, 2, 1)]
    + [("shmpipe", *case) for case in CASES],
)
def test_reading_page_by_page(kind: str, policy: str, pages: int, write_pages: int) -> None:
    options = {} if kind == "kernel" else policy_options(policy, write_pages)
    rounds = 2
    wake = first_wake(policy, pages, write_pages)
    with pipe_of(kind, pages, **options) as (r, w):
        fill(w, pages)
        # Each time it is woken it fills all that is free, and sleeps again on a full pipe.
        freed = pages - wake
        writer = run_child(w.write, bytes(rounds * freed * PAGE), close=[r])
        asleep(writer)
        for left in reversed(range(rounds)):
            for after in range(pages - 1, wake, -1):
                r.read(PAGE)
                if after - wake in (1, 2):  # for the others the counts below have to do
                    asleep(writer)
                assert unread(r) == after * PAGE, f"woken at A = {after}"
            r.read(PAGE)
            eventually(lambda: unread(r) == pages * PAGE, what=f"not woken at A = {wake}")
            if left:
                asleep(writer)
        assert writer.join() == rounds * freed * PAGE
        if not is_kernel(r):
            stats = r.stats()
            assert stats.writer_sleeps == rounds
            assert stats.writer_wakes == rounds
            assert stats.writer_wakes_withheld == rounds * (freed - 1)


@pytest.mark.parametrize(
    ("policy", "pages", "write_pages", "when"),
    [(*case, "early") for case in CASES]
    + [pytest.param(*case, "late", marks=pytest.mark.slow) for case in CASES if case[1] == 4],
)
def test_reading_several_pages_at_once(
    policy: str, pages: int, write_pages: int, when: str
) -> None:
    with pipe_of("shmpipe", pages, **policy_options(policy, write_pages)) as (r, w):
        for sleeps, after in enumerate(sorted({pages - 1, pages // 2, pages // 2 - 1, 0}), 1):
            if not 0 <= after < pages:
                continue
            fill(w, pages - w.stats().pages_used)
            before = r.stats()
            writer = run_thread(w.write, page(0))
            fall_asleep(when, writer, w, before.writer_sleeps + 1)
            assert len(r.read((pages - after) * PAGE)) == (pages - after) * PAGE
            woken = r.stats().writer_wakes - before.writer_wakes
            expected = wakes_at_once(policy, pages, after, write_pages)
            assert woken == expected, f"A = {after}, round {sleeps}"
            assert r.stats().writer_wakes_withheld - before.writer_wakes_withheld == 1 - expected
            if not expected:
                asleep(writer)
                assert unread(r) == after * PAGE
                # Draining wakes under every policy.
                assert len(r.read(1 << 20)) == after * PAGE
            assert writer.join() == PAGE
            assert r.stats().writer_wakes - before.writer_wakes == 1
            r.read(1 << 20)


@pytest.mark.parametrize("pages", [1, 2, 4, 16])
def test_write_size_at_every_mark(pages: int) -> None:
    """For each A and W: the read that frees the page at A wakes iff N - A >= W.

    To be asleep at all with A + 1 pages used the writer needs a larger W until then; setting W
    wakes nobody.
    """
    pairs = [(a, w) for a in range(pages) for w in range(1, pages + 1)]
    chance = random.Random(pages)
    for after, write_pages in chance.sample(pairs, min(len(pairs), 24)):
        with pipe_of("shmpipe", pages, **policy_options("write-size", pages)) as (r, w):
            fill(w, pages)
            writer = run_thread(w.write, page(0))
            eventually(lambda w=w: w.stats().writer_sleeps == 1)
            for _ in range(pages - 1 - after):
                r.read(PAGE)
            assert r.stats().writer_wakes == 0
            end = chance.choice([r, w])
            assert shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, write_pages * PAGE) > 0
            assert r.stats().writer_wakes == 0
            r.read(PAGE)
            woken = pages - after >= write_pages
            assert r.stats().writer_wakes == woken, (after, write_pages)
            if not woken:
                asleep(writer)
                r.read(1 << 20)
            assert writer.join() == PAGE


@every_policy
def test_bytes_that_free_no_page_wake_nobody(policy: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writer = run_thread(w.write, page(0))
        asleep(writer)
        for _ in range(4):
            r.read(1000)
        stats = r.stats()
        assert (stats.writer_wakes, stats.writer_wakes_withheld) == (0, 0)
        asleep(writer)
        r.read(1 << 20)
        assert writer.join() == PAGE


@every_policy
def test_nothing_is_counted_while_nobody_sleeps(policy: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        for _ in range(3):
            fill(w, 4)
            for _ in range(4):
                r.read(PAGE)
        stats = r.stats()
        assert (stats.writer_wakes, stats.writer_wakes_withheld) == (0, 0)
        assert (stats.reader_wakes, stats.reader_wakes_withheld) == (0, 0)
        assert (stats.reader_sleeps, stats.writer_sleeps) == (0, 0)


# ---------------------------------------------------------------- other wakes


@every_policy
@early_and_late
def test_growing_wakes(policy: str, when: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writer = run_child(w.write, page(7), close=[r])
        fall_asleep(when, writer, w, 1)
        resize(r if when == "early" else w, 8)
        assert writer.join() == PAGE
        assert w.stats().pages_used == 5


@pytest.mark.parametrize(
    ("policy", "used", "new", "woken"),
    [
        ("half", 10, 16, True),
        ("edge-half", 10, 16, True),
        ("write-size", 7, 16, True),
        ("write-size", 7, 8, True),
        ("write-size", 8, 8, False),
    ],
)
@early_and_late
def test_resize_wakes_those_who_sleep_beside_free_pages(
    policy: str, used: int, new: int, woken: bool, when: str
) -> None:
    with pipe_of("shmpipe", 16, **policy_options(policy, 12)) as (r, w):
        fill(w, 16)
        writer = run_thread(w.write, page(7))
        fall_asleep(when, writer, w, 1)
        r.read((16 - used) * PAGE)
        # A pipe cannot be made smaller than its write size; changing that one wakes nobody.
        shmpipe.fcntl(w, shmpipe.F_SETPIPE_WRITE_SZ, PAGE)
        asleep(writer)
        resize(r, new)
        if not woken:
            asleep(writer)
            r.read(PAGE)
        assert writer.join() == PAGE


@every_policy
def test_resize_that_leaves_no_free_page_wakes_nobody(policy: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writer = run_thread(w.write, page(7))
        asleep(writer)
        resize(r, 4)
        resize(w, 4)
        asleep(writer)
        assert w.stats().pages_used == 4
        r.read(1 << 20)
        assert writer.join() == PAGE


@every_policy
@early_and_late
@pytest.mark.parametrize(("how", "done"), [("thread", 0), ("child", 2)])
def test_closing_the_reader_wakes(policy: str, how: str, when: str, done: int) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4 - done)
        writer = start(how, w.write, bytes((done + 1) * PAGE), close=[r])
        fall_asleep(when, writer, w, 1)
        r.close()
        if done:
            assert writer.join() == done * PAGE
        else:
            with pytest.raises(BrokenPipeError):
                writer.join()


@every_policy
@early_and_late
def test_every_sleeper_gets_through_when_the_pipe_is_drained(policy: str, when: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writers = [
            start(how, w.write, page(5 + i), close=[r])
            for i, how in enumerate(("child", "child", "thread"))
        ]
        for writer in writers:
            fall_asleep(when, writer, w, 3)
        r.read(1 << 20)
        # One is woken by the reader; each wakes the next, as there is a free page left.
        assert [writer.join() for writer in writers] == [PAGE] * 3
        assert sorted(drain_slots(r)) == [page(5), page(6), page(7)]


@every_policy
def test_two_sleepers_read_page_by_page(policy: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writers = [run_child(w.write, page(5 + i), close=[r]) for i in range(2)]
        asleep(*writers)
        wake = first_wake(policy, 4)
        for after in range(3, wake, -1):
            r.read(PAGE)
            asleep(*writers)
            assert w.stats().pages_used == after
        r.read(PAGE)
        # As many get through as there are free pages, each woken by the one before.
        through = min(2, 4 - wake)
        eventually(lambda: sum(writer.alive() for writer in writers) == 2 - through)
        assert w.stats().pages_used == wake + through
        if through == 1:
            asleep(*[writer for writer in writers if writer.alive()])
            r.read(PAGE)
        assert [writer.join() for writer in writers] == [PAGE, PAGE]


@both_runners
def test_nobody_wakes_without_a_cause(how: str) -> None:
    with pipe_of("shmpipe", 4, **policy_options("half")) as (r, w):
        readers = [start(how, r.read, 1, close=[w]) for _ in range(3)]
        asleep(*readers)  # or waiting for the lock still
        eventually(lambda: r.stats().reader_sleeps == 3)
        w.write(b"abc")
        assert sorted(reader.join() for reader in readers) == [b"a", b"b", b"c"]
        fill(w, 4)
        writers = [start(how, w.write, page(5), close=[r]) for _ in range(3)]
        asleep(*writers)
        eventually(lambda: w.stats().writer_sleeps == 3)
        # They go on sleeping beside a free page that the policy does not give them.
        r.read(PAGE)
        asleep(*writers)
        stats = r.stats()
        assert (stats.writer_sleeps, stats.writer_wakes, stats.pages_used) == (3, 0, 3)
        r.read(PAGE)
        eventually(lambda: w.stats().pages_used == 4)
        r.read(1 << 20)
        assert [writer.join() for writer in writers] == [PAGE] * 3


# ---------------------------------------------------------------- nobody is stranded


@pytest.mark.slow
@every_case
def test_a_draining_reader_strands_nobody(policy: str, pages: int, write_pages: int) -> None:
    chance = random.Random(f"{policy}/{pages}/{write_pages}")
    with pipe_of("shmpipe", pages, wake=policy, write_size=write_pages * PAGE) as (r, w):
        sizes = [chance.choice([1, 100, 4096, 5000, 20000, 70000]) for _ in range(40)]
        writers = [
            run_child(lambda: [w.write(bytes(size)) for size in sizes], close=[r]) for _ in range(2)
        ]
        left = 2 * sum(sizes)
        while left:
            data = r.read(chance.choice([1, 4095, 4096, 8192, 1 << 20]) if left < 1e5 else 1 << 16)
            left -= len(data)
        for writer in writers:
            assert writer.join() == sizes
