"""Many readers and writers at once: nothing lost, nothing twice, small writes never torn."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from .kinds import both_kinds, make_pipe, pipe_of, start
from .records import numbers_of, record, records
from .support import PAGE, run_child, run_thread

SIDES = 8


def write_records(writer: Any, who: int, count: int, size: int) -> None:
    for number in range(count):
        assert writer.write(record(who, number, size)) == size


def read_records(reader: Any, size: int, at_most: int) -> list[tuple[int, int]]:
    """Read whole records, up to `at_most` in a call, until end of file."""
    found: list[tuple[int, int]] = []
    while data := reader.read(size * at_most):
        # Every write is a multiple of the record's size and atomic, so every read is, too.
        found += records(data)
    return found


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize(
    ("pages", "size", "count", "at_most"),
    [(1, 16, 400, 1), (1, 4096, 200, 1), (16, 1000, 400, 3), (16, 4095, 200, 1), (2, 64, 400, 100)],
)
def test_eight_writers_and_eight_readers(
    kind: str, pages: int, size: int, count: int, at_most: int
) -> None:
    r, w = make_pipe(kind, pages)
    with r, w:
        readers, writers = [], []
        # Children before threads: a lock that a thread holds would stay locked in a later child.
        for i in range(SIDES):
            how = "child" if i < SIDES // 2 else "thread"
            readers.append(start(how, read_records, r, size, at_most, close=[w]))
            writers.append(start(how, write_records, w, i, count, size, close=[r]))
        for writer in writers:
            writer.join()
        w.close()
        found = [reader.join() for reader in readers]
    everything = Counter(item for part in found for item in part)
    assert everything == Counter((i, number) for i in range(SIDES) for number in range(count))
    for part in found:
        for i in range(SIDES):
            numbers = numbers_of(i, part)
            assert numbers == sorted(numbers), f"writer {i} out of order"


def write_letters(writer: Any, letter: bytes, size: int, count: int) -> None:
    for _ in range(count):
        assert writer.write(letter * size) == size


def cuts(stream: bytes, size: int) -> set[int]:
    """Where within a write of `size` bytes of one letter somebody else's bytes begin."""
    done: Counter[int] = Counter()
    found = set()
    for letter, run in groupby(stream):
        done[letter] += sum(1 for _ in run)
        found.add(done[letter] % size)
    return found


@both_kinds
@pytest.mark.parametrize("size", [1, 100, 2049, 4095, 4096])
def test_writes_up_to_a_page_are_never_torn(kind: str, size: int) -> None:
    count = 150
    r, w = make_pipe(kind, 1)
    with r, w:
        writers = [run_child(write_letters, w, b"%d" % i, size, count, close=[r]) for i in range(4)]
        w.close()
        stream = bytearray()
        while part := r.read(3000):
            stream += part
        for writer in writers:
            writer.join()
    assert Counter(bytes(stream)) == {ord(str(i)): size * count for i in range(4)}
    assert cuts(bytes(stream), size) == {0}


@both_kinds
@pytest.mark.parametrize("size", [4097, 8192, 20000])
def test_larger_writes_are_torn_at_page_boundaries_only(kind: str, size: int) -> None:
    count = 30
    r, w = make_pipe(kind, 1)
    with r, w:
        writers = [run_child(write_letters, w, b"%d" % i, size, count, close=[r]) for i in range(4)]
        w.close()
        stream = bytearray()
        while part := r.read(3000):
            stream += part
        for writer in writers:
            writer.join()
    assert Counter(bytes(stream)) == {ord(str(i)): size * count for i in range(4)}
    # Either the remainder went into the last page and whole pages follow, or whole pages first.
    remainder = size % PAGE
    allowed = {0, *range(PAGE, size, PAGE), *range(remainder, size, PAGE)}
    assert cuts(bytes(stream), size) <= allowed


@both_kinds
def test_write_that_need_not_sleep_is_contiguous(kind: str) -> None:
    size, count = 20000, 8
    with pipe_of(kind, 256) as (r, w):
        writers = [run_child(write_letters, w, b"%d" % i, size, count, close=[r]) for i in range(4)]
        for writer in writers:
            writer.join()
        w.close()
        stream = r.readall()
    assert Counter(stream) == {ord(str(i)): size * count for i in range(4)}
    assert cuts(stream, size) == {0}


@both_kinds
def test_threads_of_one_process_share_both_ends(kind: str) -> None:
    size, count = 100, 200
    with pipe_of(kind, 2) as (r, w):
        readers = [run_thread(read_records, r, size, 5) for _ in range(4)]
        writers = [run_thread(write_records, w, i, count, size) for i in range(4)]
        for writer in writers:
            writer.join()
        w.close()
        everything = Counter(item for reader in readers for item in reader.join())
    assert everything == Counter((i, number) for i in range(4) for number in range(count))
