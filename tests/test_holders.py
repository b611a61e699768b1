"""End of file and broken pipe follow the last holder of an end, in whatever process it is."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from typing import Any

import pytest

import shmpipe

from .kinds import (
    asleep,
    both_kinds,
    fcntl,
    fill,
    make_pipe,
    page,
    pipe_of,
    set_nonblocking,
    unread,
)
from .streams import DATA, read_all, write_all
from .support import Flag, eventually, run_child, run_process, run_thread


def leave(how: str, ends: list[Any], go: Flag) -> None:
    """Hold the ends until told to go, then let go of them in one of several ways."""
    go.wait()
    if how == "close":
        for end in ends:
            end.close()
        signal.pause()
    elif how == "drop":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            ends.clear()
            gc.collect()
        signal.pause()
    elif how == "_exit":
        os._exit(0)
    elif how == "exit":
        sys.exit(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "term":
        os.kill(os.getpid(), signal.SIGTERM)


def holder(how: str, side: int, ends: list[Any]) -> tuple[Any, Flag]:
    """A child that holds only `side` of the two ends, and the flag that makes it leave.

    The caller has the ends in this list only: its frame exists in the child, too.
    """
    go = Flag()
    mine = [ends[side]]

    def in_child() -> None:
        ends[1 - side].close()
        ends.clear()
        leave(how, mine, go)

    child = run_child(in_child)
    mine.clear()
    return child, go


WAYS = ["close", "drop", "_exit", "exit", "kill", "term"]


def finish(*children: Any) -> None:
    for child in children:
        child.kill()


@both_kinds
@pytest.mark.parametrize("how", WAYS)
def test_end_of_file_only_when_the_last_writer_leaves(kind: str, how: str) -> None:
    ends = list(make_pipe(kind))
    first, first_go = holder(how, 1, ends)
    second, second_go = holder(how, 1, ends)
    r, w = ends
    w.close()
    with r:
        reader = run_thread(r.read, 10)
        asleep(reader)
        first_go.set()
        if how not in ("close", "drop"):
            eventually(lambda: not first.alive())
        asleep(reader)
        set_nonblocking(r)
        assert r.read(1) is None
        set_nonblocking(r, False)
        second_go.set()
        assert reader.join() == b""
        assert r.read(10) == b""
        finish(first, second)
        first_go.close()
        second_go.close()


@both_kinds
@pytest.mark.parametrize("how", WAYS)
def test_broken_pipe_only_when_the_last_reader_leaves(kind: str, how: str) -> None:
    ends = list(make_pipe(kind, 1))
    first, first_go = holder(how, 0, ends)
    second, second_go = holder(how, 0, ends)
    r, w = ends
    r.close()
    with w:
        fill(w, 1)
        writer = run_thread(w.write, page(1))
        asleep(writer)
        first_go.set()
        if how not in ("close", "drop"):
            eventually(lambda: not first.alive())
        asleep(writer)
        set_nonblocking(w)
        assert w.write(b"x") is None
        set_nonblocking(w, False)
        second_go.set()
        with pytest.raises(BrokenPipeError):
            writer.join()
        with pytest.raises(BrokenPipeError):
            w.write(b"x")
        finish(first, second)
        first_go.close()
        second_go.close()


@both_kinds
def test_own_forgotten_copy_keeps_the_pipe_open(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(w.write, b"last words", close=[r])
        assert child.join() == 10
        assert r.read(100) == b"last words"
        reader = run_thread(r.read, 1)
        asleep(reader)
        w.close()
        assert reader.join() == b""


@both_kinds
def test_end_dropped_without_close_is_closed(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        r, w = make_pipe(kind)
        with r:
            w.write(b"abc")
            del w
            gc.collect()
            assert r.read(10) == b"abc"
            assert r.read(10) == b""
        r, w = make_pipe(kind)
        with w:
            del r
            gc.collect()
            with pytest.raises(BrokenPipeError):
                w.write(b"x")


@both_kinds
def test_data_outlives_its_writer(kind: str) -> None:
    def write_and_vanish() -> None:
        w.write(DATA[:10000])
        os._exit(7)

    with pipe_of(kind) as (r, w):
        child = run_child(write_and_vanish, close=[r])
        w.close()
        eventually(lambda: not child.alive())
        assert unread(r) == 10000
        assert r.read(6000) == DATA[:6000]
        assert r.read(6000) == DATA[6000:10000]
        assert r.read(6000) == b""
        finish(child)


def write_and_leave(writer: Any) -> None:
    writer.write(b"left behind")
    os._exit(0)


@both_kinds
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_data_outlives_a_started_process(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        process = run_process(method, write_and_leave, w)
        w.close()
        eventually(lambda: not process.alive(), 30)
        assert r.read() == b"left behind"


@both_kinds
def test_last_holder_is_a_thread_of_another_process(kind: str) -> None:
    def in_child() -> int:
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(write_all(w, DATA)))
        thread.start()
        thread.join()
        return results[0]

    with pipe_of(kind, 2) as (r, w):
        child = run_child(in_child, close=[r])
        w.close()
        assert read_all(r) == DATA
        assert child.join() == len(DATA)


@both_kinds
def test_flags_of_a_closed_copy_do_not_matter(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(r.close, close=[w])
        child.join()
        w.write(b"x")
        assert fcntl(r, shmpipe.F_GETFL) == os.O_RDONLY
        assert r.read(1) == b"x"
