"""What the table in README.md says that the alternatives do not do, tried with those installed.

`./tools/performance` makes an environment that has all of them (.venv-bench); elsewhere the tests
of those that are missing are skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing as mp
import multiprocessing.connection
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmpipe

from .support import Flag, run_child

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not (ROOT / "bench" / "__main__.py").exists(), reason="not in a checkout"),
]

PEERS = ("faster-fifo", "cloudtoid-interprocess", "pyzmq", "dejaq", "iceoryx2")
SIZE = 1024


def peer(name: str) -> Any:
    from bench.peers import all_peers

    (found,) = [each for each in all_peers() if each.name == name]
    if missing := found.missing():
        pytest.skip(f"not installed: {name} ({missing})")
    return found


@pytest.fixture(scope="module", autouse=True)
def memory_for_faster_fifo() -> None:
    """multiprocessing keeps for the next one what a queue gives back; each test looks for files."""
    with contextlib.suppress(ImportError):
        importlib.import_module("faster_fifo")
        peer("faster-fifo").channel(SIZE).close()


def names_in_the_table() -> set[str]:
    """The first cells of README's table, without marks and what stands in parentheses."""
    text = (ROOT / "README.md").read_text()
    table = text.split("what it does *not* do", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    return {re.sub(r"[`*]| \(.*", "", name) for row in rows for name in row.split(", ")}


def test_everybody_who_is_measured_is_in_the_table() -> None:
    from bench.peers import all_peers

    measured = {re.sub(r"\((False)?\)$", "", each.name) for each in all_peers()}
    ours = {name for name in measured if name.startswith("shmpipe")}
    assert measured - ours < names_in_the_table()


# --- when the sender dies ------------------------------------------------------------------------


def receives(receive: Callable[[], Any], first: Flag) -> str:
    receive()
    first.set()
    try:
        receive()
    except EOFError:
        return "EOFError"
    return "another message"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiprocessing.SimpleQueue", *PEERS])
def test_no_word_of_a_dead_sender(name: str) -> None:
    channel = peer(name).channel(SIZE)

    def send() -> None:
        channel.sender()(bytes(SIZE))
        signal.pause()

    try:
        with Flag() as first:
            receiver = run_child(lambda: receives(channel.receiver(), first))
            sender = run_child(send)
            first.wait()
            sender.kill(signal.SIGKILL)
            with pytest.raises(TimeoutError):
                receiver.join(1.5)  # It goes on waiting.
            receiver.kill(signal.SIGKILL)
    finally:
        channel.close()


def test_no_word_of_a_dead_sender_from_queue() -> None:
    queue: Any = mp.get_context("fork").Queue()
    child = run_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(Exception, match=r"SIGKILL|9"):
        child.join(20)
    with pytest.raises(Exception) as caught:
        queue.get(timeout=0.2)
    assert type(caught.value).__name__ == "Empty"
    queue.close()


@pytest.mark.parametrize("make", [shmpipe.Pipe, mp.Pipe])
def test_pipes_tell(make: Any) -> None:
    reader, writer = make(False)
    child = run_child(signal.pause, close=[reader])
    writer.close()
    child.kill(signal.SIGKILL)
    with reader, pytest.raises(EOFError):
        reader.recv()


def test_a_queue_loses_what_its_thread_has_not_sent() -> None:
    queue: Any = mp.get_context("fork").Queue()

    def put() -> None:
        queue.put(bytes(1 << 20))  # returns at once, and more than the pipe holds is on its way
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Exception, match=r"SIGKILL|9"):
        run_child(put).join(20)
    queue._writer.close()  # else get() waited for the rest for ever
    with pytest.raises((EOFError, OSError)):
        queue.get(timeout=20)
    queue.close()


# --- what their calls do not take ----------------------------------------------------------------


def test_no_time_limits() -> None:
    for method in (
        mp.connection.Connection.send,
        mp.connection.Connection.recv,
        mp.connection.Connection.recv_bytes,
        mp.queues.SimpleQueue.get,
        mp.queues.SimpleQueue.put,
    ):
        assert "timeout" not in inspect.signature(method).parameters
    assert "timeout" in inspect.signature(mp.connection.Connection.poll).parameters


def test_cloudtoid_does_not_wait_for_space() -> None:
    peer("cloudtoid-interprocess")
    from cloudtoid_interprocess import Publisher

    assert {name for name in dir(Publisher) if "send" in name} == {"try_send", "try_send_batch"}


def test_iceoryx2_does_not_wait_in_receive() -> None:
    channel = peer("iceoryx2").channel(SIZE)
    try:
        service = channel._service()
        subscriber = service.subscriber_builder().create()
        publisher = service.publisher_builder().initial_max_slice_len(SIZE).create()
        assert subscriber.receive() is None
        with pytest.raises(Exception, match=r"(?i)exceed|max|large|size"):
            publisher.loan_slice_uninit(10 * SIZE)
        for part in (subscriber, publisher):
            part.delete()
    finally:
        channel.leave()
        channel.close()


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("faster-fifo", "faster_fifo", "Queue"),
        ("cloudtoid-interprocess", "cloudtoid_interprocess", "Subscriber"),
        ("dejaq", "dejaq", "DejaQueue"),
        ("iceoryx2", "iceoryx2", "Subscriber"),
        ("multiprocessing.SimpleQueue", "multiprocessing.queues", "SimpleQueue"),
        ("multiprocessing.SimpleQueue", "multiprocessing.queues", "Queue"),
    ],
)
def test_nothing_to_watch(name: str, module: str, kind: str) -> None:
    peer(name)
    assert not hasattr(getattr(importlib.import_module(module), kind), "fileno")


def refused(send: Callable[..., Any], error: type[Exception] | None, **options: Any) -> None:
    """An empty mebibyte takes a message of a kilobyte, and none of eight mebibytes."""
    small, large = bytes(SIZE), bytes(8 << 20)
    assert send(small, **options) is not False
    if error is None:
        assert send(large, **options) is False
    else:
        with pytest.raises(error):
            send(large, **options)


def test_no_message_larger_than_the_buffer_faster_fifo() -> None:
    channel = peer("faster-fifo").channel(SIZE)
    import queue

    refused(channel._raw.put, queue.Full, timeout=0.5)
    channel.close()


def test_no_message_larger_than_the_buffer_dejaq() -> None:
    channel = peer("dejaq").channel(SIZE)
    refused(channel.sender(), ValueError)
    channel.close()


def test_no_message_larger_than_the_buffer_cloudtoid() -> None:
    channel = peer("cloudtoid-interprocess").channel(SIZE)
    try:
        refused(channel._end("Publisher").try_send, None)
        channel.leave()
    finally:
        channel.close()


def test_zmq_goes_through_a_socket() -> None:
    channel = peer("pyzmq").channel(SIZE)
    try:
        channel.receiver()
        assert stat.S_ISSOCK(os.stat(f"{channel._directory}/socket").st_mode)
        channel.leave()
    finally:
        channel.close()


def test_ours_takes_more_than_its_buffer_and_a_time_limit() -> None:
    reader, writer = shmpipe.Pipe(False, size=1 << 16)
    child = run_child(lambda: writer.send_bytes(bytes(8 << 20), timeout=20), close=[reader])
    with reader, writer:
        assert reader.recv_bytes(timeout=20) == bytes(8 << 20)
        child.join(20)
        with pytest.raises(TimeoutError):
            reader.recv(timeout=0)
