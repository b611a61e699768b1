"""Where written bytes go: merging, fresh slots, short counts. Kernel, shmpipe and model alike."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from .subjects import Subject
from .support import PAGE

Make = Callable[..., Subject]


def play(pipe: Subject, ops: str) -> list[object]:
    """ "+100 -50": write 100 bytes, read 50; what each returned, reads by their length."""
    results: list[object] = []
    for op in ops.split():
        count = int(op[1:])
        outcome = pipe.do(("write", 0, count) if op[0] == "+" else ("read", count))
        assert outcome[0] == "ok", f"{op} of {ops}: {outcome}"
        if op[0] == "+":
            results.append(outcome[1])
        else:
            assert len(outcome[1]) == count
    return results


LAYOUTS = [
    ("+100 +100", [200]),
    ("+4095 +1", [4096]),
    ("+4095 +2", [4095, 2]),
    ("+100 +4096", [100, 4096]),
    ("+4000 -3999 +96", [97]),
    ("+100 -100 +100", [100]),
    ("+100 -50 +3996", [4046]),
    ("+4097 +4095", [4096, 4096]),
    ("+100 +4097", [101, 4096]),
    ("+100 +5000", [1004, 4096]),
    ("+100 +12188", [4096, 4096, 4096]),
    ("+100 +12189", [100, 4096, 4096, 3997]),
    ("+4000 -3999 +97", [1, 97]),
    ("+4096 -4095 +1", [1, 1]),
    ("+100 -50 +3997", [50, 3997]),
    ("+4097 +4097", [4096, 2, 4096]),
    # Nothing of a write goes in for zero bytes, and a merge is into the last slot only.
    ("+0 +100 +0", [100]),
    ("+100 +4096 +100", [100, 4096, 100]),
]


@pytest.mark.parametrize(("ops", "lengths"), LAYOUTS)
def test_slot_layout(new_pipe: Make, ops: str, lengths: list[int]) -> None:
    pipe = new_pipe()
    play(pipe, ops)
    assert pipe.do(("unread", "r")) == ("ok", sum(lengths))
    assert pipe.lengths() == lengths


# Bytes per write; for 1, 2, 16 and 256 pages: how many whole writes, then which short ones.
FILLING = [
    (1, (4096, 8192, 65536, 1048576), ((), (), (), ())),
    (100, (40, 80, 640, 10240), ((), (), (), ())),
    (1000, (4, 8, 64, 1024), ((), (), (), ())),
    (1365, (3, 6, 48, 768), ((), (), (), ())),
    (2048, (2, 4, 32, 512), ((), (), (), ())),
    (2049, (1, 2, 16, 256), ((), (), (), ())),
    (3000, (1, 2, 16, 256), ((), (), (), ())),
    (4095, (1, 2, 16, 256), ((), (), (), ())),
    (4096, (1, 2, 16, 256), ((), (), (), ())),
    (4097, (0, 1, 10, 170), ((4096,), (1,) * 4095, (4096,), (4096,))),
    (5000, (0, 1, 10, 170), ((4096,), (904,) * 3, (4096,), (4096,))),
    (6000, (0, 1, 10, 170), ((4096,), (1904,), (4096,), (4096,))),
    (8191, (0, 1, 8, 128), ((4096,), (), (), ())),
    (8192, (0, 1, 8, 128), ((4096,), (), (), ())),
    (65535, (0, 0, 1, 16), ((4096,), (8192,), (), ())),
    (65536, (0, 0, 1, 16), ((4096,), (8192,), (), ())),
    (65537, (0, 0, 0, 15), ((4096,), (8192,), (65536,), (32769,))),
]


@pytest.mark.parametrize(("index", "pages"), [(0, 1), (1, 2), (2, 16), (3, 256)])
@pytest.mark.parametrize(("count", "whole", "short"), FILLING)
def test_filling_with_equal_writes(
    new_pipe: Make,
    count: int,
    whole: tuple[int, ...],
    short: tuple[tuple[int, ...], ...],
    index: int,
    pages: int,
) -> None:
    pipe = new_pipe(pages * PAGE)
    data = bytes(count)
    results = []
    write = pipe.ends["w"].write if pipe.ends["w"] else lambda data: pipe.write(0, len(data))
    while (result := write(data)) is not None:
        results.append(result)
    assert results == [count] * whole[index] + list(short[index])
    held = count * whole[index] + sum(short[index])
    assert pipe.do(("unread", "w")) == ("ok", held)
    # The same bytes come out again, and then the whole pipe is free.
    assert len(pipe.do(("read", 2 * held))[1]) == held
    assert pipe.do(("write", 0, pages * PAGE)) == ("ok", pages * PAGE)


SHORT = [
    (2, "+4096 +4000", 96, 96, [4096, 4096]),
    (2, "+4096 +4000", 97, None, [4096, 4000]),
    (2, "+4096 +4000", 4192, 96, [4096, 4096]),
    (2, "+4096 +4000", 4193, None, [4096, 4000]),
    (2, "+4096 +4000", 41056, 96, [4096, 4096]),
    (1, "+1", 4096, None, [1]),
    (1, "+1", 4097, 1, [2]),
    (1, "+1", 8192, None, [1]),
    (1, "+1", 8193, 1, [2]),
    (2, "+1", 8191, 8191, [4096, 4096]),
    (2, "+1", 8192, 4096, [1, 4096]),
    (2, "+1", 12287, 8191, [4096, 4096]),
    (4, "+4096 +4096 +100", 12188, 8092, [4096] * 4),
    (4, "+4096 +4096 +100", 12189, 4096, [4096, 4096, 100, 4096]),
]


@pytest.mark.parametrize(("pages", "ops", "count", "result", "lengths"), SHORT)
def test_short_count(
    new_pipe: Make, pages: int, ops: str, count: int, result: int | None, lengths: list[int]
) -> None:
    pipe = new_pipe(pages * PAGE)
    play(pipe, ops)
    assert pipe.do(("write", 7, count)) == ("ok", result)
    assert pipe.lengths() == lengths


def test_the_first_bytes_of_a_write_are_the_ones_that_merge(new_pipe: Make) -> None:
    pipe = new_pipe(4 * PAGE)
    assert pipe.do(("write", 0, 100)) == ("ok", 100)
    assert pipe.do(("write", 50, 5000)) == ("ok", 5000)
    everything = pipe.do(("read", -1))[1]
    again = new_pipe(4 * PAGE)
    assert again.do(("write", 50, 5000)) == ("ok", 5000)
    assert everything[100:] == again.do(("read", -1))[1]


def test_read_bytes_leave_no_room_in_their_slot(new_pipe: Make) -> None:
    pipe = new_pipe(PAGE)
    play(pipe, "+4096 -4095")
    assert pipe.do(("write", 0, 1)) == ("ok", None)
    play(pipe, "-1")
    assert pipe.do(("write", 0, 4096)) == ("ok", 4096)


@pytest.mark.parametrize("ops", ["", "+1", "+4096 +4096", "+4096 +1"])
@pytest.mark.parametrize("reader", ["open", "closed"])
def test_write_of_nothing(new_pipe: Make, ops: str, reader: str) -> None:
    pipe = new_pipe(2 * PAGE)
    play(pipe, ops)
    if reader == "closed":
        pipe.do(("close", "r"))
    before = pipe.ready(), pipe.do(("unread", "w"))
    assert pipe.do(("write", 0, 0)) == ("ok", 0)
    assert (pipe.ready(), pipe.do(("unread", "w"))) == before


@pytest.mark.parametrize("ops", ["", "+1", "+4096 +4096", "+4096 +1"])
@pytest.mark.parametrize("count", [1, 4096, 20000])
def test_write_without_reader(new_pipe: Make, ops: str, count: int) -> None:
    pipe = new_pipe(2 * PAGE)
    play(pipe, ops)
    pipe.do(("close", "r"))
    for _ in range(2):
        assert pipe.do(("write", 0, count)) == ("BrokenPipeError", errno.EPIPE)


@pytest.mark.parametrize("seed", range(40))
def test_free_slot_takes_any_small_write_and_no_free_slot_takes_no_page(
    new_pipe: Make, seed: int
) -> None:
    rng = random.Random(seed)
    pipe = new_pipe(rng.choice((1, 2, 4, 16)) * PAGE)
    for _ in range(rng.randint(0, 40)):
        if rng.random() < 0.7:
            pipe.do(("write", 0, rng.randint(1, 9000)))
        else:
            pipe.do(("read", rng.randint(1, 9000)))
    # With the default write size, writable means that a slot is free.
    if pipe.ready()["w writable"]:
        count = rng.choice((1, 100, 4095, 4096))
        assert pipe.do(("write", 0, count)) == ("ok", count)
    else:
        assert pipe.do(("write", 0, 4096)) == ("ok", None)


def test_merging_write_on_a_full_pipe_while_it_shows_no_space(new_pipe: Make) -> None:
    pipe = new_pipe(2 * PAGE)
    play(pipe, "+4096 +1")
    assert not pipe.ready()["w writable"]
    assert play(pipe, "+4095") == [4095]
    assert not pipe.ready()["w writable"]
