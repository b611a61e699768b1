"""The benchmarks run, with counts that say nothing about speed.

They run as a user starts them: from the checkout, as a program of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from .support import register_pid

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ["creation", "streaming", "roundtrip", "objects", "selectors", "crowd", "import"]
PEERS = ["os.pipe", "multiprocessing"]

pytestmark = pytest.mark.skipif(
    not (ROOT / "bench" / "__main__.py").exists(), reason="not in a checkout"
)


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
    register_pid(process.pid)
    return process


def run(*arguments: str) -> str:
    process = start(*arguments)
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, ""), output + errors
    return output


@pytest.mark.parametrize("group", GROUPS)
def test_every_workload_runs(group: str, tmp_path: Path) -> None:
    results, tables = tmp_path / "results.json", tmp_path / "tables.md"
    selection = ["--only", group, "--peers", *PEERS]
    files = ["--json", str(results), "--markdown", str(tables)]

    output = run("-m", "bench", "--smoke", *selection, *files)

    document = json.loads(results.read_text())
    text = tables.read_text()
    assert document["workloads"]
    for workload in document["workloads"]:
        assert workload["group"] == group
        assert workload["title"] in output
        assert f"### {workload['title']}" in text
        names = [contender["name"] for contender in workload["contenders"]]
        assert workload["subject"] in names and len(names) > 2
        for contender in workload["contenders"]:
            assert "failure" not in contender, contender
            assert contender["median"]["rate"] > 0
            assert contender["name"] in output
            assert contender["name"] in text
            if group == "roundtrip":
                latency = contender["latency"]
                assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"]
    if group == "creation":
        assert " × multiprocessing.Pipe()" in output


def test_all_groups_are_tested() -> None:
    listed = run("-m", "bench", "--list", "--peers", *PEERS)
    assert {line.split()[0] for line in listed.splitlines()} == set(GROUPS)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--peers", "nobody"], "no peer has 'nobody' in its name"),
        (["--only", "nothing"], "unknown workload: nothing"),
        (["--json", "/nowhere/x.json"], "there is no directory /nowhere"),
        (["--docs", "/nowhere"], "there is no performance.md in it"),
        (["--load", "/nowhere/x.json"], "cannot take results from /nowhere/x.json"),
        (["--load", str(ROOT / "README.md")], "cannot take results from"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    arguments: list[str], why: str
) -> None:
    process = start("-m", "bench", "--smoke", *arguments)
    output, errors = process.communicate()
    assert process.returncode == 1
    assert why in errors
    assert "Traceback" not in errors
    assert all(line.startswith("skipped: ") for line in output.splitlines())


def test_results_can_be_loaded_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run("-m", "bench", "--smoke", "--only", "crowd", "--peers", "os.pipe", "--json", str(first))
    run("-m", "bench", "--load", str(first), "--json", str(second))
    assert json.loads(first.read_text()) == json.loads(second.read_text())


def test_a_peer_that_fails_is_reported_and_nobody_else_suffers() -> None:
    program = """
        import os, signal, sys, time

        sys.path[:] = [*filter(None, sys.path), os.getcwd()]  # as bench does
        from bench import crowd, report, results, rounds
        from bench.peers.stdlib import OsPipe, OsPipeChannel

        class Raising(OsPipeChannel):
            def sender(self):
                raise RuntimeError("not today")

        class Dying(OsPipeChannel):
            def receiver(self):
                return lambda: os.kill(os.getpid(), signal.SIGKILL)

        class Hanging(OsPipeChannel):
            def receiver(self):
                return lambda: time.sleep(600)

        class Peer(OsPipe):
            def __init__(self, kind):
                self.name, self.channel = kind.__name__, lambda size, writers: kind(size)

        peers = [Peer(kind) for kind in (Raising, Dying, Hanging, OsPipeChannel)]
        plan = rounds.Plan(rounds=1, timeout=2, fixed_count=4)
        [workload] = crowd.workloads(peers, plan)
        rounds.measure(workload, plan, lambda text: None)
        entry = results.workload_entry(workload)
        print("\\n".join(report.lines(entry)))
        try:
            print(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("no child left")
    """
    output = run("-c", textwrap.dedent(program))
    assert "Raising: RuntimeError: not today" in output
    assert "Dying: ended with signal SIGKILL" in output
    assert "Hanging: not done after 2 s" in output
    assert "OsPipeChannel " in output
    assert output.endswith("no child left\n")


@pytest.mark.parametrize("stopping", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(stopping: signal.Signals, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    arguments = ["--fast", "--only", "crowd", "creation", "--peers", "os.pipe"]
    process = start("-m", "bench", *arguments, "--json", str(results), start_new_session=True)
    assert process.stdout is not None
    # The first group has been measured, the next one has begun.
    for line in process.stdout:
        if line == "\n":
            break
    time.sleep(0.1)
    # As the terminal does it: all processes of the group.
    os.killpg(process.pid, stopping)
    output, errors = process.communicate()
    assert process.returncode == 130, output + errors
    assert [entry["name"] for entry in json.loads(results.read_text())["workloads"]] == ["creation"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_page_shows_the_figures_beside_it() -> None:
    code = (
        "import json, sys, bench; from bench import performance_page; from pathlib import Path;"
        "page = Path('docs/performance.md').read_text();"
        "document = json.loads(Path('docs/performance/measured.json').read_text());"
        "sys.exit(page != performance_page.fill(page, document))"
    )
    done = start("-c", code)
    _, errors = done.communicate(timeout=50)
    assert done.returncode == 0, errors


def test_what_was_aimed_at_is_compared_round_by_round() -> None:
    code = """if True:
        from bench import performance_page as page
        def entry(name, *seconds):
            rounds = [{"count": 1, "seconds": s, "cpu_seconds": s / 2} for s in seconds]
            return {"name": name, "median": {}, "rounds": rounds}
        contenders = [entry("shmpipe", 1, 2, 1), entry("cloudtoid-interprocess", 3, 4, 9),
                      entry("limit: memcpy", 0.1, 0.1, 0.1), entry("other", 4, 8, 5)]
        aims = page._aims({"workloads": [{"name": "stream-64KiB", "contenders": contenders}]})
        print(aims[-1])
    """
    done = start("-c", textwrap.dedent(code))
    output, errors = done.communicate(timeout=50)
    assert done.returncode == 0, errors
    assert output.strip() == ("| 64 KiB one way | cloudtoid-interprocess | 1.5 × | 3 × | yes |")
