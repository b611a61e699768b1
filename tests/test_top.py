"""``shmpipe top``: what it finds, that nobody notices, and that it believes nothing it reads."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import segment
from shmpipe.commands import top
from shmpipe.commands.segments import Dead, Direction, Holder, Pipe

from .support import PAGE, Flag, eventually, register_pid, run_child

COMMAND = [sys.executable, "-I", "-m", "shmpipe", "top"]
COUNTS = (
    *("bytes_written", "bytes_read", "reader_sleeps", "writer_sleeps"),
    *("reader_wakes", "writer_wakes", "writer_wakes_withheld"),
)


def memory_of(end: Any) -> int:
    """The descriptor of the segment that an end has."""
    side = end._side if isinstance(end, shmpipe.PipeEnd) else (end._sender or end._receiver).side
    return int(side.ring.segment.memory.fileno())


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=50)


def look(*pids: int) -> list[dict[str, Any]]:
    """The pipes of these processes as the command tells them."""
    done = command("--once", "--json", "--interval", "0", *map(str, pids))
    assert (done.returncode, done.stderr) == (0, "")
    pipes: list[dict[str, Any]] = json.loads(done.stdout)["pipes"]
    return pipes


def find(end: Any, *pids: int) -> dict[str, Any]:
    """What is told of one pipe."""
    inode = os.fstat(memory_of(end)).st_ino
    [pipe] = [pipe for pipe in look(*(pids or (os.getpid(),))) if pipe["inode"] == inode]
    return pipe


def holders(pipe: dict[str, Any], what: str, ring: int = 0) -> set[int]:
    return {holder["pid"] for holder in pipe["holders"] if holder[what][ring]}


# What it finds


def test_settings_and_counts_of_a_pipe() -> None:
    reader, writer = shmpipe.pipe(1 << 18, write_size=1 << 16, wake="half")
    with reader, writer:
        writer.write(bytes(3 * PAGE))
        writer.write(bytes(PAGE))
        reader.read(PAGE)
        pipe = find(reader)
        [direction] = pipe["directions"]
        assert (direction["size"], direction["write_size"]) == (1 << 18, 1 << 16)
        assert (direction["policy"], direction["used"]) == ("half", 3 * PAGE)
        assert direction["per_second"] is None
        stats = reader.stats()
        for name, value in direction["counts"].items():
            assert value == getattr(stats, name), name
        assert direction["counts"]["writes"] == 2
        assert [holder["pid"] for holder in pipe["holders"]] == [os.getpid()]
        assert pipe["dead"] == []
        assert os.getpid() in holders(pipe, "reads") & holders(pipe, "writes")


def test_both_directions_of_a_connection() -> None:
    left, right = shmpipe.Pipe(size=1 << 17)
    with left, right:
        left.send_bytes(bytes(1000))
        first, second = find(left)["directions"]
        used = [direction["used"] for direction in (first, second)]
        assert sorted(used) == [0, 1008]  # a header of 8 bytes
        assert {first["size"], second["size"]} == {1 << 17}
        assert {first["write_size"], second["write_size"]} == {1 << 15}


@pytest.mark.parametrize("duplex", [False, True])
def test_ends_are_told_from_their_first_moment(duplex: bool) -> None:
    """Also of a process that has not made a call yet, with more than one pipe."""
    pairs = [shmpipe.Pipe(duplex) for _ in range(3)]
    with Flag() as leave:
        child = run_child(leave.wait, close=[pairs[0][0], pairs[1][1], *pairs[2]])
        pairs[0][1].close()
        ours = os.getpid()
        first, second, third = (find(one if not one.closed else other) for one, other in pairs)
        assert (holders(first, "reads"), holders(first, "writes")) == ({ours}, {child.pid})
        assert (holders(second, "reads"), holders(second, "writes")) == ({ours, child.pid}, {ours})
        assert (holders(third, "reads"), holders(third, "writes")) == ({ours}, {ours})
        if duplex:
            assert (holders(first, "reads", 1), holders(first, "writes", 1)) == (
                {child.pid},
                {ours},
            )
            assert holders(second, "writes", 1) == {ours, child.pid}
        leave.set()
        child.join()
        for pair in pairs:
            for end in pair:
                end.close()


def test_pipes_of_other_processes_are_found_without_naming_them() -> None:
    reader, writer = shmpipe.pipe()
    with Flag() as used, Flag() as leave:

        def use() -> None:
            reader.read(10)
            used.set()
            leave.wait()

        child = run_child(use, close=[writer])
        writer.write(b"x")
        used.wait()
        inode = os.fstat(memory_of(reader)).st_ino
        reader.close()
        [pipe] = [pipe for pipe in look() if pipe["inode"] == inode]
        assert {holder["pid"] for holder in pipe["holders"]} == {os.getpid(), child.pid}
        assert holders(pipe, "reads") == {child.pid}
        assert holders(pipe, "writes") == {os.getpid()}
        leave.set()
        child.join()
        writer.close()


@pytest.mark.parametrize("locked", [False, True])
def test_the_dead_are_told(locked: bool) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:

        def die() -> None:
            reader.read(1)
            if locked:
                reader._side.lock.enter()
            os.kill(os.getpid(), signal.SIGKILL)

        child = run_child(die)
        writer.write(b"xy")
        eventually(lambda: not child.alive())
        pipe = find(reader)
        assert pipe["dead"] == [{"pid": child.pid, "locks": ["reader"] if locked else []}]
        assert child.pid not in {holder["pid"] for holder in pipe["holders"]}
        text = command("--once", "--interval", "0", str(os.getpid())).stdout
        assert f"{child.pid}!" in text if locked else f"{child.pid}\n" in text
        assert reader.read(1) == b"y"  # and whoever comes next goes on


def test_a_pool_with_a_worker_killed() -> None:
    # A worker killed while it holds the lock of the pool's queue takes the pool with it, with every
    # kind of pipe; so all are at work, and none waits for a task, when one is killed.
    program = """
        import multiprocessing, os, signal, sys, time
        import shmpipe

        begun, go_on = os.pipe(), os.pipe()

        def work(_):
            os.write(begun[1], b"x")
            os.read(go_on[0], 1)

        if __name__ == "__main__":
            with shmpipe.installed(), multiprocessing.get_context("fork").Pool(8) as pool:
                pool.map(abs, range(1000), 1)
                print(*(worker.pid for worker in pool._pool), flush=True)
                sys.stdin.readline()
                pids = {worker.pid for worker in pool._pool}
                pool.map_async(work, range(8), 1)
                for _ in range(8):
                    os.read(begun[0], 1)
                os.kill(min(pids), signal.SIGKILL)
                while len(set(worker.pid for worker in pool._pool) - pids) < 1:
                    time.sleep(0.01)
                os.write(go_on[1], bytes(8))
                pool.map(abs, range(1000), 1)
                print(*(worker.pid for worker in pool._pool), flush=True)
                sys.stdin.readline()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    register_pid(process.pid)
    assert process.stdin and process.stdout
    try:
        seen: list[set[int]] = []
        for _ in range(2):
            workers = set(map(int, process.stdout.readline().split()))
            assert len(workers) == 8
            pipes = look(process.pid)
            assert len(pipes) >= 2
            for pipe in pipes:
                assert {holder["pid"] for holder in pipe["holders"]} == {process.pid, *workers}
            # The workers read tasks at an end that they share, and write to the parent.
            everybody = {process.pid, *workers}
            assert [holders(pipe, "reads") for pipe in pipes].count(everybody) >= 1
            assert [holders(pipe, "writes") for pipe in pipes].count(everybody) >= 1
            read = sum(pipe["directions"][0]["counts"]["bytes_read"] for pipe in pipes)
            assert read > 1000
            seen.append(workers)
            process.stdin.write("\n")
            process.stdin.flush()
        [killed] = seen[0] - seen[1]
        assert killed
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# That nobody notices


def test_nothing_is_changed() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer.write(b"x" * 100)
        fd = memory_of(reader)
        before = os.pread(fd, segment._TABLES, 0)
        look(os.getpid())
        assert os.pread(fd, segment._TABLES, 0) == before
        writer.close()
        look(os.getpid())
        assert reader.readall() == b"x" * 100  # at the end there is EOF


def test_no_memory_is_used_by_looking() -> None:
    """A page of a segment costs memory once somebody has touched it through a mapping."""
    reader, writer = shmpipe.pipe()
    with reader, writer:
        fd = memory_of(reader)
        before = os.fstat(fd).st_blocks
        find(reader)
        assert os.fstat(fd).st_blocks == before


# That it believes nothing


@pytest.fixture
def forged() -> Iterator[int]:
    """A memfd with the name of a segment."""
    fd = os.memfd_create("shmpipe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    yield fd
    os.close(fd)


def seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, segment._SEALS)


def found(fd: int) -> bool:
    return os.fstat(fd).st_ino in {pipe["inode"] for pipe in look(os.getpid())}


def real_segment() -> bytes:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        return os.pread(memory_of(reader), 1 << 22, 0)


@pytest.mark.parametrize("kind", ["empty", "short", "other", "unsealed", "wrong size"])
def test_what_only_looks_like_a_segment_is_left_out(kind: str, forged: int) -> None:
    content = real_segment()
    if kind == "short":
        content = content[:100]
    elif kind == "other":
        content = bytes(len(content))
    elif kind == "wrong size":
        content += bytes(PAGE)
    if kind != "empty":
        os.write(forged, content)
    if kind != "unsealed":
        seal(forged)
    assert not found(forged)


def test_an_exact_copy_is_taken_for_one(forged: int) -> None:
    """So that the test before this one is about what it says."""
    os.write(forged, real_segment())
    seal(forged)
    assert found(forged)


@pytest.mark.parametrize("seed", range(3))
def test_any_content_gives_bounded_figures(seed: int, forged: int) -> None:
    content = bytearray(real_segment())
    rng = random.Random(seed)
    content[40 : segment._TABLES] = rng.randbytes(segment._TABLES - 40)
    os.write(forged, content)
    seal(forged)
    inode = os.fstat(forged).st_ino
    [pipe] = [pipe for pipe in look(os.getpid()) if pipe["inode"] == inode]
    [direction] = pipe["directions"]
    assert PAGE <= direction["write_size"] <= direction["size"] <= 1 << 20
    assert 0 <= direction["used"] <= direction["size"]
    assert direction["policy"] == "?"
    assert len(pipe["dead"]) <= 256
    assert command("--once", "--interval", "0", str(os.getpid())).returncode == 0


def test_names_of_processes_do_not_move_the_cursor() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer, Flag() as named, Flag() as leave:

        def rename() -> None:
            Path("/proc/self/comm").write_text("\x1b[31mred")
            reader.read(1)
            named.set()
            leave.wait()

        child = run_child(rename)
        writer.write(b"x")
        named.wait()
        names = {holder["pid"]: holder["command"] for holder in find(reader)["holders"]}
        assert names[child.pid] == "?[31mred"
        leave.set()
        child.join()


# The command


def test_a_table_once() -> None:
    reader, writer = shmpipe.pipe(write_size=8192)
    with reader, writer:
        done = command("--once", "--interval", "0.1", str(os.getpid()))
        assert (done.returncode, done.stderr) == (0, "")
        counts, who = done.stdout.split("\n\n")
        heads, line = counts.splitlines()[0], counts.splitlines()[-1]
        assert heads.split()[:4] == ["PIPE", "SIZE", "WSIZE", "POLICY"]
        assert line.split()[1:7] == ["64K", "8.0K", "write-size", "0%", "0", "0"]
        assert all(len(line) <= 80 for line in counts.splitlines())
        assert who.splitlines()[0].split() == ["PIPE", "READERS", "WRITERS", "DEAD"]


def test_a_process_without_pipes() -> None:
    child = subprocess.Popen(["sleep", "60"])
    register_pid(child.pid)
    try:
        done = command("--once", str(child.pid))
        assert (done.returncode, done.stdout) == (0, "no pipes found\n")
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_not_there() -> None:
    done = command("--once", str(2**22 + 1))  # beyond the largest that Linux allows
    assert done.returncode == 1
    assert done.stderr == f"shmpipe top: there is no process {2**22 + 1}\n"


@pytest.mark.parametrize("options", [["0"], ["-1"], ["me"], ["--interval", "-1"]])
def test_bad_options(options: list[str]) -> None:
    assert command("--once", *options).returncode == 2


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_again_and_again_until_interrupted(options: list[str]) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        process = subprocess.Popen(
            [*COMMAND, "--interval", "0.05", str(os.getpid()), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        register_pid(process.pid)
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        if options:
            pipes = [json.loads(line)["pipes"] for line in lines]
            assert pipes[0][0]["directions"][0]["per_second"] is None
            assert pipes[-1][0]["directions"][0]["per_second"]["bytes_read"] == 0


def test_in_place_in_a_terminal() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "--interval", "0.05", str(os.getpid())], stdout=theirs, stderr=theirs
        )
        register_pid(process.pid)
        os.close(theirs)
        shown = b""
        while shown.count(top.HOME.encode()) < 3:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while top.LEAVE.encode() not in shown:
            shown += os.read(ours, 4096)
        assert process.wait(30) == 0
        os.close(ours)
        assert shown.startswith(top.ENTER.encode() + top.HOME.encode())
        screen = shown.split(top.HOME.encode())[2]
        assert screen.count(b"\n") < 24 and b"64K" in screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_given_back(number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, str(os.getpid())],
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has it ignored
    )
    register_pid(process.pid)
    os.close(theirs)
    shown = b""
    while top.HOME.encode() not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(number)
    with contextlib.suppress(OSError):  # EIO: nobody has the other side any more
        while more := os.read(ours, 4096):
            shown += more
    assert process.wait(30) == 128 + number
    os.close(ours)
    assert shown.endswith(top.LEAVE.encode())


# What is shown


def pipe_with(count: int) -> Pipe:
    return Pipe(7, [Direction(PAGE, PAGE, "page", 0, {"reads": count})], [], [])


def test_rates() -> None:
    rates = top.Rates()
    assert rates.next([pipe_with(10)], 100.0) == [[None]]
    assert rates.next([pipe_with(40)], 102.0) == [[{"reads": 15.0}]]
    assert rates.next([pipe_with(39)], 103.0) == [[{"reads": 0.0}]]  # nonsense, but no negative one
    assert rates.next([], 104.0) == []
    assert rates.next([pipe_with(50)], 105.0) == [[None]]


@pytest.mark.parametrize("height", [2, 5, 7, 8, 23, 90, 203])
def test_many_pipes_on_a_screen(height: int) -> None:
    """Whatever is shown of a pipe, its holders and its dead are shown, and the rest is told of."""
    direction = Direction(PAGE, PAGE, "page", 0, dict.fromkeys(COUNTS, 0))
    holders = [Holder(5, "python", [True], [True])]
    pipes = [Pipe(1000 + n, [direction], holders, [Dead(7, [])]) for n in range(100)]
    lines = top.screen(pipes, [[None]] * 100, 80, height)
    assert len(lines) <= height
    first = [line.split()[0] for line in lines if line]
    shown = [word for word in first if word.isdecimal() and len(word) == 4]
    if height >= 203:
        assert len(shown) == 200
        return
    complete = (height - 5) // 2 if height > 5 else 0
    assert shown == [str(1000 + n) for n in range(complete)] * 2
    assert lines[-1] == f"{100 - complete} more pipes (--once shows all)"


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, 1024, "0"),
        (999, 1024, "999"),
        (1000, 1024, "1.0K"),
        (65536, 1024, "64K"),
        (1 << 20, 1024, "1.0M"),
        (1234, 1000, "1.2k"),
        (2**64, 1000, "huge"),
    ],
)
def test_amounts(number: float, unit: int, text: str) -> None:
    assert top.amount(number, unit) == text
