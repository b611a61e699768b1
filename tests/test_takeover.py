"""The side locks of the dead are taken over; those of the living are not."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import shmpipe
from shmpipe import identity
from shmpipe.segment import RD_OWNER, WR_OWNER

from .support import eventually, run_child, run_thread


def die_with_lock(end: Any, owner: int, signed: bool) -> None:
    """Die between taking the lock (and signing for it) and everything else."""
    end._side.lock.enter()
    if signed:
        end._side.words[owner] = identity.token
    os.kill(os.getpid(), signal.SIGKILL)


def killed(end: Any, owner: int, signed: bool) -> None:
    child = os.fork()
    if not child:
        die_with_lock(end, owner, signed)
    os.waitpid(child, 0)


@pytest.mark.parametrize("signed", [True, False])
def test_lock_of_a_dead_writer(signed: bool) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        killed(writer, WR_OWNER, signed)
        assert writer.write(b"after") == 5
        assert reader.read(10) == b"after"


@pytest.mark.parametrize("signed", [True, False])
def test_lock_of_a_dead_reader(signed: bool) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer.write(b"before")
        killed(reader, RD_OWNER, signed)
        assert reader.read(10) == b"before"


def test_lock_taken_over_by_many_at_once() -> None:
    reader, writer = shmpipe.pipe(1 << 20)
    with reader, writer:
        killed(writer, WR_OWNER, True)
        children = [run_child(writer.write, b"%04d" % number) for number in range(8)]
        assert [child.join() for child in children] == [4] * 8
        data = reader.read(100)
        assert sorted(data[i : i + 4] for i in range(0, 32, 4)) == [b"%04d" % i for i in range(8)]


def test_lock_of_a_stopped_writer_is_left_alone() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        go, went = os.pipe()
        child = os.fork()
        if not child:
            writer._side.lock.enter()  # taken and not signed for
            os.write(went, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
            writer._side.words[WR_OWNER] = identity.token
            writer._side.ring.put(memoryview(b"first"), False)
            writer._side.words[WR_OWNER] = 0
            writer._side.lock.release()
            os._exit(0)
        assert os.read(go, 1) == b"x"
        eventually(lambda: identity.another_holder_runs(writer._segment.fd))
        second = run_thread(writer.write, b"second")
        time.sleep(1.0)  # longer than a lock stays unsigned before it counts as lost
        assert shmpipe.PipeStats  # the pipe is not touched meanwhile
        assert writer.stats().bytes_written == 0
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        assert second.join() == 6
        assert reader.read(20) == b"firstsecond"
        os.close(go)
        os.close(went)


def test_lock_left_behind_by_an_exception_is_found_again() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer._side.lock.enter()  # as a signal handler's exception would leave it
        assert writer.write(b"same thread") == 11
        writer._side.lock.enter()
        assert run_thread(writer.write, b", another").join(30) == 9
        assert reader.read(50) == b"same thread, another"


def test_call_from_a_handler_inside_a_call() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        lock, words = writer._side.lock, writer._side.words
        lock.enter()
        words[WR_OWNER] = identity.token
        with pytest.raises(RuntimeError, match="reentrant"):
            writer.write(b"x")
        words[WR_OWNER] = 0
        lock.release()
        assert writer.write(b"x") == 1


def test_sleeping_reader_is_woken_for_what_a_dead_writer_had_published() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        sleeper = run_child(reader.read, 10, close=[writer])
        sleeper.wait_asleep()
        child = os.fork()
        if not child:
            side = writer._side
            side.lock.enter()
            side.words[WR_OWNER] = identity.token
            side.ring.put(memoryview(b"data"), False)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert writer.write(b"") == 0
        shmpipe.fcntl(writer, shmpipe.F_SETPIPE_WRITE_SZ, 8192)  # whoever needs the lock next
        assert sleeper.join() == b"data"
