"""Thousands of pipes, made and left in every way, leave nothing: no descriptor, name or mapping."""

from __future__ import annotations

import errno
import gc
import os
import resource
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmpipe

from .kinds import asleep, fill, page, pipe_of
from .pollers import by_asyncio, by_poll
from .support import PAGE, end_everything, end_of_program, run_child, run_process, run_thread


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> list[str]:
    """The mappings of this process that are not its own heap, stacks and libraries."""
    with open("/proc/self/maps") as file:
        return sorted(line.split(None, 5)[5].strip() for line in file if "memfd:" in line)


def names() -> set[str]:
    """What is in /dev/shm, but for the semaphores of whoever uses multiprocessing beside us."""
    found = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in found if not name.startswith("sem.mp-")}


def threads() -> int:
    return threading.active_count()


def holdings() -> tuple[int, list[str], set[str], int]:
    end_everything()  # A thread that ended with an exception still refers to its frames.
    gc.collect()
    return descriptors(), mappings(), names(), threads()


def touch(r: Any, w: Any) -> None:
    w.write(b"data")
    assert r.read(10) == b"data"


def watch(r: Any, w: Any) -> None:
    assert by_poll(w, True)
    assert not by_poll(r, False)
    fill(w, 1)
    assert by_poll(r, False)


def watch_with_asyncio(r: Any, w: Any) -> None:
    assert by_asyncio(w, True)
    assert not by_asyncio(r, False)


def buffer(r: Any, w: Any) -> None:
    import io

    with io.BufferedWriter(w) as writer:
        writer.write(bytes(10000))
    with io.BufferedReader(r) as reader:
        assert reader.read() == bytes(10000)


def grow(r: Any, w: Any) -> None:
    shmpipe.fcntl(r, shmpipe.F_SETPIPE_SZ, 1 << 18)
    w.write(bytes(1 << 18))
    assert len(r.read(1 << 18)) == 1 << 18
    shmpipe.fcntl(r, shmpipe.F_SETPIPE_SZ, PAGE)


USES: list[Callable[[Any, Any], None]] = [touch, watch, watch_with_asyncio, buffer, grow]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_closed_pipes(use: Callable[[Any, Any], None]) -> None:
    with pipe_of("shmpipe") as ends:
        use(*ends)  # Whatever stays for good is made by the first one.
    before = holdings()
    for _ in range(300):
        with pipe_of("shmpipe") as ends:
            use(*ends)
    assert holdings() == before


@pytest.mark.parametrize("use", [touch, watch, grow], ids=lambda use: use.__name__)
def test_dropped_pipes(use: Callable[[Any, Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        before = holdings()
        for _ in range(300):
            use(*shmpipe.pipe())
        assert holdings() == before


def test_ends_are_freed_without_the_cycle_collector() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        gc.disable()
        try:
            before = descriptors()
            ends = shmpipe.pipe()
            watch(*ends)
            dead = [weakref.ref(end) for end in ends]
            del ends
            assert [ref() for ref in dead] == [None, None]
            assert descriptors() == before
        finally:
            gc.enable()


def test_thousands_of_pipes_at_a_time() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1000, soft // 8)
    before = holdings()
    pipes = [shmpipe.pipe() for _ in range(count)]
    for r, w in pipes:
        touch(r, w)
    for r, w in pipes:
        r.close()
        w.close()
    del pipes, r, w
    assert holdings() == before


def test_descriptors_of_connections() -> None:
    """200 duplex connections in use: two descriptors each, and those of a call under way."""
    before = descriptors()
    pairs = [shmpipe.Pipe() for _ in range(100)]
    for left, right in pairs:
        left.send("there")
        assert right.recv() == "there"
        right.send(bytes(100_000))
        assert len(left.recv()) == 100_000
        assert not left.poll() and not right.poll()
    assert descriptors() - before <= 2 * 200
    for left, right in pairs:
        left.close()
        right.close()
    assert descriptors() == before


def test_one_end_closed_and_the_other_dropped() -> None:
    before = holdings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for turn in range(200):
            ends = shmpipe.pipe()
            watch(*ends)
            ends[turn % 2].close()
            del ends
    assert holdings() == before


def test_pipes_used_by_forked_children() -> None:
    before = holdings()
    for _ in range(60):
        with pipe_of("shmpipe") as (r, w):
            child = run_child(w.write, b"data", close=[r])
            w.close()
            assert r.read(10) == b"data"
            child.join()
    for _ in range(60):
        with pipe_of("shmpipe", 1) as (r, w):
            child = run_child(r.read, 10, close=[w])
            child.kill()
    del r, w, child
    assert holdings() == before


def held_in_child(r: Any, w: Any) -> Any:
    """What the copies of two ends hold in another process, and still hold once closed."""
    watch(r, w)
    r.read(PAGE)
    open_ones = len(mappings())
    fds = descriptors()
    r.close()
    w.close()
    return open_ones, len(mappings()), fds - descriptors()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_copies_in_another_process_are_freed_by_close(method: str) -> None:
    # A forked child also has what an earlier test's exception, say, still refers to.
    others = len(holdings()[1]) if method == "fork" else 0
    with pipe_of("shmpipe") as (r, w):
        mapped, left, fds = run_process(method, held_in_child, r, w).join()
        assert mapped > others
        assert left <= others
        assert fds >= 2
        touch(r, w)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pipes_passed_to_started_processes(method: str) -> None:
    with pipe_of("shmpipe") as (r, w):
        run_process(method, touch, r, w).join()
    del r, w
    before = holdings()
    for _ in range(4):
        with pipe_of("shmpipe") as (r, w):
            process = run_process(method, touch, r, w)
            r.close()
            w.close()
            process.join()
    for _ in range(4):
        with pipe_of("shmpipe") as (r, w):
            process = run_process(method, r.read, 1)
            process.kill()
    del r, w, process
    assert holdings() == before


def test_sleepers_leave_nothing() -> None:
    before = holdings()
    for _ in range(5):
        with pipe_of("shmpipe", 1) as (r, w):
            reader = run_thread(r.read, 1)
            asleep(reader)
            w.write(b"x")
            reader.join()
            fill(w, 1)
            writer = run_thread(w.write, page(0))
            asleep(writer)
            r.close()
            with pytest.raises(BrokenPipeError):
                writer.join()
    del r, w, reader, writer
    assert holdings() == before


def test_failed_calls_leave_nothing() -> None:
    def attempt(spare: int) -> bool:
        """Make a pipe and use it with so many descriptors left; whether that worked."""
        hoard = []
        try:
            while True:
                hoard.append(os.dup(0))
        except OSError:
            pass
        for _ in range(spare):
            os.close(hoard.pop())
        try:
            with pipe_of("shmpipe") as (r, w):
                watch(r, w)
            return True
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            return False
        finally:
            for fd in hoard:
                os.close(fd)

    def attempts() -> list[bool]:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, hard))
        attempt(20)
        before = holdings()
        worked = []
        for spare in range(20):
            worked.append(attempt(spare))
            assert holdings() == before, f"with {spare} descriptors left"
        return worked

    worked = run_child(attempts).join()
    assert not worked[0]
    assert worked[-1]
    assert worked == sorted(worked)


def test_bad_arguments_leave_nothing() -> None:
    before = holdings()
    bad: list[dict[str, Any]] = [
        {"flags": -1},
        {"write_size": 1 << 20},
        {"wake": "never"},
        {"size": -1},
        {"size": 1 << 20, "max_size": 1 << 16},
    ]
    for options in bad:
        for _ in range(20):
            with pytest.raises((OSError, ValueError)):
                shmpipe.pipe(**options)
    assert holdings() == before


# ---------------------------------------------------------------- leaving the interpreter

EXITS = {
    "open ends": "r, w = shmpipe.pipe(); w.write(b'x')",
    "watched ends": "r, w = shmpipe.pipe(); r.fileno(); w.fileno(); w.write(b'x')",
    "ends in a cycle": "ends = list(shmpipe.pipe()); ends.append(ends); del ends",
    "ends of a module": "sys.ends = shmpipe.pipe()",
    "buffered writer": """
import io
r, w = shmpipe.pipe()
sys.reader = r  # Gone before the writer is flushed, it would be a broken pipe, and told so by 3.13.
buffered = io.BufferedWriter(w)
buffered.write(b'unflushed')
""",
    "sleeping threads": """
import threading, time
r, w = shmpipe.pipe(4096)
r2, w2 = shmpipe.pipe(4096)
w.write(bytes(4096))
threading.Thread(target=w.write, args=(b'x',), daemon=True).start()
threading.Thread(target=r2.read, args=(1,), daemon=True).start()
time.sleep(0.1)
""",
    "forked child": """
import os
r, w = shmpipe.pipe()
if os.fork() == 0:
    w.write(b'x')
    sys.exit(0)
os.wait()
""",
    "spawned child": """
import multiprocessing
def main():
    r, w = shmpipe.pipe()
    process = multiprocessing.get_context('spawn').Process(target=len, args=([r, w],))
    process.start()
    process.join()
    return r, w
if __name__ == '__main__':
    ends = main()
""",
    "child of a fork server": """
import multiprocessing
def main():
    r, w = shmpipe.pipe()
    process = multiprocessing.get_context('forkserver').Process(target=len, args=([r, w],))
    process.start()
    process.join()
    return r, w
if __name__ == '__main__':
    ends = main()
""",
    "connections": "a, b = shmpipe.Pipe(); a.send('x')",
    "connections that a module keeps": """
import multiprocessing.process
multiprocessing.process.kept = shmpipe.Pipe()  # as a started process keeps its arguments
""",
    "connection given to a spawned child": """
import multiprocessing
def main():
    a, b = shmpipe.Pipe()
    process = multiprocessing.get_context('spawn').Process(target=str, args=(b,))
    process.start()
    process.join()
if __name__ == '__main__':
    main()
""",
    "asyncio": """
import asyncio
r, w = shmpipe.pipe()
async def main():
    asyncio.get_running_loop().add_reader(r, print)
    await asyncio.sleep(0)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("program", EXITS, ids=str)
def test_exit_with_open_ends_is_silent(program: str, tmp_path: Path) -> None:
    before = names()
    assert end_of_program(EXITS[program], tmp_path) == (0, b"", b"")
    assert names() <= before
