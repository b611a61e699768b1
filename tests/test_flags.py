"""O_NONBLOCK on each end, also of sleeping calls and across processes; end of file, broken pipe."""

from __future__ import annotations

import os

import pytest

import shmpipe

from .kinds import (
    asleep,
    both_kinds,
    both_runners,
    fcntl,
    fill,
    page,
    pipe_of,
    set_nonblocking,
    start,
    unread,
)
from .support import PAGE, START_METHODS, run_child, run_process, run_thread

# ---------------------------------------------------------------- the flag itself


@both_kinds
@pytest.mark.parametrize("nonblocking", [False, True])
def test_flags_of_a_new_pipe(kind: str, nonblocking: bool) -> None:
    extra = os.O_NONBLOCK if nonblocking else 0
    with pipe_of(kind, nonblocking=nonblocking) as (r, w):
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY | extra
        assert fcntl(w, shmpipe.F_GETFL) == os.O_WRONLY | extra


@both_kinds
def test_each_end_has_its_own_flag(kind: str) -> None:
    with pipe_of(kind, 1) as (r, w):
        assert fcntl(r, shmpipe.F_SETFL, os.O_NONBLOCK) == 0
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY | os.O_NONBLOCK
        assert fcntl(w, shmpipe.F_GETFL) == os.O_WRONLY
        assert r.read(1) is None
        fill(w, 1)
        writer = run_thread(w.write, page(1))
        asleep(writer)
        r.read(PAGE)
        assert writer.join() == PAGE
        assert fcntl(w, shmpipe.F_SETFL, os.O_NONBLOCK) == 0
        assert fcntl(r, shmpipe.F_SETFL, 0) == 0
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY
        assert fcntl(w, shmpipe.F_GETFL) == os.O_WRONLY | os.O_NONBLOCK
        assert w.write(page(2)) is None


@both_kinds
def test_setfl_ignores_access_mode_and_creation_bits(kind: str) -> None:
    ignored = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_TRUNC
    with pipe_of(kind) as (r, w):
        assert fcntl(r, shmpipe.F_SETFL, os.O_WRONLY | ignored) == 0
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY
        assert fcntl(w, shmpipe.F_SETFL, os.O_NONBLOCK | ignored) == 0
        assert fcntl(w, shmpipe.F_GETFL) == os.O_WRONLY | os.O_NONBLOCK


@pytest.mark.parametrize(
    "flags",
    [os.O_APPEND, os.O_RDWR, os.O_SYNC, os.O_TRUNC, os.O_CLOEXEC, os.O_NONBLOCK | 1, -1],
)
def test_other_creation_flags_are_refused(flags: int) -> None:
    with pytest.raises(ValueError):
        shmpipe.pipe(flags=flags)


@both_kinds
def test_flag_is_shared_with_a_forked_process(kind: str) -> None:
    with pipe_of(kind) as (r, w):

        def child() -> tuple[object, int]:
            set_nonblocking(r)
            return r.read(1), fcntl(w, shmpipe.F_GETFL)

        assert run_child(child).join() == (None, os.O_WRONLY)
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY | os.O_NONBLOCK
        assert r.read(1) is None
        set_nonblocking(r, False)
        set_nonblocking(w)
        assert run_child(fcntl, w, shmpipe.F_GETFL).join() == os.O_WRONLY | os.O_NONBLOCK
        assert run_child(fcntl, r, shmpipe.F_GETFL).join() == os.O_RDONLY


def set_then_get(end: object) -> tuple[int, int]:
    before = fcntl(end, shmpipe.F_GETFL)
    set_nonblocking(end)
    return before, fcntl(end, shmpipe.F_GETFL)


@both_kinds
@pytest.mark.parametrize("method", START_METHODS)
def test_flag_is_shared_with_every_kind_of_process(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        before, after = run_process(method, set_then_get, r).join()
        assert (before, after) == (os.O_RDONLY, os.O_RDONLY | os.O_NONBLOCK)
        assert r.read(1) is None
        assert fcntl(w, shmpipe.F_GETFL) == os.O_WRONLY


# ---------------------------------------------------------------- set while a call sleeps


@both_kinds
@both_runners
def test_sleeping_reader_stays_asleep(kind: str, how: str) -> None:
    with pipe_of(kind) as (r, w):
        reader = start(how, r.read, 10, close=[w])
        asleep(reader)
        set_nonblocking(r)
        asleep(reader)
        w.write(b"data")
        assert reader.join() == b"data"
        assert r.read(1) is None


@both_kinds
@both_runners
def test_woken_writer_returns_its_short_count(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        writer = start(how, w.write, b"x" * 20000, close=[r])
        asleep(writer)
        set_nonblocking(w)
        asleep(writer)
        assert r.read(PAGE) == b"x" * PAGE
        assert writer.join() == 3 * PAGE
        assert r.read(1 << 20) == b"x" * (2 * PAGE)


@both_kinds
@both_runners
def test_woken_writer_that_can_finish_does(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        writer = start(how, w.write, page(5), close=[r])
        asleep(writer)
        set_nonblocking(w)
        asleep(writer)
        r.read(PAGE)
        assert writer.join() == PAGE
        assert r.read(1 << 20) == page(1) + page(5)


# ---------------------------------------------------------------- the other side is gone


@both_kinds
@pytest.mark.parametrize("nonblocking", [False, True])
def test_data_comes_before_end_of_file_which_stays(kind: str, nonblocking: bool) -> None:
    with pipe_of(kind, nonblocking=nonblocking) as (r, w):
        w.write(b"abc")
        w.close()
        assert r.read(2) == b"ab"
        assert r.read(2) == b"c"
        buffer = bytearray(4)
        for _ in range(3):
            assert r.read(2) == b""
            assert r.read() == b""
            assert r.readinto(buffer) == 0


@both_kinds
@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("pages", [0, 1, 2])
def test_write_without_reader(kind: str, nonblocking: bool, pages: int) -> None:
    with pipe_of(kind, 2, nonblocking=nonblocking) as (r, w):
        fill(w, pages)
        r.close()
        for size in (1, PAGE, 20000):
            assert w.write(b"") == 0
            with pytest.raises(BrokenPipeError):
                w.write(bytes(size))
        assert unread(w) == pages * PAGE


@both_kinds
@both_runners
def test_reader_closes_while_a_writer_sleeps(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        writer = start(how, w.write, page(5), close=[r])
        asleep(writer)
        r.close()
        with pytest.raises(BrokenPipeError):
            writer.join()


@both_kinds
@both_runners
def test_reader_closes_while_a_writer_sleeps_half_way(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        writer = start(how, w.write, bytes(20000), close=[r])
        asleep(writer)
        r.close()
        assert writer.join() == 2 * PAGE
        with pytest.raises(BrokenPipeError):
            w.write(b"x")


@both_kinds
@both_runners
def test_closing_wakes_every_sleeper_of_the_other_side(kind: str, how: str) -> None:
    with pipe_of(kind) as (r, w):
        readers = [start(how, r.read, 5, close=[w]) for _ in range(3)]
        asleep(*readers)
        w.close()
        assert [reader.join() for reader in readers] == [b""] * 3
    with pipe_of(kind, 1) as (r, w):
        fill(w, 1)
        writers = [start(how, w.write, page(i), close=[r]) for i in range(3)]
        asleep(*writers)
        r.close()
        for writer in writers:
            with pytest.raises(BrokenPipeError):
                writer.join()
