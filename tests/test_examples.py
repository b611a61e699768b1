"""The programs in examples/: what they do, and how they end when somebody interferes."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from .support import eventually, register_pid

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))

with_aio = pytest.mark.skipif(
    importlib.util.find_spec("shmpipe.aio") is None, reason="there is no shmpipe.aio"
)


class Run:
    """An example as a user starts it, in a session of its own."""

    def __init__(self, directory: Path, name: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)],
            cwd=directory,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        register_pid(self.process.pid)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def descendants(self) -> dict[int, int]:
        """Its processes that still run, with their parents."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                if int(session) == self.process.pid and state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
        return found

    def workers(self, count: int) -> list[int]:
        """The children of its fork server, once there are so many."""

        def found() -> list[int] | None:
            mine = self.descendants()
            workers = [pid for pid, parent in mine.items() if mine.get(parent) == self.process.pid]
            return sorted(workers) if len(workers) == count else None

        workers: list[int] = eventually(found, 20, f"{count} workers")
        return workers

    def interrupt(self) -> None:
        """Ctrl-C, which a terminal sends to all processes in front."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, status: int = 0, errors: str = "") -> str:
        """What else it prints, once it and all that it has started have ended as they should."""
        output, stderr = self.process.communicate(timeout=50)
        assert re.fullmatch(errors, stderr), stderr
        assert self.process.returncode == status
        eventually(lambda: not self.descendants(), 10)
        return output


def wait_until_at_work(workers: list[int]) -> None:
    """Until they have left Ctrl-C to their parent, as the workers of most examples do first.

    The fork server ignores it, too, and so do its children before they have got their handlers
    back: of SIGCHLD first, which it catches.
    """

    def at_work(pid: int) -> bool:
        text = Path(f"/proc/{pid}/status").read_text()
        ignored, caught = (
            int(re.findall(rf"^{name}:\s*(\w+)$", text, re.MULTILINE)[0], 16)
            for name in ("SigIgn", "SigCgt")
        )
        return bool(ignored >> signal.SIGINT - 1 & 1) and not caught >> signal.SIGCHLD - 1 & 1

    for worker in workers:
        eventually(lambda worker=worker: at_work(worker), 20)
    time.sleep(0.02)
    for worker in workers:
        eventually(lambda worker=worker: at_work(worker), 20)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where an example runs, and where its names are."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


def holds_pipes(pid: int) -> int:
    """How many pipes of ours a process holds."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:shmpipe")
    return count


def load(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.once
def test_the_index_is_complete() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)\.py\)", index)) == NAMES
    tests = Path(__file__).read_text()
    for name in NAMES:
        assert f'directory, "{name}"' in tests
        text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
        assert text is not None and f"python examples/{name}.py" in text


# ---------------------------------------------------------------- frames


def film(path: Path, width: int, height: int) -> list[numpy.ndarray[Any, Any]]:
    """The pictures of a film, which has to be whole."""
    header, _, rest = path.read_bytes().partition(b"\n")
    assert header.startswith(b"YUV4MPEG2 W%d H%d F" % (width, height))
    size = len(b"FRAME\n") + width * height
    assert len(rest) % size == 0
    pieces = [rest[at : at + size] for at in range(0, len(rest), size)]
    assert all(piece.startswith(b"FRAME\n") for piece in pieces)
    return [
        numpy.frombuffer(piece, numpy.uint8, offset=6).reshape(height, width) for piece in pieces
    ]


def test_frames(directory: Path) -> None:
    with Run(
        directory, "frames", "--frames", 25, "--fps", 0, "--width", 320, "--height", 180
    ) as run:
        output = run.end()
    assert re.search(r"^25 frames in small.y4m, 0 dropped; ", output, re.MULTILINE)
    pictures = film(directory / "small.y4m", 80, 45)
    assert len(pictures) == 25
    example = load("frames")
    kind, small = example.frame_type(180, 320), example.frame_type(45, 80)
    for number, picture in enumerate(pictures):
        memory, result = bytearray(kind.itemsize), bytearray(small.itemsize)
        example.draw(memory, kind, number)
        example.shrink(memory, result, kind, small)
        assert numpy.array_equal(numpy.frombuffer(result, small)[0]["pixels"], picture)


@pytest.mark.parametrize("how", ["stopped", "a worker dies", "all workers die", "the writer dies"])
def test_frames_ends_well(how: str, directory: Path) -> None:
    options = ["--frames", 1_000_000, "--width", 320, "--height", 180]
    with Run(directory, "frames", *options) as run:
        assert run.line() == "recording"
        *workers, writer = run.workers(3)
        path = directory / "small.y4m"
        eventually(lambda: path.exists() and path.stat().st_size > 30_000, 20)
        if how == "stopped":
            run.interrupt()
            assert "frames in small.y4m" in run.end()
        elif how == "a worker dies":
            os.kill(workers[0], signal.SIGKILL)
            size = path.stat().st_size
            eventually(lambda: path.stat().st_size > size + 100_000, 20)
            run.interrupt()
            assert "frames in small.y4m" in run.end(1, "1 of the workers died\n")
        elif how == "all workers die":
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            assert "frames in small.y4m" in run.end(1, "no worker is left\n2 of the workers died\n")
        else:
            os.kill(writer, signal.SIGKILL)
            run.end(1, "no worker is left\nthe writer has died\n")
            return
    assert film(path, 80, 45)


# ---------------------------------------------------------------- environments


def test_environments(directory: Path) -> None:
    options = ["--environments", 3, "--generations", 2, "--screen", 8]
    with Run(directory, "environments", *options) as run:
        output = run.end()
    results = re.findall(r"^(\S+): mean reward (\d+), \d+ steps/s$", output, re.MULTILINE)
    # The same seeds, so the same episodes, whatever carries them.
    assert results == [("multiprocessing.Pipe", results[0][1]), ("shmpipe.Pipe", results[0][1])]
    assert re.search(r"^\d+\.\d+ times as many$", output, re.MULTILINE)


@pytest.mark.parametrize("how", ["stopped", "an environment dies"])
def test_environments_end_well(how: str, directory: Path) -> None:
    options = ["--environments", 2, "--generations", 100_000, "--screen", 8]
    with Run(directory, "environments", *options) as run:
        workers = run.workers(2)
        if how == "stopped":
            wait_until_at_work(workers)
            run.interrupt()
            run.end(130)
        else:
            os.kill(workers[0], signal.SIGKILL)
            run.end(1, "an environment has died\n")


# ---------------------------------------------------------------- logfilter


def test_logfilter(directory: Path) -> None:
    lines = [
        f'10.0.0.{number % 7} - "GET / HTTP/1.1" {200 + number % 400}' for number in range(5000)
    ]
    (directory / "log").write_text("".join(f"{line} 1\n" for line in lines))
    matching = [line.split()[0] for line in lines if '" 5' in line]
    with Run(directory, "logfilter", "log", "--top", 10) as run:
        output = run.end()
    counts = re.findall(r"^ *(\d+) (10\.\S+)$", output, re.MULTILINE)
    assert {(int(count), who) for count, who in counts} == {
        (matching.count(who), who) for who in matching
    }
    assert f"{len(matching)} matching lines" in output


def test_logfilter_that_has_seen_enough(directory: Path) -> None:
    """The others leave when the last part does, without complaint."""
    with Run(directory, "logfilter", "--lines", 60_000, "--pattern", "", "--first", 10) as run:
        assert "      10 matching lines" in run.end()


@pytest.mark.parametrize("how", ["stopped", "read_file", "keep_matching", "count_addresses"])
def test_logfilter_ends_well(how: str, directory: Path) -> None:
    os.mkfifo(directory / "log")
    run = Run(directory, "logfilter", "log", "--pattern", "x")
    # Opening it waits for the first part, which then waits for more to come.
    with run, open(directory / "log", "w") as file:
        file.write("x " * 10)
        file.flush()
        parts = run.workers(3)  # in the order in which they were started
        for part, pipes in zip(parts, (1, 2, 2), strict=True):
            eventually(lambda part=part, pipes=pipes: holds_pipes(part) == pipes, 20)
        if how == "stopped":
            run.interrupt()
            run.end(130)
        else:
            names = ["read_file", "keep_matching", "count_addresses"]
            os.kill(parts[names.index(how)], signal.SIGKILL)
            run.end(1, "a part of the chain has died: there is no result\n")


@pytest.mark.parametrize("wrong", [["--pattern", "(["], ["."]])
def test_logfilter_says_what_is_wrong(wrong: list[str], directory: Path) -> None:
    with Run(directory, "logfilter", *wrong) as run:
        run.end(2, r"usage: (?s:.*)logfilter.py: error: .*\n")


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("name", ["sobel", "copy"])
def test_edges(name: str, directory: Path) -> None:
    with Run(directory, "edges", "--size", 403, "--strips", 5, "--filter", name) as run:
        output = run.end()
    assert re.fullmatch(
        r"the executor's own pipes: [\d.]+ s, \d+ MiB/s\n"
        r"shmpipe.installed\(\): [\d.]+ s, \d+ MiB/s\n",
        output,
    )


@pytest.mark.parametrize("how", ["stopped", "a worker dies"])
def test_edges_ends_well(how: str, directory: Path) -> None:
    with Run(directory, "edges", "--size", 3000, "--strips", 300) as run:
        workers = run.workers(2)
        wait_until_at_work(workers)
        if how == "stopped":
            run.interrupt()
            run.end(130)
        else:
            os.kill(workers[0], signal.SIGKILL)
            run.end(1, ".*terminated abruptly.*\n")


# ---------------------------------------------------------------- checksums


def test_checksums(directory: Path) -> None:
    (directory / "below").mkdir()
    expected = set()
    for number in range(20):
        data = os.urandom(number * 100_000)
        (directory / "below" / f"{number}").write_bytes(data)
        expected.add(f"{hashlib.sha256(data).hexdigest()}  below/{number}")
    with Run(directory, "checksums", "below", "none", "--workers", 3) as run:
        output = run.end(1, r"none: .*No such file.*\n1 of 21 files failed\n")
    assert set(output.splitlines()) == expected


@pytest.mark.parametrize("how", ["stopped", "a worker dies", "all workers die"])
def test_checksums_ends_well(how: str, directory: Path) -> None:
    (directory / "good").write_text("good")
    os.mkfifo(directory / "stuck")  # nobody writes to it
    with Run(directory, "checksums", "stuck", "good", "stuck") as run:
        assert run.line().endswith("  good")
        workers = run.workers(2)
        if how == "stopped":
            run.interrupt()
            run.end(130)
            return
        os.kill(workers[0], signal.SIGKILL)
        run.workers(1)  # the dead one is not there to open the file
        if how == "a worker dies":
            with open(directory / "stuck", "w") as file:
                file.write("text")
            text = hashlib.sha256(b"text").hexdigest()
            output = run.end(1, r"stuck: process \d+ has died\n1 of 3 files failed\n")
            assert output == f"{text}  stuck\n"
        else:
            os.kill(workers[1], signal.SIGKILL)
            run.end(1, r"(stuck: process \d+ has died\n){2}2 of 3 files failed\n")


# ---------------------------------------------------------------- hub


def test_hub(directory: Path) -> None:
    options = ["--programs", 2, "--sensors", 3, "--values", 4, "--pause", 0]
    with Run(directory, "hub", *options) as run:
        output = run.end()
    assert output.startswith(f"listening on {directory}/shmpipe/hub-")
    assert len(re.findall(r"^\d+/[012] +4 values, ", output, re.MULTILINE)) == 6
    assert output.endswith("6 sensors\n")
    assert os.listdir(directory / "shmpipe") == []


def test_hub_ends_well(directory: Path) -> None:
    options = ["--name", "test", "--sensors", 2, "--values", 1_000_000]
    with (
        Run(directory, "hub", "sensors", *options) as early,
        Run(directory, "hub", "hub", *options) as hub,
    ):
        assert hub.line() == f"listening on {directory}/shmpipe/test"
        with Run(directory, "hub", "hub", *options) as second:
            second.end(1, r".*somebody listens there already.*\n")
        with Run(directory, "hub", "sensors", *options) as killed:
            eventually(lambda: holds_pipes(hub.process.pid) == 4, 20)
            killed.process.kill()
            eventually(lambda: holds_pipes(hub.process.pid) == 2, 20)
        hub.interrupt()
        output = hub.end()
        early.end(1, "the hub has gone\n")
    assert output.startswith("stopped\n")
    assert len(re.findall(rf"^{early.process.pid}/[01] +\d+ values", output, re.MULTILINE)) == 2


def test_sensors_without_a_hub(directory: Path) -> None:
    with Run(directory, "hub", "sensors", "--name", "none", "--patience", 0.1) as run:
        run.end(1, ".*'none'.*\n")


# ---------------------------------------------------------------- service


@with_aio
def test_service(directory: Path) -> None:
    with Run(directory, "service", "--limit", 3) as run:
        output = run.end()
    assert output.splitlines()[1:] == [
        "answers by client:",
        "168, error: the worker has died, 1229",
        "error: that took too long, 9592",
        "4, 8, 10, 12, 15, 17, 19, 22, 24",
        "2 workers were replaced",
    ]


@with_aio
def test_service_answers_what_makes_no_sense(directory: Path) -> None:
    """And its workers live on."""
    requests = {
        "primes -5": "0",
        "primes many": "error: invalid literal.*'many'",
        "primes 99999999999999": "error: 99999999999999 is too much: at most 100000000",
        "primes": "error: invalid literal.*",
        "sleep -1": "error: .*non-negative",
        "sleep inf": "error: .+",
        "sleep nan": "error: .+",
        "tea": "error: no such request: tea",
    }
    with Run(directory, "service", "--port", 0, "--limit", 1000) as run:
        address = "localhost", int(run.line().rpartition(" ")[2])
        workers = run.workers(2)
        with socket.create_connection(address) as client, client.makefile("rw") as lines:
            lines.write("x" * 70_000 + "\n")
            with contextlib.suppress(ConnectionError):  # or what was not read ends it harder
                lines.flush()
                assert lines.readline() in ("error: that line is too long\n", "")
        with socket.create_connection(address) as client, client.makefile("rw") as lines:
            for request, answer in requests.items():
                lines.write(f"{request}\n")
                lines.flush()
                assert re.fullmatch(answer + "\n", lines.readline()), request
        wait_until_at_work(workers)
        assert run.workers(2) == workers
        run.interrupt()
        run.end(130)


@with_aio
def test_service_ends_well(directory: Path) -> None:
    """It has a client, and a worker that is busy."""
    with Run(directory, "service", "--port", 0, "--limit", 1000) as run:
        port = int(run.line().rpartition(" ")[2])
        with (
            socket.create_connection(("localhost", port)) as client,
            client.makefile("rw") as lines,
        ):
            for question, answer in (("primes 10", "4"), ("tea", "error: no such request: tea")):
                lines.write(f"{question}\n")
                lines.flush()
                assert lines.readline() == f"{answer}\n"
            os.kill(run.workers(2)[0], signal.SIGKILL)
            for _ in range(2):  # by one of them a dead worker is found
                lines.write("primes 100\n")
                lines.flush()
                assert lines.readline() in ("25\n", "error: the worker has died\n")
            wait_until_at_work(run.workers(2))
            lines.write("sleep 1000\n")
            lines.flush()
            run.interrupt()
            with contextlib.suppress(ConnectionResetError):  # or it ends without a reset
                assert lines.readline() == ""
        run.end(130)
