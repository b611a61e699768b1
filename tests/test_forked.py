"""What a fork copies must not outlive the threads it was about; closing under a sleeping call."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import pytest

import shmpipe

from .support import eventually, run_child, run_thread


@pytest.mark.parametrize("long", [False, True])
def test_forked_while_a_thread_sleeps_in_read(long: bool) -> None:
    """The child's close() counts, although the thread's call is in its memory."""
    reader, writer = shmpipe.pipe(spin=0)
    sleeper = run_thread(reader.read, 1)
    sleeper.wait_asleep()
    time.sleep(0.1 if long else 0)
    release, hold = os.pipe()
    child = os.fork()
    if not child:
        reader.close()
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    os.close(release)
    writer.write(b"x")
    assert sleeper.join() == b"x"
    reader.close()
    eventually(lambda: not is_writable(writer))
    writer.close()
    os.close(hold)
    os.waitpid(child, 0)


def is_writable(writer: shmpipe.PipeWriter) -> bool:
    try:
        return writer.write(b"y") is not None
    except BrokenPipeError:
        return False


def test_forked_while_a_thread_sleeps_in_write() -> None:
    reader, writer = shmpipe.pipe(4096, spin=0)
    writer.write(bytes(4096))
    sleeper = run_thread(writer.write, b"z" * 4096)
    sleeper.wait_asleep()
    time.sleep(0.1)
    release, hold = os.pipe()
    child = os.fork()
    if not child:
        writer.close()
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    os.close(release)
    assert len(reader.read(4096)) == 4096
    assert sleeper.join() == 4096
    writer.close()
    assert reader.readall() == b"z" * 4096  # EOF although the child lives
    reader.close()
    os.close(hold)
    os.waitpid(child, 0)


def test_descriptor_asked_for_in_a_forked_child() -> None:
    """The child's fileno() declares the descriptor readable; the parent takes that back."""
    reader, writer = shmpipe.pipe(spin=0)
    with reader, writer:
        fd = reader.fileno()
        writer.write(b"x")
        run_child(reader.fileno).join()
        assert select.select([fd], [], [], 0)[0]
        assert reader.read(10) == b"x"
        assert not select.select([fd], [], [], 0)[0]


@pytest.mark.parametrize("pause", [0.005, 0.2])
def test_closed_under_a_sleeping_read(pause: float) -> None:
    reader, writer = shmpipe.pipe(spin=0)
    sleeper = run_thread(reader.read, 10)
    sleeper.wait_asleep()
    time.sleep(pause)
    reader.close()
    assert writer.write(b"late") == 4
    assert sleeper.join() == b"late"
    with pytest.raises(BrokenPipeError):
        writer.write(b"later")
    writer.close()


@pytest.mark.parametrize("pause", [0.005, 0.2])
def test_closed_under_a_sleeping_write(pause: float) -> None:
    reader, writer = shmpipe.pipe(8192, spin=0)
    sleeper = run_thread(writer.write, bytes(20000))
    sleeper.wait_asleep()
    time.sleep(pause)
    writer.close()
    assert len(reader.readall()) == 20000
    assert sleeper.join() == 20000
    reader.close()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("policy", ["write-size", "edge-half"])
def test_level_shown_beside_a_sleeping_writer(policy: str, killed: bool) -> None:
    """Somebody asleep in write() does not change what a watcher of the same end sees."""
    reader, writer = shmpipe.pipe(65536, write_size=32768, wake=policy, spin=0)
    with reader, writer:
        fd = writer.fileno()
        writer.write(b"x")
        assert reader.read(1) == b"x"  # a reader's first call has writers that sleep look again
        writer.write(bytes(65536))
        assert not select.select([], [fd], [], 0)[1]
        sleeper = run_child(writer.write, bytes(8192))
        sleeper.wait_asleep()
        time.sleep(0.1)
        if killed:
            os.kill(sleeper.pid, signal.SIGKILL)
            with pytest.raises(Exception, match="exit code"):
                sleeper.join()
        reader.read(4096)
        if policy == "write-size":
            assert not select.select([], [fd], [], 0)[1]
            shmpipe.fcntl(writer, shmpipe.F_SETPIPE_WRITE_SZ, 4096)
        assert select.select([], [fd], [], 0)[1]
        if not killed:
            time.sleep(0.1)
            assert writer.stats().pages_used == 15  # and the sleeper has not been woken by it
            reader.read(65536)
            assert sleeper.join() == 8192


def test_forked_beside_threads_that_make_and_drop_pipes() -> None:
    """Every fork goes through what there is, while the threads change it."""
    stop = False

    def make() -> None:
        kept = []
        while not stop:
            kept.append(shmpipe.Pipe())
            kept[-1][0].send(1)
            if len(kept) > 60:
                del kept[:40]

    failed: list[str] = []
    interval = sys.getswitchinterval()
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: failed.append(repr(args))
    sys.setswitchinterval(1e-5)
    try:
        making = [run_thread(make) for _ in range(2)]
        until = time.monotonic() + 3
        while time.monotonic() < until:
            child = os.fork()
            if not child:
                a, b = shmpipe.Pipe()
                a.send(1)
                for what in failed:
                    os.write(2, f"raised where nobody could catch it: {what}\n".encode())
                os._exit(b.recv() + len(failed))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        stop = True
        sys.setswitchinterval(interval)
        sys.unraisablehook = hook
    for thread in making:
        thread.join()
    assert not failed
