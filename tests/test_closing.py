"""An end that one thread closes while another is using it: the other's call ends as it should."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

import shmpipe

from .links import fill_link, receive_all
from .support import eventually, run_child, run_thread


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


CONNECTION: dict[str, Callable[[Any], Any]] = {
    "fileno": lambda end: end.fileno(),
    "send": lambda end: end.try_send_bytes(b"x" * 3000),
    "recv": lambda end: end.try_recv_bytes(),
    "poll": lambda end: end.poll(0),
    "poll for a while": lambda end: end.poll(1e-5),
    "stats": lambda end: end.stats(),
    "fcntl": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 4096),
    "halves": lambda end: (end.incoming.fileno(), end.outgoing.fileno()),
    "lend": lambda end: end.__reduce__()[0],
}
PIPE: dict[str, Callable[[Any], Any]] = {
    "fileno": lambda end: end.fileno(),
    "write": lambda end: end.write(b"x" * 3000),
    "read": lambda end: end.read(10),
    "stats": lambda end: end.stats(),
    "fcntl": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 4096),
    "size": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_SZ, 8192),
    "unread": lambda end: shmpipe.ioctl(end, 0x541B),
    "repr": repr,
}


def errors(end: Any, call: Callable[[Any], Any], close_after: float) -> Exception | None:
    """How a thread that makes the same call again and again ends when the end is closed."""
    ended: list[Exception] = []
    begun = threading.Event()

    def go() -> None:
        try:
            while not end.closed:
                call(end)
                begun.set()
        except Exception as error:
            ended.append(error)
        begun.set()

    thread = threading.Thread(target=go)
    thread.start()
    begun.wait()
    threading.Event().wait(close_after)
    end.close()
    thread.join()
    return ended[0] if ended else None


@pytest.mark.parametrize("call", CONNECTION)
def test_connection(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.reduction.DupFd", lambda fd: fd)
    for turn in range(60):
        a, b = shmpipe.Pipe()
        error = errors(a, CONNECTION[call], turn * 1e-5)
        assert error is None or repr(error) == "OSError('handle is closed')"
        b.close()


@pytest.mark.parametrize("call", PIPE)
def test_pipe(call: str) -> None:
    for turn in range(60):
        r, w = shmpipe.pipe(1 << 16)
        shmpipe.fcntl(r, shmpipe.F_SETFL, 0o4000)
        shmpipe.fcntl(w, shmpipe.F_SETFL, 0o4000)
        end, other = (r, w) if call == "read" else (w, r)
        error = errors(end, PIPE[call], turn * 1e-5)
        assert error is None or repr(error) == "ValueError('I/O operation on closed file')"
        other.close()


# ---------------------------------------------------------------- closed under a sleeping call

FULL = 1 << 16
RECEIVES: dict[str, Callable[[Any], Any]] = {
    "recv": lambda end: end.recv(),
    "recv with a limit": lambda end: end.recv(timeout=50),
    "recv_bytes": lambda end: end.recv_bytes(),
    "recv_bytes_into": lambda end: end.recv_bytes_into(bytearray(10)),
    "recv_many": lambda end: end.recv_many(),
    "recv_view": lambda end: end.recv_view().__enter__(),
    "iteration": lambda end: next(iter(end)),
    "poll": lambda end: end.poll(None),
}
SENDS: dict[str, Callable[[Any], Any]] = {
    "send": lambda end: end.send("x" * 100),
    "send_bytes": lambda end: end.send_bytes(b"x" * 100),
    "send_bytes with a limit": lambda end: end.send_bytes(b"x" * 100, timeout=50),
    "more than the pipe holds": lambda end: end.send_bytes(bytes(3 * FULL)),
    "send_many": lambda end: end.send_many(["x" * 100]),
    "reserve": lambda end: end.reserve(100).__enter__(),
}
# Asleep on a semaphore, and on descriptors.
PAUSES = (0.004, 0.1)


def ends_in(runner: Any) -> None:
    with pytest.raises(OSError, match="handle is closed"):
        runner.join()


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("duplex", [True, False])
@pytest.mark.parametrize("call", RECEIVES)
def test_closed_under_a_sleeping_receive(call: str, duplex: bool, pause: float) -> None:
    receiver, sender = shmpipe.Pipe(duplex, spin=0)
    asleep = run_thread(RECEIVES[call], receiver)
    asleep.wait_asleep(settle=pause)
    receiver.close()
    ends_in(asleep)
    with pytest.raises(BrokenPipeError):
        sender.send(1)  # nobody keeps the end
    sender.close()


@pytest.mark.parametrize("way", ["accepted", "connected", "handed over"])
@pytest.mark.parametrize("call", RECEIVES)
def test_closed_under_a_sleeping_receive_of_any_end(call: str, way: str, tmp_path: Path) -> None:
    """However this process has come to have it."""
    with shmpipe.listen(str(tmp_path / "name")) as listener:
        connecting = run_thread(shmpipe.connect, str(tmp_path / "name"))
        accepted = listener.accept(timeout=20)
        ends = {"accepted": accepted, "connected": connecting.join()}
    ends["handed over"] = pickle.loads(ForkingPickler.dumps(ends["connected"]))
    mine = ends.pop(way)
    if way == "connected":
        ends.pop("handed over").close()
    elif way == "handed over":
        ends.pop("connected").close()
    asleep = run_thread(RECEIVES[call], mine)
    asleep.wait_asleep(settle=PAUSES[0])
    mine.close()
    ends_in(asleep)
    for end in ends.values():
        end.close()
    resource_sharer.stop(timeout=10)


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("duplex", [True, False])
@pytest.mark.parametrize("call", SENDS)
def test_closed_under_a_sleeping_send(call: str, duplex: bool, pause: float) -> None:
    receiver, sender = shmpipe.Pipe(duplex, size=FULL, spin=0)
    sent = 0
    if call != "more than the pipe holds":
        sent = fill_link(sender, 1000) + fill_link(sender, 8)
    asleep = run_thread(SENDS[call], sender)
    asleep.wait_asleep(settle=pause)
    sender.close()
    ends_in(asleep)
    assert len(receive_all(receiver)) == sent  # and of the last one nothing
    receiver.close()


@pytest.mark.parametrize("pause", PAUSES)
def test_closed_under_two_threads_in_the_middle_of_a_message(pause: float) -> None:
    """One has a part of it, the other waits for its turn."""
    receiver, sender = shmpipe.Pipe(False, size=FULL, spin=0)
    with receiver, sender:
        stopped = run_child(sender.send_bytes, bytes(20 * FULL), close=[receiver])
        assert receiver.poll(10)
        os.kill(stopped.pid, signal.SIGSTOP)
        threads = [run_thread(receiver.recv_bytes) for _ in range(2)]
        time.sleep(pause)
        receiver.close()
        for thread in threads:
            ends_in(thread)
        stopped.kill()


def test_closed_while_another_process_has_a_part_of_the_message() -> None:
    receiver, sender = shmpipe.Pipe(False, size=FULL, spin=0)
    with receiver, sender:
        sending = run_child(sender.send_bytes, bytes(20 * FULL), close=[receiver])
        assert receiver.poll(10)

        def begin() -> None:
            for _ in range(100):
                with contextlib.suppress(TimeoutError):
                    receiver.recv_bytes(timeout=0)
            signal.pause()

        os.kill(sending.pid, signal.SIGSTOP)
        keeper = run_child(begin, close=[sender])
        eventually(lambda: not receiver.poll(0))
        polling = run_thread(receiver.poll, None)
        time.sleep(0.1)
        receiver.close()
        ends_in(polling)
        sending.kill()
        keeper.kill()


@pytest.mark.parametrize("pause", PAUSES)
def test_closing_a_copy_ends_only_the_calls_on_it(pause: float) -> None:
    receiver, sender = shmpipe.Pipe(False, spin=0)
    with receiver, sender:
        copy = copied(receiver)
        there, here = run_thread(copy.recv), run_thread(receiver.recv)
        for thread in (there, here):
            thread.wait_asleep(settle=pause)
        run_child(receiver.close, close=[sender]).join()  # nor in another process
        copy.close()
        ends_in(there)
        assert here.alive()
        sender.send("still there")
        assert here.join() == "still there"


def copied(end: Any) -> Any:
    """Another end of this process's, as if it had come from another one."""
    carrier, other = multiprocessing.Pipe()
    with carrier, other:
        carrier.send(end)
        copy = other.recv()
    resource_sharer.stop(timeout=10)
    return copy


def test_closed_again_and_again_under_threads_that_sleep() -> None:
    for turn in range(150):
        receiver, sender = shmpipe.Pipe(turn % 2 == 0, size=4096)
        with receiver, sender:
            reads = [run_thread(receiver.recv) for _ in range(2)]
            fill_link(sender, 900)
            writes = [run_thread(sender.send_bytes, bytes(9000)) for _ in range(2)]
            threading.Event().wait(turn % 30 * 1e-3)
            receiver.close()
            sender.close()
            for thread in reads + writes:
                # A read may have had a message (which no pickle is), a write nobody to read it.
                with pytest.raises((OSError, EOFError, pickle.UnpicklingError)) as ended:
                    thread.join()
                if type(ended.value) is OSError:
                    assert str(ended.value) == "handle is closed"
