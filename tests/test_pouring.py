"""``shmpipe bench`` and the programs of bench/ about wake-ups, with amounts that say nothing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shmpipe.commands import pouring
from shmpipe.commands.bench import PUBLISHED
from shmpipe.commands.pouring import Subject, pour
from shmpipe.policies import POLICIES

from .support import kernel_may_exceed_max, register_pid

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-I", "-m", "shmpipe", "bench"]
SHORT = ["--samples", "2", "--sample-seconds", "0.02"]

checkout = pytest.mark.skipif(
    not (ROOT / "bench" / "__main__.py").exists(), reason="not in a checkout"
)


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=50)


def program(name: str, *options: str) -> str:
    """What a program of bench/ prints, started as a user starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.{name}", *options],
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    register_pid(process.pid)
    output, errors = process.communicate(timeout=55)
    assert process.returncode == 0, errors
    return output


# One pour


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_what_is_poured_is_what_is_counted(policy: str | None) -> None:
    done = pour(Subject("it", policy, 8192), 16384, 5000, 3000, 3, 0.02)
    assert len(done.samples) == 3 and min(done.samples) > 0
    assert done.total > 0
    assert done.cpu_seconds > 0 and done.switch_rate == done.switches / done.cpu_seconds
    if policy is None:
        assert done.stats is None
    else:
        assert done.stats
        # The first bytes are read before the clock starts.
        assert done.total < done.stats["bytes_read"] <= done.total + 3000
        assert done.stats["bytes_written"] >= done.stats["bytes_read"]


def test_a_sample_counts_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.6, 1.5, 2.4, 2.6])

    class Reader:
        def readinto(self, buffer: bytearray) -> int:
            return len(buffer)

    class Channel:
        def send(self, **message: Any) -> None:
            pass

    monkeypatch.setattr(pouring.time, "perf_counter", lambda: next(ticks))
    reader: Any = Reader()
    channel: Any = Channel()
    samples, total = pouring._drain(reader, 30, 2, 1.0, channel)
    assert samples == [60 / 1.5, 60 / (2.6 - 1.5)]
    assert total == 120


# The command


def test_the_table() -> None:
    done = command(*SHORT)
    assert done.returncode == 0, done.stderr
    about, _, heads, rule, *rows = done.stdout.splitlines()
    assert "64 KiB" in about
    assert heads.split() == [
        *("BENCHMARK", "BEST", "TOTAL", "BYTES", "AVG", "BYTES/S", "STDDEV", "SWITCHES/CPU-S")
    ]
    assert set(rule) == {"=", " "}
    names = [row.split("  ")[0] for row in rows]
    assert names[0] == "kernel pipe"
    assert len(names) == 1 + len(POLICIES) + len(PUBLISHED)
    for policy in POLICIES:
        assert any(name.startswith(f"shmpipe {policy}") for name in names)
    # 22,187 and 17,728 context switches over 240 CPU-seconds.
    assert [row.split()[-1] for row in rows[-2:]] == ["92.4", "73.9"]


@pytest.mark.parametrize("chunks", [("1", "1M"), ("1M", "1"), ("5000", "300")])
def test_chunk_sizes(chunks: tuple[str, str]) -> None:
    options = ["--write-chunk", chunks[0], "--read-chunk", chunks[1], "--policy", "half"]
    done = command(*SHORT, *options, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["results"]] == ["kernel pipe", "shmpipe half"]
    for row in report["results"]:
        assert len(row["samples"]) == 2
        assert row["best"] >= row["average"] > 0
        assert row["deviation"] >= 0
    assert list(report["published"]) == list(PUBLISHED)


@pytest.mark.parametrize(
    "options",
    [
        ["--samples", "0"],
        ["--sample-seconds", "0"],
        ["--write-chunk", "0"],
        ["--read-chunk", "2M"],
        ["--policy", "never"],
    ],
)
def test_bad_options(options: list[str]) -> None:
    assert command(*options).returncode == 2


def test_what_the_pipe_refuses() -> None:
    done = command(*SHORT, "--size", "4K", "--write-size", "8K", "--policy", "write-size")
    assert done.returncode == 1
    # Before anything is run: that is the only line.
    [line] = done.stderr.splitlines()
    assert line.startswith("shmpipe bench: ")


def test_a_pipe_larger_than_the_kernel_allows() -> None:
    if kernel_may_exceed_max():
        pytest.skip("this process may exceed pipe-max-size")
    size = 2 * int(Path("/proc/sys/fs/pipe-max-size").read_text())
    done = command(*SHORT, "--size", str(size), "--policy", "half", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("left out: kernel pipe: ")
    assert [row["name"] for row in json.loads(done.stdout)["results"]] == ["shmpipe half"]


# The programs of bench/


@checkout
def test_seq_wc_covers_the_grid(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    sizes = ["--size", "16K", "--size", "64K"]
    options = ["--count", "3000", "--repeat", "1", "--json", str(results)]
    output = program("seq_wc", *sizes, *options)
    records = json.loads(results.read_text())
    rows = [(record["size"], record["policy"], record["write_size"]) for record in records]
    assert {size for size, _, _ in rows} == {16384, 65536}
    for policy in POLICIES:
        assert {size for size, of_row, _ in rows if of_row == policy} == {16384, 65536}
    swept = [
        write_size for size, of_row, write_size in rows if (size, of_row) == (65536, "write-size")
    ]
    assert swept == [4096, 8192, 16384, 32768, 49152, 65536]
    assert [record["programs"] for record in records if record["pipe"] == "kernel"] == [
        *("seq, wc", "ours") * 2
    ]
    assert len(output.splitlines()) == 1 + len(records)


@checkout
def test_pipe_bench_is_the_command() -> None:
    output = program("pipe_bench", *SHORT, "--policy", "half")
    assert "kernel pipe" in output and "published" in output


@checkout
def test_curves_are_measured_and_the_page_is_written(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    program("wake_curves", "--smoke", "--json", str(results))
    document = json.loads(results.read_text())
    assert set(document["flows"]) == {"stream", "unequal", "connection"}
    for records in document["flows"].values():
        for record in records:
            assert record["rate"] > 0
            assert 0 < record["p50"] <= record["p99"]
    page = tmp_path / "wakeups.md"
    page.write_text("before\n<!-- measured: machine -->\nold\n<!-- end -->\nafter\n")
    draws = importlib.util.find_spec("matplotlib") is not None
    drawn = ["--plots", str(tmp_path / "plots")] if draws else []
    program("wake_curves", "--page", str(page), "--load", str(results), *drawn)
    before, _, *measured, _, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert document["kernel"] in "".join(measured)
    if draws:
        names = {path.name for path in (tmp_path / "plots").iterdir()}
        assert names == {"switches.svg", "cost.svg", "unequal.svg", "connection.svg"}


@checkout
def test_the_page_shows_the_figures_beside_it() -> None:
    code = (
        "import json, sys, bench; from bench import wake_page; from pathlib import Path;"
        "page = Path('docs/wakeups.md').read_text();"
        "document = json.loads(Path('docs/wakeups/measured.json').read_text());"
        "sys.exit(page != wake_page.fill(page, document))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=50).returncode == 0


@checkout
def test_a_figure_of_pipe_bench_is_compared_with_pipe_bench() -> None:
    code = (
        "import json, bench; from bench import wake_page; from pathlib import Path;"
        "document = json.loads(Path('docs/wakeups/measured.json').read_text());"
        "[name] = [name for name, said, *_ in wake_page.claims(document) if '22,187' in said];"
        "assert name == 'pipe-bench, `edge-half` against `page`', name"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
