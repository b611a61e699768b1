"""The main job: generator and counter against the real seq and wc, the processes, the command."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmpipe.__main__ import main
from shmpipe.commands import pair, runs, seqwc
from shmpipe.commands.lines import Counter, number_chunks, text_size
from shmpipe.commands.options import size_in_bytes
from shmpipe.commands.progress import Progress
from shmpipe.commands.table import byte_count
from shmpipe.policies import POLICIES

from .support import eventually, kernel_may_exceed_max

COMMAND = [sys.executable, "-I", "-m", "shmpipe", "seqwc"]
WC = {"env": {**os.environ, "LC_ALL": "C"}, "capture_output": True, "check": True}


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=50)


# Generator and counter


@pytest.mark.parametrize("size", [7, 4096, 16384, 1 << 20])
@pytest.mark.parametrize(
    "count",
    [1, 9, 10, 11, 99, 100, 9999, 10_000, 10_001, 19_999, 20_000, 99_999, 100_000, 123_456],
)
def test_generator_writes_what_seq_writes(count: int, size: int) -> None:
    expected = subprocess.run(["seq", str(count)], stdout=subprocess.PIPE, check=True).stdout
    pieces = [bytes(piece) for piece in number_chunks(count, size)]
    assert b"".join(pieces) == expected
    assert {len(piece) for piece in pieces[:-1]} <= {size}
    assert 0 < len(pieces[-1]) <= size
    assert text_size(count) == len(expected)


@pytest.mark.parametrize("count", [1_000_003, 10_000_019])
def test_generator_across_more_digits(count: int) -> None:
    expected = subprocess.run(["seq", str(count)], stdout=subprocess.PIPE, check=True).stdout
    assert b"".join(map(bytes, number_chunks(count))) == expected


def test_size_of_the_full_text() -> None:
    assert text_size(50_000_000) == 438_888_897


def count_in_pieces(data: bytes, sizes: Iterator[int], limit: int) -> tuple[int, int, int]:
    buffer = bytearray(limit)
    counter = Counter(buffer)
    start = 0
    while start < len(data):
        piece = data[start : start + min(next(sizes), limit)]
        buffer[: len(piece)] = piece
        counter.feed(len(piece))
        start += len(piece)
    return counter.lines, counter.words, counter.bytes


@pytest.mark.parametrize("seed", range(8))
def test_counter_counts_what_wc_counts(seed: int) -> None:
    rng = random.Random(seed)
    # From mostly white space to mostly words, all kinds of white space among them.
    alphabet = b" \t\n\v\f\r" * rng.randint(1, 4) + bytes(range(33, 33 + rng.randint(1, 94)))
    data = bytes(rng.choices(alphabet, k=rng.randint(1, 200_000)))
    done = subprocess.run(["wc"], input=data, **WC)  # type: ignore[call-overload]
    sizes = iter(lambda: rng.randint(1, 16384), 0)
    assert count_in_pieces(data, sizes, 16384) == tuple(map(int, done.stdout.split()))


@given(
    data=st.binary(max_size=300) | st.text(" \t\n\v\f\rab\x00\x7f", max_size=300).map(str.encode),
    sizes=st.lists(st.integers(1, 40), min_size=1),
)
def test_counter_keeps_its_place_between_pieces(data: bytes, sizes: list[int]) -> None:
    endless = (size for _ in range(len(data) + 1) for size in sizes)
    expected = (data.count(b"\n"), len(data.split()), len(data))
    assert count_in_pieces(data, endless, 40) == expected


# Two processes


def pipe_ends() -> tuple[Any, Any]:
    read_fd, write_fd = os.pipe()
    return open(read_fd, "rb", buffering=0), open(write_fd, "wb", buffering=0)


def forever(channel: pair.Channel) -> None:
    while True:
        time.sleep(1)


def test_pair_gives_the_readers_answer_and_each_ones_usage() -> None:
    reader, writer = pipe_ends()

    def write(channel: pair.Channel) -> None:
        reader.close()
        deadline = time.process_time() + 0.1
        while time.process_time() < deadline:
            writer.write(b"x" * 1000)

    def read(channel: pair.Channel) -> dict[str, int]:
        writer.close()
        return {"bytes": len(reader.readall())}

    outcome = pair.run_pair(write, read, ends=[reader, writer])
    assert outcome.answer["bytes"] % 1000 == 0
    assert outcome.writer.cpu_seconds >= 0.1
    assert outcome.seconds >= 0.1
    assert outcome.reader.switches > 0
    assert reader.closed and writer.closed


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_pair_ends_both_when_one_fails(role: str) -> None:
    def fail(channel: pair.Channel) -> None:
        raise LookupError("this is why")

    tasks = [fail, forever] if role == "writer" else [forever, fail]
    with pytest.raises(
        pair.ChildFailed, match=rf"the {role} ended with status 1(.|\n)*this is why"
    ):
        pair.run_pair(*tasks, ends=[])


def test_pair_tells_which_failure_came_first() -> None:
    """The writer's broken pipe is not all that is said when it was the reader that failed."""
    reader, writer = pipe_ends()

    def write(channel: pair.Channel) -> None:
        reader.close()
        while True:
            writer.write(b"x")

    def read(channel: pair.Channel) -> None:
        writer.close()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(pair.ChildFailed, match="the reader was killed by signal 9"):
        pair.run_pair(write, read, ends=[reader, writer])


def test_pair_gives_up_when_nothing_moves() -> None:
    def progress_once(channel: pair.Channel) -> None:
        channel.send(progress=5)
        forever(channel)

    seen: list[int] = []
    with pytest.raises(pair.ChildFailed, match=r"nothing has moved for 0\.5 s"):
        pair.run_pair(forever, progress_once, ends=[], progress=seen.append, stall_seconds=0.5)
    assert seen == [5]


def test_pair_names_a_missing_program() -> None:
    with pytest.raises(pair.ChildFailed, match="no-such-program"):
        pair.run_pair(forever, pair.program("no-such-program"), ends=[])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_command_takes_its_children_along(number: int, status: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--count", "2000000000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        eventually(lambda: len(children.read_text().split()) == 2, timeout=20)
        found = children.read_text().split()
        process.send_signal(number)  # the parent alone, not its group as a terminal would
        assert process.wait(20) == status
        assert not [pid for pid in found if Path(f"/proc/{pid}").exists()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Runs and their results

COUNT = 30_000


@pytest.mark.parametrize("size", [4096, 65536])
def test_kernel_runs(size: int) -> None:
    for result in (runs.run_seq_wc(COUNT, size), runs.run_kernel(COUNT, size)):
        assert result.problems() == []
        assert (result.pipe, result.size, result.stats) == ("kernel", size, None)
        assert (result.lines, result.words, result.bytes) == (COUNT, COUNT, text_size(COUNT))


@pytest.mark.parametrize("policy", POLICIES)
def test_shmpipe_runs(policy: str) -> None:
    result = runs.run_shmpipe(COUNT, 16384, 8192, policy)
    assert result.problems() == []
    assert (result.pipe, result.size, result.write_size) == ("shmpipe", 16384, 8192)
    assert result.stats is not None
    assert result.stats["writes"] == -(-text_size(COUNT) // 4096)


def test_wrong_counts_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = runs.run_kernel(1000)
    bad = dataclasses.replace(good, words=999)
    assert bad.problems() == ["ours, kernel pipe: words should be 1000, was 999"]
    swapped = dataclasses.replace(good, digest="0")
    assert len(swapped.problems()) == 1
    lost = dataclasses.replace(good, stats={"bytes_written": 3893, "bytes_read": 3892})
    assert len(lost.problems()) == 1

    monkeypatch.setattr(seqwc, "_measure", lambda args: [[good, bad, good]])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["seqwc", "--count", "1000"]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "words should be 1000, was 999" in capsys.readouterr().err


# The command


def test_command_prints_a_table() -> None:
    done = command("--count", "100000")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "seq 100000 | wc: 100000 100000 588895"
    columns = {line[:24].strip(): line[24:].split() for line in lines}
    assert columns["pipe"] == ["kernel", "kernel", "shmpipe", "shmpipe"]
    assert columns["write size"] == ["-", "-", "4", "KiB", "32", "KiB"]
    assert "context switches, both" in columns
    # Not a terminal: whole lines, one for each of the three runs of each column.
    assert "\r" not in done.stderr
    assert len(done.stderr.splitlines()) == 12


def test_command_prints_json() -> None:
    options = ["--count", "50_000", "--size", "128K", "--policy", "half"]
    options += ["--write-size", "4K", "--write-size", "8192", "--write-size", "64KiB"]
    done = command(*options, "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["count"] == 50_000
    results = report["results"]
    assert [result["pipe"] for result in results] == ["kernel"] * 2 + ["shmpipe"] * 3
    assert [result["write_size"] for result in results] == [None, None, 4096, 8192, 65536]
    assert len(report["runs"]) == 2 * len(results)
    assert all(result in report["runs"] for result in results)
    fields = {field.name for field in dataclasses.fields(runs.Result)}
    for result in results:
        assert set(result) == fields | {"switches", "cpu_seconds"}
        assert result["size"] == 131072
        assert set(result["writer"]) == {
            "user_seconds",
            "system_seconds",
            "voluntary",
            "involuntary",
        }
        assert result["switches"] >= result["writer"]["voluntary"]
        assert (result["lines"], result["words"]) == (50_000, 50_000)
    for result in results[2:]:
        assert result["policy"] == "half"
        assert result["spin"] == 0
        assert {"writer_sleeps", "writer_wakes", "writer_wakes_withheld"} <= set(result["stats"])


@pytest.mark.parametrize(
    "options",
    [
        ["--count", "0"],
        ["--count", "many"],
        ["--repeat", "0"],
        ["--size", "-1"],
        ["--size", "64X"],
        ["--policy", "never"],
        ["--spin", "-1"],
        ["--spin", "nan"],
        ["extra"],
    ],
)
def test_command_refuses_bad_options(options: list[str]) -> None:
    done = command(*options)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_command_says_what_the_pipe_refuses() -> None:
    done = command("--count", "1000", "--size", "4096", "--write-size", "8192")
    assert done.returncode == 1
    # Before anything is run: that is the only line.
    [line] = done.stderr.splitlines()
    assert line.startswith("shmpipe seqwc: ")


@pytest.mark.parametrize(("size", "write_sizes"), [("4K", [4096]), ("16K", [4096, 16384])])
def test_default_write_sizes_fit_into_a_small_pipe(size: str, write_sizes: list[int]) -> None:
    done = command("--count", "1000", "--repeat", "1", "--size", size, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["write_size"] for result in results] == [None, None, *write_sizes]


def test_a_pipe_larger_than_the_kernel_allows() -> None:
    if kernel_may_exceed_max():
        pytest.skip("this process may exceed pipe-max-size")
    size = 2 * int(Path("/proc/sys/fs/pipe-max-size").read_text())
    done = command("--count", "1000", "--repeat", "1", "--size", str(size))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("left out: kernel pipe: ")
    assert "against seq | wc" not in done.stdout


def test_an_encoding_without_our_signs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shmpipe", "seqwc", "--count", "1000", "--repeat", "1"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},  # which -I would ignore
        cwd=tmp_path,
        capture_output=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert b"1.00 ?" in done.stdout


def test_output_that_nobody_reads() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        done = subprocess.run(
            [*COMMAND, "--count", "1000"], stdout=write_fd, stderr=subprocess.PIPE, timeout=50
        )
    finally:
        os.close(write_fd)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


def test_command_without_stdin() -> None:
    """Its pipes then get the numbers 0 and up, which programs expect elsewhere."""
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "--count", "1000", "--repeat", "1"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


def test_help_and_version() -> None:
    for options, text in ([["--help"], "seqwc"], [["--version"], "shmpipe "]):
        done = subprocess.run(
            [*COMMAND[:-1], *options], capture_output=True, text=True, check=True, timeout=50
        )
        assert text in done.stdout
    assert subprocess.run(COMMAND[:-1], capture_output=True, timeout=50).returncode == 2


def test_numpy_is_left_to_the_commands() -> None:
    code = (
        "import sys, shmpipe, shmpipe.__main__ as m; m.make_parser(); print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == "False\n"


# What is shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_in_a_terminal() -> None:
    stream = Terminal()
    progress = Progress(200, stream)
    progress.start("a run")
    for done in range(0, 201, 50):
        progress.update(done)
    progress.finish()
    shown = stream.getvalue()
    assert "\n" not in shown
    assert "a run" in shown and " 25%" in shown and "100%" in shown
    assert shown.endswith("\r\x1b[K")
    assert all(len(line) < 200 for line in shown.split("\r"))


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    progress = Progress(1200, stream)
    progress.start("a run")
    for done in range(0, 1201, 25):
        now += 0.25
        progress.update(done)
    progress.finish()
    assert stream.getvalue().splitlines() == ["a run: 40%", "a run: 81%", "a run: done in 12.2 s"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(4096, "4 KiB"), (1 << 20, "1 MiB"), (3 << 19, "1536 KiB"), (1000, "1000 bytes")],
)
def test_byte_counts(number: int, text: str) -> None:
    assert byte_count(number) == text
    if "bytes" not in text:
        assert size_in_bytes(text.replace(" ", "")) == number
