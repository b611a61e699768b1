"""Ends of a pipe in several processes: handed over in every way, counted over all holders."""

from __future__ import annotations

import gc
import os
import warnings
from typing import Any

import pytest

import shmpipe

from .kinds import (
    asleep,
    both_kinds,
    fill,
    page,
    pipe_of,
)
from .streams import DATA, read_all, write_all
from .support import PAGE, START_METHODS, run_child, run_process, run_thread

every_start_method = pytest.mark.parametrize("method", START_METHODS)


def echo(reader: Any, writer: Any, *others: Any) -> int:
    """Send back in upper case whatever comes, until end of file; how much that was."""
    for other in others:
        other.close()
    count = 0
    with reader, writer:
        while chunk := reader.read(5000):
            count += writer.write(chunk.upper())
    return count


# ---------------------------------------------------------------- handing over


@both_kinds
def test_forked_child_reads(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(read_all, r, close=[w])
        r.close()
        assert write_all(w, DATA) == len(DATA)
        assert child.join() == DATA


@both_kinds
def test_forked_child_writes(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        child = run_child(write_all, w, DATA, close=[r])
        w.close()
        assert read_all(r) == DATA
        assert child.join() == len(DATA)


@both_kinds
def test_grandchild_of_a_fork_writes(kind: str) -> None:
    def in_child() -> int:
        grandchild = run_child(write_all, w, DATA)
        w.close()
        result: int = grandchild.join()
        return result

    with pipe_of(kind) as (r, w):
        child = run_child(in_child, close=[r])
        w.close()
        assert read_all(r) == DATA
        assert child.join() == len(DATA)


@both_kinds
@every_start_method
def test_reader_as_argument(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        # A forked process has both ends anyhow and must close the other one.
        others = [w] if method == "fork" else []
        process = run_process(method, read_all, r, *others)
        # Nobody tells when the child has attached; the parent's copy may go at once.
        r.close()
        assert write_all(w, DATA) == len(DATA)
        assert process.join() == DATA


@both_kinds
@every_start_method
def test_writer_as_argument(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        others = [r] if method == "fork" else []
        process = run_process(method, write_all, w, DATA, *others)
        w.close()
        assert read_all(r) == DATA
        assert process.join() == len(DATA)


@both_kinds
@every_start_method
def test_an_end_of_each_of_two_pipes(kind: str, method: str) -> None:
    text = b"some words and some more words. " * 1000
    with pipe_of(kind) as (r1, w1), pipe_of(kind, 2) as (r2, w2):
        others = [w1, r2] if method == "fork" else []
        process = run_process(method, echo, r1, w2, *others)
        r1.close()
        w2.close()
        sender = run_thread(write_all, w1, text)
        assert read_all(r2) == text.upper()
        assert sender.join() == process.join() == len(text)


def both_ends_of_one(reader: Any, writer: Any) -> bytes:
    writer.write(b"to myself")
    got: bytes = reader.read(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del reader, writer
        gc.collect()
    return got


@both_kinds
@every_start_method
def test_both_ends_of_one_pipe(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        assert run_process(method, both_ends_of_one, r, w).join() == b"to myself"
        w.write(b"still here")
        assert r.read(100) == b"still here"


@both_kinds
@every_start_method
def test_data_written_before_the_hand_over_is_read_after_it(kind: str, method: str) -> None:
    with pipe_of(kind, 4) as (r, w):
        w.write(b"a" * 100)
        fill(w, 3)
        assert r.read(50) == b"a" * 50
        w.close()
        process = run_process(method, read_all, r)
        r.close()
        assert process.join() == b"a" * 50 + page(0) + page(1) + page(2)


def settings(end: Any) -> tuple[int, ...]:
    commands = (shmpipe.F_GETPIPE_SZ, shmpipe.F_GETPIPE_WRITE_SZ, shmpipe.F_GETFL)
    return tuple(shmpipe.fcntl(end, command) for command in commands)


def change_settings(end: Any) -> tuple[int, ...]:
    shmpipe.fcntl(end, shmpipe.F_SETPIPE_SZ, 1 << 18)
    shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 12288)
    with pytest.raises(PermissionError):
        shmpipe.fcntl(end, shmpipe.F_SETPIPE_SZ, 1 << 19)
    return settings(end)


@every_start_method
@pytest.mark.parametrize("side", [0, 1])
def test_size_write_size_and_flags_are_the_pipes(method: str, side: int) -> None:
    ends = shmpipe.pipe(8 * PAGE, write_size=3 * PAGE, max_size=1 << 18, flags=os.O_NONBLOCK)
    with ends[0], ends[1]:
        before = (8 * PAGE, 3 * PAGE, os.O_NONBLOCK | side)
        assert run_process(method, settings, ends[side]).join() == before
        after = (1 << 18, 12288, os.O_NONBLOCK | side)
        assert run_process(method, change_settings, ends[side]).join() == after
        for end in ends:
            assert settings(end)[:2] == after[:2]


@every_start_method
def test_sleeper_in_another_process_is_woken(method: str) -> None:
    with pipe_of("shmpipe", 1) as (r, w):
        reader = run_process(method, r.read, 10)
        asleep(reader)
        w.write(b"data")
        assert reader.join() == b"data"
        fill(w, 1)
        writer = run_process(method, w.write, page(1))
        asleep(writer)
        assert r.read(PAGE) == page(0)
        assert writer.join() == PAGE


def pass_on(method: str, reader: Any) -> bytes:
    process = run_process(method, read_all, reader)
    reader.close()
    data: bytes = process.join()
    return data


@both_kinds
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_end_passed_on_to_a_grandchild(kind: str, method: str) -> None:
    with pipe_of(kind) as (r, w):
        # Forked first: a daemonic process of multiprocessing may not have children.
        child = run_child(pass_on, method, r, close=[w])
        r.close()
        assert write_all(w, DATA) == len(DATA)
        assert child.join(60) == DATA
