"""F_SETPIPE_SZ and F_SETPIPE_WRITE_SZ: rounding, errors and their order, what stays as it was."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from .conftest import OURS
from .page_model import POLICIES
from .subjects import POLLERS, Subject
from .support import PAGE, kernel_may_exceed_max
from .test_rules_writing import play

Make = Callable[..., Subject]
MAX = 1 << 20

EINVAL = ("OSError", errno.EINVAL)
EPERM = ("PermissionError", errno.EPERM)
EBUSY = ("OSError", errno.EBUSY)

ROUNDING = [
    *[(arg, 4096) for arg in (0, 1, 4095, 4096)],
    *[(arg, 8192) for arg in (4097, 8192)],
    *[(arg, 16384) for arg in (8193, 12288, 16384)],
    *[(arg, 65536) for arg in (65535, 65536)],
    (65537, 131072),
    (1 << 20, 1 << 20),
    (1 << 32, 4096),
    ((1 << 32) + 5000, 8192),
]
REFUSED = [
    *[(arg, EPERM) for arg in ((1 << 20) + 1, 1 << 21, 1 << 31, -(1 << 31))],
    *[(arg, EINVAL) for arg in ((1 << 31) + 1, -1, -4096)],
]


def skip_if_kernel_allows(pipe: Subject, expected: tuple[str, int]) -> None:
    if pipe.name == "kernel" and expected == EPERM and kernel_may_exceed_max():
        pytest.skip("this process may exceed pipe-max-size")


@pytest.mark.parametrize("end", ["r", "w"])
@pytest.mark.parametrize(("arg", "size"), ROUNDING)
def test_size_is_rounded(new_pipe: Make, end: str, arg: int, size: int) -> None:
    pipe = new_pipe()
    assert pipe.do(("get_size", end)) == ("ok", 65536)
    assert pipe.do(("set_size", end, arg)) == ("ok", size)
    assert pipe.do(("get_size", "r")) == pipe.do(("get_size", "w")) == ("ok", size)
    assert pipe.do(("write", 0, 2 * MAX)) == ("ok", size)


@pytest.mark.parametrize("end", ["r", "w"])
@pytest.mark.parametrize(("arg", "expected"), REFUSED)
def test_size_is_refused(new_pipe: Make, end: str, arg: int, expected: tuple[str, int]) -> None:
    pipe = new_pipe()
    skip_if_kernel_allows(pipe, expected)
    play(pipe, "+4096 +5000 -1")
    assert pipe.do(("set_size", end, arg)) == expected
    assert pipe.do(("get_size", end)) == ("ok", 65536)
    assert pipe.lengths() == [4095, 4096, 904]


# Pipe in pages, what was done before, then each argument in turn with its outcome.
STATES = [
    (16, "+4096 +4096 +1", [(8192, EBUSY), (12288, 16384)]),
    (16, "+2049 +2049 +2049", [(8192, EBUSY), (8193, 16384)]),
    (16, "+4096 +4096 +1 -4095", [(8192, EBUSY)]),
    (16, "+4096 +4096 +1 -4096", [(8192, 8192)]),
    (16, "+65536 -1", [(32768, EBUSY)]),
    (16, "+65536 -32767", [(32768, EBUSY)]),
    (16, "+65536 -32768", [(32768, 32768)]),
    (16, "+65536", [(65536, 65536), (131072, 131072), (65536, 65536)]),
    (256, "+4096 +4096 +4096", [(1 << 21, EPERM), (8192, EBUSY), (1 << 20, 1 << 20)]),
    # Slots count, not bytes; and the order of the checks.
    (16, "+4096 +4096 +4096", [(0, EBUSY), (-1, EINVAL), (1 << 31, EPERM)]),
    (2, "+4096 +4096", [(0, EBUSY), (8192, 8192), (8193, 16384), (-1, EINVAL)]),
]


@pytest.mark.parametrize("end", ["r", "w"])
@pytest.mark.parametrize("other", ["open", "closed"])
@pytest.mark.parametrize(("pages", "ops", "calls"), STATES)
def test_size_depends_on_the_used_slots(
    new_pipe: Make,
    end: str,
    other: str,
    pages: int,
    ops: str,
    calls: list[tuple[int, int | tuple[str, int]]],
) -> None:
    pipe = new_pipe(pages * PAGE)
    play(pipe, ops)
    unread = pipe.do(("unread", end))
    if other == "closed":
        pipe.do(("close", "w" if end == "r" else "r"))
    size = pages * PAGE
    for arg, expected in calls:
        if isinstance(expected, int):
            size = expected
            assert pipe.do(("set_size", end, arg)) == ("ok", size)
        else:
            skip_if_kernel_allows(pipe, expected)
            assert pipe.do(("set_size", end, arg)) == expected
        assert pipe.do(("get_size", end)) == ("ok", size)
        assert pipe.do(("unread", end)) == unread


def test_readiness_follows_a_resize(new_pipe: Make) -> None:
    pipe = new_pipe()
    play(pipe, "+65536")
    assert not pipe.ready()["w writable"]
    assert pipe.do(("set_size", "r", 131072)) == ("ok", 131072)
    assert pipe.ready()["w writable"]
    assert pipe.do(("set_size", "w", 65536)) == ("ok", 65536)
    assert not pipe.ready()["w writable"]


def test_shrinking_to_the_used_slots_makes_the_pipe_full(new_pipe: Make) -> None:
    pipe = new_pipe()
    play(pipe, "+4096 +4096 +1 -4096")
    assert pipe.do(("set_size", "w", 8192)) == ("ok", 8192)
    assert not pipe.ready()["w writable"]
    assert pipe.do(("write", 0, 4096)) == ("ok", None)
    assert pipe.lengths() == [4096, 1]


@pytest.mark.parametrize("arg", [4 * PAGE, 8 * PAGE, 16 * PAGE, MAX])
@pytest.mark.parametrize("turns", range(8))
def test_resize_keeps_bytes_slots_and_room(new_pipe: Make, arg: int, turns: int) -> None:
    pipe = new_pipe(8 * PAGE)
    play(pipe, "+4096 -4096 " * turns + "+4000 +200 +300 +4096 +2000 -1")
    assert pipe.do(("unread", "r")) == ("ok", 10595)
    assert pipe.do(("set_size", "r", arg)) == ("ok", arg)
    assert play(pipe, "+2096") == [2096]  # Merges: the last slot has this much room.
    other = new_pipe(8 * PAGE)
    play(other, "+4000 +200 +300 +4096 +2000 -1 +2096")
    assert pipe.do(("read", 5000)) == other.do(("read", 5000))
    assert pipe.do(("write", 99, 5000)) == other.do(("write", 99, 5000))
    assert pipe.do(("read", -1)) == other.do(("read", -1))


def test_resize_keeps_the_slot_layout(new_pipe: Make) -> None:
    pipe = new_pipe(8 * PAGE)
    play(pipe, "+4096 -4096 " * 6 + "+4000 +200 +300 +4096 +2000 -3999")
    assert pipe.do(("set_size", "r", 4 * PAGE)) == ("ok", 4 * PAGE)
    assert pipe.lengths() == [1, 500, 4096, 2000]


# ------------------------------------------------------------------ write sizes


WRITE_SIZES = [
    *[(arg, 4096) for arg in (1, 4095, 4096)],
    *[(arg, 8192) for arg in (4097, 8192)],
    *[(arg, 12288) for arg in (8193, 12288)],
    *[(arg, 65536) for arg in (65535, 65536)],
    *[(arg, EINVAL) for arg in (0, 65537, 65536 + PAGE, MAX, -1, -4096, -(1 << 31))],
]


@OURS
@pytest.mark.parametrize("end", ["r", "w"])
@pytest.mark.parametrize("other", ["open", "closed"])
@pytest.mark.parametrize(("arg", "expected"), WRITE_SIZES)
def test_write_size(
    new_pipe: Make, end: str, other: str, arg: int, expected: int | tuple[str, int]
) -> None:
    pipe = new_pipe()
    if other == "closed":
        pipe.do(("close", "w" if end == "r" else "r"))
    assert pipe.do(("get_write_size", end)) == ("ok", 4096)
    assert pipe.do(("set_write_size", end, 8192)) == ("ok", 8192)
    outcome = ("ok", expected) if isinstance(expected, int) else expected
    assert pipe.do(("set_write_size", end, arg)) == outcome
    now = expected if isinstance(expected, int) else 8192
    assert pipe.do(("get_write_size", end)) == ("ok", now)


@OURS
def test_both_ends_share_the_write_size(new_pipe: Make) -> None:
    pipe = new_pipe()
    for end, other, size in (("r", "w", 3 * PAGE), ("w", "r", 5 * PAGE)):
        assert pipe.do(("set_write_size", end, size)) == ("ok", size)
        assert pipe.do(("get_write_size", other)) == ("ok", size)


@OURS
def test_resize_and_write_size(new_pipe: Make) -> None:
    pipe = new_pipe()
    assert pipe.do(("set_write_size", "w", 5 * PAGE)) == ("ok", 5 * PAGE)
    assert pipe.do(("set_size", "w", 4 * PAGE)) == EBUSY
    assert pipe.do(("set_size", "r", -1)) == EINVAL
    assert pipe.do(("set_size", "r", 1 << 31)) == EPERM
    assert pipe.do(("set_size", "r", 8 * PAGE)) == ("ok", 8 * PAGE)
    assert pipe.do(("set_write_size", "r", 8 * PAGE)) == ("ok", 8 * PAGE)
    assert pipe.do(("set_size", "r", 8 * PAGE)) == ("ok", 8 * PAGE)  # As many as W: allowed.
    assert pipe.do(("set_size", "r", MAX)) == ("ok", MAX)
    assert pipe.do(("get_write_size", "w")) == ("ok", 8 * PAGE)


@OURS
@pytest.mark.parametrize("pages", [1, 2, 4, 16])
def test_level_follows_the_write_size(new_pipe: Make, pages: int) -> None:
    for write_pages in range(1, pages + 1):
        for used in range(pages + 1):
            pipe = new_pipe(pages * PAGE, write_size=write_pages * PAGE)
            assert pipe.do(("get_write_size", "r")) == ("ok", write_pages * PAGE)
            play(pipe, "+2049 " * used)
            assert pipe.ready()["w writable"] == (pages - used >= write_pages)
            # The level changes at once, both ways.
            pipe.do(("set_write_size", "w", PAGE))
            assert pipe.ready()["w writable"] == (used < pages)
            pipe.do(("set_write_size", "w", pages * PAGE))
            assert pipe.ready()["w writable"] == (used == 0)
            pipe.dispose()


@OURS
def test_write_does_not_look_at_the_write_size(new_pipe: Make) -> None:
    pipe = new_pipe(4 * PAGE, write_size=4 * PAGE)
    assert play(pipe, "+4096") == [4096]
    assert not pipe.ready()["w writable"]
    assert play(pipe, "+1 +4096 +9000 +1") == [1, 4096, 4096, None]
    play(pipe, "-4097")
    assert not pipe.ready()["w writable"]
    assert play(pipe, "+9000") == [8192]


@OURS
@pytest.mark.parametrize("wake", POLICIES)
@pytest.mark.parametrize("pages", [1, 2, 4, 16])
def test_level_of_each_policy(new_pipe: Make, wake: str, pages: int) -> None:
    pipe = new_pipe(pages * PAGE, wake=wake)

    def check(used: int) -> None:
        expected = used <= pages // 2 if wake == "half" else used < pages
        assert [pipe.ready(how)["w writable"] for how in POLLERS] == [expected] * len(POLLERS)

    check(0)
    for used in range(1, pages + 1):
        play(pipe, "+2049")
        check(used)
    for used in range(pages - 1, -1, -1):
        play(pipe, "-2048")  # No slot is freed by this.
        check(used + 1)
        play(pipe, "-1")
        check(used)
