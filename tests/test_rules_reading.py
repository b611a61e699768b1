"""Reading, zero lengths, FIONREAD, level readiness and what closing an end does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from .conftest import REAL
from .subjects import POLLERS, Step, Subject
from .support import PAGE
from .test_rules_writing import play

Make = Callable[..., Subject]


def test_read_gathers_over_slots(new_pipe: Make) -> None:
    pipe = new_pipe()
    play(pipe, "+2049 " * 16)
    assert len(pipe.do(("read", 1 << 20))[1]) == 32784
    play(pipe, "+2049 " * 16)
    assert len(pipe.do(("read", 2050))[1]) == 2050
    assert len(pipe.do(("read", 1 << 20))[1]) == 32784 - 2050


def test_read_returns_what_was_written_in_order(new_pipe: Make) -> None:
    pipe = new_pipe(4 * PAGE)
    for start in range(0, 200, 7):
        pipe.do(("write", start, 300))
    whole = pipe.do(("read", -1))[1]
    assert len(whole) == 29 * 300
    for index, start in enumerate(range(0, 200, 7)):
        assert whole[index * 300] == start + 1


@pytest.mark.parametrize("kind", [("read", 1), ("read", 65536), ("readinto", 1), ("readinto", 9)])
def test_reading_from_an_empty_pipe(new_pipe: Make, kind: tuple[str, int]) -> None:
    pipe = new_pipe()
    nothing = kind[0] == "readinto"
    for ops in ("", "+1 -1", "+65536 -65536"):
        play(pipe, ops)
        outcome = pipe.do(kind)
        assert outcome == ("ok", (None, b"\xff" * kind[1]) if nothing else None)
    pipe.do(("close", "w"))
    for _ in range(3):
        assert pipe.do(kind) == ("ok", (0, b"\xff" * kind[1]) if nothing else b"")


@pytest.mark.parametrize("writer", ["open", "closed"])
@pytest.mark.parametrize("ops", ["", "+1", "+65536"])
def test_reading_zero_bytes(new_pipe: Make, ops: str, writer: str) -> None:
    pipe = new_pipe()
    play(pipe, ops)
    if writer == "closed":
        pipe.do(("close", "w"))
    before = pipe.do(("unread", "r")), pipe.ready()
    assert pipe.do(("read", 0)) == ("ok", b"")
    assert pipe.do(("readinto", 0)) == ("ok", (0, b""))
    assert (pipe.do(("unread", "r")), pipe.ready()) == before


@pytest.mark.parametrize("count", [1, 100, 4096, 5000, 70000])
def test_readinto_touches_nothing_beyond_its_count(new_pipe: Make, count: int) -> None:
    pipe = new_pipe()
    play(pipe, "+4096 +1000 -1")
    held = 5095
    got, buffer = pipe.do(("readinto", count))[1]
    assert got == min(count, held)
    assert len(buffer) == count
    assert b"\xff" not in buffer[:got]
    assert buffer[got:] == b"\xff" * (count - got)


@pytest.mark.parametrize("step", [("read", -1), ("read", -5), ("read", None), ("readall",)])
def test_reading_all(new_pipe: Make, step: tuple[object, ...]) -> None:
    pipe = new_pipe()
    assert pipe.do(step) == ("ok", None)
    play(pipe, "+2049 " * 16)
    assert len(pipe.do(step)[1]) == 32784
    assert pipe.do(step) == ("ok", None)
    play(pipe, "+5000")
    pipe.do(("close", "w"))
    assert len(pipe.do(step)[1]) == 5000
    assert pipe.do(step) == ("ok", b"")


def test_fionread(new_pipe: Make) -> None:
    pipe = new_pipe()
    expected = 0
    for ops, change in (("", 0), ("+100", 100), ("+5000", 5000), ("-1", -1), ("+0 -99", -99)):
        play(pipe, ops)
        expected += change
        assert pipe.do(("unread", "r")) == pipe.do(("unread", "w")) == ("ok", expected)


@pytest.mark.parametrize(("closed", "other"), [("r", "w"), ("w", "r")])
def test_fionread_after_the_other_end_closed(new_pipe: Make, closed: str, other: str) -> None:
    pipe = new_pipe()
    play(pipe, "+100 +5000 -1")
    pipe.do(("close", closed))
    assert pipe.do(("unread", other)) == ("ok", 5099)
    assert pipe.do(("get_size", other)) == ("ok", 65536)
    assert pipe.do(("set_size", other, 131072)) == ("ok", 131072)


def test_buffered_bytes_come_before_end_of_file(new_pipe: Make) -> None:
    pipe = new_pipe(2 * PAGE)
    play(pipe, "+4096 +100 -50")
    pipe.do(("close", "w"))
    assert [len(pipe.do(("read", 4000))[1]) for _ in range(5)] == [4000, 146, 0, 0, 0]


CLOSED_END_STEPS: dict[str, list[Step]] = {
    "r": [("read", 1), ("read", 0), ("readall",), ("readinto", 1), ("readinto", 0)],
    "w": [("write", 0, 1), ("write", 0, 0)],
}


@pytest.mark.parametrize("end", ["r", "w"])
@pytest.mark.parametrize("ops", ["", "+1", "+65536"])
def test_closed_end(new_pipe: Make, end: str, ops: str) -> None:
    pipe = new_pipe()
    play(pipe, ops)
    assert pipe.do(("closed", end)) == ("ok", False)
    for _ in range(2):  # A second close does nothing.
        assert pipe.do(("close", end)) == ("ok", None)
        assert pipe.do(("closed", end)) == ("ok", True)
    steps: list[Step] = CLOSED_END_STEPS[end] + [
        ("unread", end),
        ("get_size", end),
        ("set_size", end, 4096),
    ]
    for step in [*steps, ("set_flags", end, 0), ("get_flags", end)]:
        assert pipe.do(step) == ("ValueError", None), step


@REAL
@pytest.mark.parametrize("end", ["r", "w"])
def test_flags(new_pipe: Make, end: str) -> None:
    pipe = new_pipe()
    expected = os.O_NONBLOCK | (end == "w")
    assert pipe.do(("get_flags", end)) == ("ok", expected)
    # Access mode and creation flags are ignored.
    for junk in (os.O_RDWR, os.O_WRONLY, os.O_CREAT | os.O_EXCL | os.O_TRUNC):
        assert pipe.do(("set_flags", end, junk)) == ("ok", 0)
        assert pipe.do(("get_flags", end)) == ("ok", expected)


# State, then: read end readable; write end readable, writable; None where that end is closed.
LEVELS = [
    ("", "", False, False, True),
    ("+1", "", True, False, True),
    ("+4096", "", True, False, True),
    ("+2049 +2049", "", True, False, False),
    ("+4096 +4096", "", True, False, False),
    ("+1", "w", True, None, None),
    ("+4096 +4096", "w", True, None, None),
    ("", "w", True, None, None),
    ("", "r", None, True, True),
    ("+1", "r", None, True, True),
    ("+4096 +4096", "r", None, True, True),
    # Partial reads do not free a slot; the byte that does turns the level.
    ("+4096 +4096 -1", "", True, False, False),
    ("+4096 +4096 -4095", "", True, False, False),
    ("+4096 +4096 -4096", "", True, False, True),
    ("+2049 +2049 -2048", "", True, False, False),
    ("+2049 +2049 -2049", "", True, False, True),
    ("+4096 +4096 -8191", "", True, False, True),
    ("+4096 +4096 -8192", "", False, False, True),
    ("+4096 +1 +4095", "", True, False, False),
]


@pytest.mark.parametrize("how", POLLERS)
@pytest.mark.parametrize("watched", ["from the start", "late"])
@pytest.mark.parametrize(("ops", "closed", "r_in", "w_in", "w_out"), LEVELS)
def test_level(
    new_pipe: Make,
    how: str,
    watched: str,
    ops: str,
    closed: str,
    r_in: bool | None,
    w_in: bool | None,
    w_out: bool | None,
) -> None:
    pipe = new_pipe(2 * PAGE)
    if watched == "from the start":
        assert pipe.ready(how)["w writable"]
    for op in ops.split():
        play(pipe, op)
        if watched == "from the start":
            pipe.ready(how)
    for end in closed:
        pipe.do(("close", end))
    expected: dict[str, bool | None] = {}
    if r_in is not None:
        expected |= {"r readable": r_in, "r writable": False}
    if w_in is not None:
        expected |= {"w readable": w_in, "w writable": w_out}
    for _ in range(3):  # A level stays as it is.
        assert pipe.ready(how) == expected


def test_end_of_file_stays_readable_after_it_was_read(new_pipe: Make) -> None:
    pipe = new_pipe()
    pipe.do(("close", "w"))
    for _ in range(3):
        assert pipe.do(("read", 1)) == ("ok", b"")
        assert pipe.ready()["r readable"]


def test_broken_pipe_stays_writable_whatever_its_size(new_pipe: Make) -> None:
    pipe = new_pipe(2 * PAGE)
    play(pipe, "+4096 +4096")
    pipe.do(("close", "r"))
    assert pipe.do(("set_size", "w", 4 * PAGE)) == ("ok", 4 * PAGE)
    assert pipe.ready() == {"w readable": True, "w writable": True}
    assert pipe.do(("write", 0, 1)) == ("BrokenPipeError", errno.EPIPE)
