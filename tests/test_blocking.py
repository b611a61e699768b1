"""Sleeping in read() and write(): what wakes, what does not, who goes first, what lands where.

The rows of the kernel pipe's rules about blocking, each on a kernel pipe and on ours. "Asleep" is
observed from outside (task state and context switches), never guessed by waiting for a while.
"""

from __future__ import annotations

import random
import select
from typing import Any

import pytest

from .kinds import (
    asleep,
    both_kinds,
    both_runners,
    drain_slots,
    fill,
    is_kernel,
    page,
    pipe_of,
    resize,
    start,
    unread,
)
from .support import PAGE, eventually, run_child, run_thread

# ---------------------------------------------------------------- reading


@both_kinds
@both_runners
def test_read_on_empty_sleeps_until_there_is_data(kind: str, how: str) -> None:
    with pipe_of(kind) as (r, w):
        reader = start(how, r.read, 100, close=[w])
        asleep(reader)
        assert w.write(b"") == 0
        asleep(reader)
        assert w.write(b"abc") == 3
        assert reader.join() == b"abc"
        assert unread(r) == 0


@both_kinds
@both_runners
def test_read_on_empty_wakes_at_end_of_file(kind: str, how: str) -> None:
    with pipe_of(kind) as (r, w):
        reader = start(how, r.read, 100, close=[w])
        asleep(reader)
        w.close()
        assert reader.join() == b""
        assert r.read(1) == b""


@both_kinds
def test_readinto_sleeps_and_leaves_the_rest_of_the_buffer_alone(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        buffer = bytearray(b"." * 8)
        reader = run_thread(r.readinto, buffer)
        asleep(reader)
        w.write(b"abc")
        assert reader.join() == 3
        assert buffer == b"abc....."
        reader = run_thread(r.readinto, buffer)
        asleep(reader)
        w.close()
        assert reader.join() == 0
        assert buffer == b"abc....."


@both_kinds
@pytest.mark.parametrize("size", [None, -1])
def test_reading_everything_returns_only_at_end_of_file(kind: str, size: int | None) -> None:
    with pipe_of(kind) as (r, w):
        w.write(b"ab")
        reader = run_thread(r.read, size)
        asleep(reader)
        w.write(b"cd")
        asleep(reader)
        w.close()
        assert reader.join() == b"abcd"


@both_kinds
def test_read_with_a_writer_asleep_takes_what_is_there(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        data = fill(w, 2)
        writer = run_thread(w.write, page(2))
        asleep(writer)
        assert r.read(1 << 20) == data
        assert writer.join() == PAGE
        assert r.read(1 << 20) == page(2)


@both_kinds
def test_two_sleeping_readers_share_three_bytes(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        readers = [run_child(r.read, 2, close=[w]), run_child(r.read, 2, close=[w])]
        asleep(*readers)
        w.write(b"abc")
        # Who is first is not promised, but left-over data wakes the other one.
        assert sorted(reader.join() for reader in readers) == [b"ab", b"c"]


@both_kinds
def test_left_over_data_wakes_one_reader_after_the_other(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        readers = [start(how, r.read, 2, close=[w]) for how in ("child", "thread", "child")]
        asleep(*readers)
        w.write(b"aabbcc")
        assert sorted(reader.join() for reader in readers) == [b"aa", b"bb", b"cc"]


@both_kinds
def test_one_byte_is_for_one_reader(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        readers = [start(how, r.read, 2, close=[w]) for how in ("child", "thread", "child")]
        asleep(*readers)
        for left in (2, 1, 0):
            w.write(b"x")
            eventually(lambda left=left: len([x for x in readers if x.alive()]) == left)
            sleeping = [reader for reader in readers if reader.alive()]
            asleep(*sleeping)
        assert [reader.join() for reader in readers] == [b"x"] * 3


# ---------------------------------------------------------------- writing


@both_kinds
@pytest.mark.parametrize(
    ("pages", "before", "size"),
    [
        (1, [], 4096),
        (1, [100], 3996),
        (2, [4096, 100], 3996),
        (2, [4096, 100], 1),
        (2, [1], 8191),
        (4, [4096, 4096, 100], 3996 + 4096),
        (16, [], 65536),
        (16, [65535], 1),
    ],
)
def test_write_that_fits_does_not_sleep(
    kind: str, pages: int, before: list[int], size: int
) -> None:
    with pipe_of(kind, pages) as (r, w):
        for count in before:
            assert w.write(bytes(count)) == count
        assert run_thread(w.write, bytes(size)).join(10) == size
        assert unread(r) == sum(before) + size


@both_kinds
@both_runners
def test_write_on_full_sleeps_until_a_page_is_free(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        writer = start(how, w.write, page(2), close=[r])
        asleep(writer)
        r.read(1)
        asleep(writer)
        r.read(4094)
        asleep(writer)
        r.read(1)
        assert writer.join() == PAGE
        assert r.read(1 << 20) == page(1) + page(2)


@both_kinds
def test_short_pages_count_as_pages(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        w.write(bytes(2049))
        w.write(bytes(2049))
        writer = run_thread(w.write, bytes(2049))
        asleep(writer)
        r.read(2048)
        asleep(writer)
        r.read(1)
        assert writer.join() == 2049
        assert [len(slot) for slot in drain_slots(r)] == [2049, 2049]


@both_kinds
@both_runners
def test_large_write_sleeps_once_for_every_page(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        before = fill(w, 2)
        data = b"".join(map(page, range(2, 6))) + b"z" * 3616
        assert len(data) == 20000
        writer = start(how, w.write, data, close=[r])
        asleep(writer)
        got = bytearray()
        for _ in range(4):
            got += r.read(PAGE)
            asleep(writer)
            assert unread(r) == 2 * PAGE
        got += r.read(PAGE)
        assert writer.join() == 20000
        assert unread(r) == PAGE + 3616
        if not is_kernel(r):
            stats = w.stats()
            assert (stats.writer_sleeps, stats.writer_wakes) == (5, 5)
        got += r.read(1 << 20)
        assert got == before + data


@both_kinds
@both_runners
@pytest.mark.parametrize("pages", [1, 2, 16])
def test_large_writes_arrive_whole_whatever_the_reader_takes(
    kind: str, how: str, pages: int
) -> None:
    chance = random.Random(pages)
    sizes = [4097, 8191, 12289, 65537, 300_000]
    data = [chance.randbytes(size) for size in sizes]

    def write_all() -> list[int]:
        return [w.write(part) for part in data]

    with pipe_of(kind, pages) as (r, w):
        writer = start(how, write_all, close=[r])
        got = bytearray()
        while len(got) < sum(sizes):
            got += r.read(chance.choice([1, 100, 4095, 4096, 5000, 20000, 1 << 20]))
        assert writer.join() == sizes
        assert got == b"".join(data)


@both_kinds
def test_writers_that_slept_take_fresh_pages(kind: str) -> None:
    with pipe_of(kind, 4) as (r, w):
        fill(w, 4)
        parts = [letter * 100 for letter in (b"a", b"b", b"c", b"d")]
        writers = [
            start(how, w.write, part, close=[r])
            for how, part in zip(("thread", "child", "thread", "child"), parts, strict=True)
        ]
        asleep(*writers)
        assert len(r.read(1 << 20)) == 4 * PAGE
        assert [writer.join() for writer in writers] == [100] * 4
        # Each has a page of its own, although all would have fitted in one.
        assert sorted(drain_slots(r)) == parts


@both_kinds
@both_runners
def test_one_page_lets_one_of_two_writers_go_and_a_third_merges_past(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        first = start(how, w.write, b"1" * 100, close=[r])
        asleep(first)
        second = start(how, w.write, b"2" * 100, close=[r])
        asleep(second)
        r.read(PAGE)
        done = eventually(lambda: [x for x in (first, second) if not x.alive()])
        (left,) = [x for x in (first, second) if x not in done]
        asleep(left)
        assert unread(r) == PAGE + 100
        assert run_thread(w.write, b"3" * 100).join() == 100
        asleep(left)
        r.read(PAGE)
        assert left.join() == 100
        assert first.join() == second.join() == 100
        order = (b"1", b"2") if left is second else (b"2", b"1")
        if kind == "kernel":
            assert left is second
        assert drain_slots(r) == [order[0] * 100 + b"3" * 100, order[1] * 100]


@both_kinds
def test_writer_that_leaves_a_free_page_wakes_the_next(kind: str) -> None:
    with pipe_of(kind, 4) as (r, w):
        fill(w, 4)
        writers = [
            start(how, w.write, page(5 + i), close=[r])
            for i, how in enumerate(("thread", "child", "thread"))
        ]
        asleep(*writers)
        r.read(3 * PAGE)
        assert [writer.join() for writer in writers] == [PAGE] * 3
        assert r.read(PAGE) == page(3)
        assert sorted(drain_slots(r)) == [page(5), page(6), page(7)]


@both_kinds
def test_one_page_is_for_one_writer_and_none_starves(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        writers = [
            start(how, w.write, page(5 + i), close=[r])
            for i, how in enumerate(("thread", "child", "child"))
        ]
        asleep(*writers)
        for left in (2, 1, 0):
            r.read(PAGE)
            eventually(lambda left=left: len([x for x in writers if x.alive()]) == left)
            asleep(*[writer for writer in writers if writer.alive()])
            assert unread(r) == 2 * PAGE
        assert [writer.join() for writer in writers] == [PAGE] * 3


@both_kinds
@both_runners
def test_a_page_lands_whole_between_the_pages_of_a_larger_write(kind: str, how: str) -> None:
    pages = 40
    with pipe_of(kind, 2) as (r, w):
        large = start(how, w.write, b"l" * (pages * PAGE), close=[r])
        asleep(large)
        small = start(how, w.write, b"s" * PAGE, close=[r])
        asleep(small)
        got = bytearray()
        # Slowly at first, so that both compete for every page; whoever writes without end must
        # not keep the other one out for good.
        for _ in range(6):
            got += r.read(PAGE)
            asleep(large)
        while len(got) < (pages + 1) * PAGE:
            got += r.read(PAGE)
        assert large.join() == pages * PAGE
        assert small.join() == PAGE
        where = got.index(b"s")
        assert where % PAGE == 0
        assert got[where : where + PAGE] == b"s" * PAGE
        assert where + PAGE < len(got), "the small write came last"
        if kind == "kernel":
            assert where == 3 * PAGE


@both_kinds
@both_runners
def test_readers_and_writers_sleep_in_turn(kind: str, how: str) -> None:
    """What one side's sleep leaves behind must not keep the other side asleep."""
    with pipe_of(kind, 1) as (r, w):
        for number in range(3):
            reader = start(how, r.read, 10)
            asleep(reader)
            w.write(b"data")
            assert reader.join() == b"data"
            fill(w, 1)
            writer = start(how, w.write, page(number))
            asleep(writer)
            assert r.read(PAGE) == page(0)
            assert writer.join() == PAGE
            assert r.read(PAGE) == page(number)


# ---------------------------------------------------------------- sleeping in poll()


def poll_once(end: Any, mask: int) -> bool:
    """Sleep until poll() reports something; hang-up and errors come whatever the mask."""
    poller = select.poll()
    poller.register(end.fileno(), mask)
    return bool(poller.poll(20_000))


@both_kinds
@both_runners
@pytest.mark.parametrize("event", ["page freed", "grow", "reader closes"])
def test_poll_on_a_full_write_end(kind: str, how: str, event: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        poller = start(how, poll_once, w, select.POLLOUT, close=[r])
        asleep(poller)
        r.read(1)
        asleep(poller)
        if event == "page freed":
            r.read(PAGE - 1)
        elif event == "grow":
            resize(r, 4)
        else:
            r.close()
        assert poller.join()


@both_kinds
@both_runners
@pytest.mark.parametrize("event", ["data", "writer closes"])
def test_poll_on_an_empty_read_end(kind: str, how: str, event: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        poller = start(how, poll_once, r, select.POLLIN, close=[w])
        asleep(poller)
        w.write(b"")
        asleep(poller)
        if event == "data":
            w.write(b"x")
        else:
            w.close()
        assert poller.join()
