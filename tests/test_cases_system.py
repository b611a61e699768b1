"""What users of pipes suffer from, by its number in the project's list: 19 to 29.

What has to do with the system below: start methods, a missing /dev/shm, memory, CPU time.
The comment above each test says what was reported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from .kinds import asleep
from .links import (
    KiB,
    MiB,
    Session,
    both_kinds,
    both_ways,
    link_of,
    make_link,
    nothing_left_in_dev_shm,
)
from .support import run_child, run_thread

# ---------------------------------------------------------------- 19: no usable /dev/shm

# Reported: /dev/shm is missing, read-only or only root's; nothing works and errors say little.

USE_A_LINK = """
    import os, sys
    import multiprocessing, shmpipe
    from multiprocessing import connection, reduction, popen_fork
    if sys.argv[1:] or os.environ.get("AS_NOBODY"):
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    try:
        a, b = PIPE()
        pid = os.fork()
        if not pid:
            b.send(bytes(5_000_000))
            os._exit(0)
        assert a.recv() == bytes(5_000_000)
        assert not a.poll(0.05)
        os.waitpid(pid, 0)
        b.close()
        assert a.poll(1)
        a.close()
    except OSError as error:
        print(type(error).__name__, error)
    else:
        print("works")
"""

PREPARATIONS = {
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "of root alone": "mount -t tmpfs -o mode=0700 tmpfs /dev/shm && export AS_NOBODY=1",
    "full": "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero >/dev/shm/full",
    "no directory": "mount -t tmpfs tmpfs /dev",
}


@pytest.fixture(scope="module")
def private_mounts() -> None:
    """Skips where one may not have mounts of one's own."""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare(1) here")
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@both_kinds
@both_ways
@pytest.mark.parametrize("shm", PREPARATIONS)
@pytest.mark.usefixtures("private_mounts")
def test_19_without_dev_shm(kind: str, duplex: bool, shm: str, tmp_path: Path) -> None:
    module = {"stdlib": "multiprocessing", "shmpipe": "shmpipe"}[kind]
    program = USE_A_LINK.replace("PIPE()", f"{module}.Pipe({duplex})")
    command = ["unshare", "-m", "sh", "-c", f'{PREPARATIONS[shm]} && exec "$@"', "sh"]
    with Session(program, tmp_path, *command) as session:
        assert session.finish() == (0, "works\n", "")


# ---------------------------------------------------------------- 20: leftovers

# Reported: /dev/shm fills up after SIGKILL; a tracker warns about leaked objects after a clean run.

NEVER_CLOSES = """
    import sys, os, time
    import multiprocessing, shmpipe

    def work(end, wait):
        end.send(os.getpid())
        end.recv() if wait else None

    def main():
        context = multiprocessing.get_context("METHOD")
        ends = []
        for turn in range(COUNT):
            mine, theirs = MODULE.Pipe()
            ends += mine, theirs, *MODULE.Pipe(False)
            process = context.Process(target=work, args=(theirs, WAIT))
            process.start()
            print(mine.recv(), flush=True)
            if not WAIT:
                process.join()
                assert process.exitcode == 0
        sys.ends = ends
        if WAIT:
            time.sleep(1000)

    if __name__ == "__main__":
        main()
"""


def never_closes(kind: str, method: str, count: int, wait: bool) -> str:
    module = {"stdlib": "multiprocessing", "shmpipe": "shmpipe"}[kind]
    program = NEVER_CLOSES.replace("MODULE", module).replace("METHOD", method)
    return program.replace("COUNT", str(count)).replace("WAIT", str(wait))


@both_kinds
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_20_program_that_never_closes(kind: str, method: str, tmp_path: Path) -> None:
    program = never_closes(kind, method, 3, False)
    with nothing_left_in_dev_shm(), Session(program, tmp_path) as session:
        status, out, err = session.finish()
        assert (status, err) == (0, "")
        assert len(out.split()) == 3
        session.wait_gone()


@both_kinds
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_20_parent_and_child_killed(kind: str, method: str, tmp_path: Path) -> None:
    program = never_closes(kind, method, 1, True)
    with nothing_left_in_dev_shm(), Session(program, tmp_path) as session:
        assert session.process.stdout is not None
        child = int(session.process.stdout.readline())
        assert child in session.pids()
        session.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        session.wait_gone()


# ---------------------------------------------------------------- 22: spawned children

# Reported: an end cannot be given to a child under spawn.


def echo(end: Any) -> None:
    for _ in range(3):
        end.send(end.recv())


@both_kinds
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_22_end_as_argument_of_a_started_process(kind: str, method: str) -> None:
    with link_of(kind) as (a, b):
        process = multiprocessing.get_context(method).Process(target=echo, args=(b,))
        process.start()
        b.close()
        for thing in ("text", bytes(5_000_000), {"n": [1, 2]}):
            sender = run_thread(a.send, thing)
            received = a.recv()
            assert received == thing and type(received) is type(thing)
            sender.join()
        process.join(30)
        assert process.exitcode == 0
        with pytest.raises(EOFError):
            a.recv()
        process.close()


# ---------------------------------------------------------------- 28: CPU time while waiting

# Reported: a reader of shared memory spins, while nothing comes or between messages.

PERIOD = 1.0  # seconds
# What is asked for is a hundredth of the period; a reader that spins takes all of it.
HARDLY_ANY = PERIOD / 10
HALF = PERIOD / 2


def cpu_during(warm_up: Callable[[], Any], call: Callable[[], Any]) -> float:
    """CPU seconds of this process during the call."""
    warm_up()
    before = resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@both_kinds
@both_ways
def test_28_waiting_takes_no_cpu_time(kind: str, duplex: bool) -> None:
    links = [make_link(kind, duplex) for _ in range(2)]
    for _, sender in links:
        sender.send("warm up")
    receiving, polling = (receiver for receiver, _ in links)
    children = [
        run_child(cpu_during, receiving.recv, receiving.recv),
        run_child(cpu_during, polling.recv, lambda: polling.poll(PERIOD)),
    ]
    asleep(*children)
    time.sleep(PERIOD)
    links[0][1].send("done")
    assert [cpu for cpu in (child.join() for child in children) if cpu > HARDLY_ANY] == []
    for receiver, sender in links:
        receiver.close()
        sender.close()


@both_ways
@pytest.mark.parametrize("spin", [None, 0])
def test_28_spinning_between_messages_is_bounded(duplex: bool, spin: float | None) -> None:
    interval = 0.005
    count = int(PERIOD / interval)
    with link_of("shmpipe", duplex, spin=spin) as (receiver, sender):
        child = run_child(
            cpu_during, receiver.recv, lambda: [receiver.recv() for _ in range(count)]
        )
        for number in range(count + 1):
            sender.send(number)
            time.sleep(interval)
        assert child.join() < HALF


# ---------------------------------------------------------------- 29: large arrays

# Reported: arrays need several copies and a multiple of their memory.

PAYLOAD = 256 * MiB


def available_memory() -> int:
    with open("/proc/meminfo") as file:
        sizes = dict(line.split(":") for line in file)
    return int(sizes["MemAvailable"].split()[0]) * KiB


def resident(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * KiB for line in file if line.startswith(field))


def extra_memory(call: Callable[[], Any]) -> int:
    """By how much resident memory was at its highest above where it began."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest value so far
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


@pytest.fixture
def enough_memory() -> None:
    if available_memory() < 6 * PAYLOAD:
        pytest.skip("too little memory is available")


def test_29_measuring_notices_a_copy() -> None:
    def copy_twice() -> None:
        once = b"x" * (64 * MiB)
        bytearray(once)

    assert 120 * MiB < run_child(extra_memory, copy_twice).join() < 140 * MiB


@pytest.mark.slow
@both_ways
@pytest.mark.usefixtures("enough_memory")
def test_29_extra_memory_of_a_large_array(duplex: bool) -> None:
    def send() -> int:
        array = numpy.arange(PAYLOAD // 8, dtype=numpy.int64)
        return extra_memory(lambda: sender.send(array))

    def receive() -> tuple[int, bool]:
        received = []
        extra = extra_memory(lambda: received.append(receiver.recv()))
        array = received[0]
        array[0] = 7  # writable
        return extra, bool((array[1:] == numpy.arange(1, PAYLOAD // 8)).all())

    with link_of("shmpipe", duplex) as (receiver, sender):
        receiving = run_child(receive, close=[sender])
        sending = run_child(send, close=[receiver])
        assert sending.join() < PAYLOAD
        extra, equal = receiving.join()
        assert equal
        # The result itself, and less than another one.
        assert PAYLOAD * 0.9 < extra < 2 * PAYLOAD


@both_ways
@pytest.mark.parametrize(
    ("kind", "size"),
    [("stdlib", MiB), ("stdlib", 8 * MiB)] + [("shmpipe", n * MiB) for n in (1, 8, 64)],
)
def test_29_array_from_a_child_is_writable(kind: str, duplex: bool, size: int) -> None:
    def send() -> None:
        for number in range(3):
            sender.send(numpy.full(size, number, numpy.uint8))

    with link_of(kind, duplex) as (receiver, sender):
        child = run_child(send, close=[receiver])
        for number in range(3):
            array = receiver.recv()
            assert array.shape == (size,) and array.dtype == numpy.uint8
            assert (array == number).all()
            array += 1
            assert (array == number + 1).all()
        child.join()
