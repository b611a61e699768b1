"""Asynchronous connections and several event loops; and what is refused."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmpipe import Pipe
from shmpipe.aio import AsyncConnection, core

from .links import KiB, MiB, receive_all
from .loops import loop
from .support import eventually, run_thread

__all__ = ["loop"]

LARGE = 3 * MiB + 5


# ---------------------------------------------------------------- several event loops


def leave_waiting(*calls: Callable[[], Any]) -> asyncio.AbstractEventLoop:
    """Begin calls in an event loop, and close it in the middle of them."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of tasks that were destroyed
    tasks = [loop.create_task(call()) for call in calls]
    loop.run_until_complete(asyncio.sleep(0.02))
    assert not any(task.done() for task in tasks)
    loop.close()
    return loop


def test_a_closed_loop_has_no_more_to_say() -> None:
    """A task that waited in it, and one that stood in line, are forgotten, for good."""
    receiver, sender = Pipe(False)
    conn = AsyncConnection(receiver)
    with sender:
        dead = leave_waiting(conn.recv, conn.recv)
        sender.send("hello")
        assert asyncio.run(asyncio.wait_for(conn.recv(), 20)) == "hello"
        dead = leave_waiting(conn.recv)
        conn.close()
        assert conn.closed and receiver.closed
    del dead
    gc.collect()


def test_a_message_half_sent_in_a_closed_loop_is_given_up() -> None:
    receiver, sender = Pipe(False, size=64 * KiB)
    conn = AsyncConnection(sender)
    with receiver:
        leave_waiting(lambda: conn.send_bytes(bytes(LARGE)), lambda: conn.send("in line"))

        async def main() -> None:
            await conn.send("next")
            conn.close()

        thread = run_thread(list, receiver)
        asyncio.run(main())
        assert thread.join() == ["next"]


def test_loops_one_after_the_other() -> None:
    """Also where tasks have stood in line, which binds asyncio's locks to a loop."""
    receiver, sender = Pipe(False)
    conn = AsyncConnection(receiver)

    async def main() -> None:
        tasks = [asyncio.ensure_future(conn.recv()) for _ in range(3)]
        await asyncio.sleep(0)
        for number in range(3):
            sender.send(number)
        assert await asyncio.wait_for(asyncio.gather(*tasks), 20) == [0, 1, 2]

    with sender:
        for _ in range(3):
            asyncio.run(main())
        conn.close()


def test_two_loops_at_once_are_refused(loop: Any) -> None:
    receiver, sender = Pipe(False)
    conn = loop.wrap(receiver)

    async def receive() -> Any:
        return await conn.recv()

    with sender:
        thread = run_thread(loop.run, receive)
        eventually(lambda: any(line is not None and line.locked() for line in conn._lines))
        with pytest.raises(RuntimeError, match="in another event loop"):
            loop.run(receive)
        sender.send("for the first")
        assert thread.join() == "for the first"
        sender.send("for the second")
        assert loop.run(receive) == "for the second"
        conn.close()


def test_closed_from_another_thread(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told, and need not look."""
    monkeypatch.setattr(core, "LOOK_AGAIN", 1000.0)
    receiver, sender = Pipe(False)
    conn = loop.wrap(receiver)

    async def receive() -> None:
        with pytest.raises(OSError, match="handle is closed"):
            await conn.recv()

    with sender:
        thread = run_thread(loop.run, receive)
        eventually(lambda: conn._descriptors)
        thread.wait_asleep(settle=0.02)
        conn.close()
        assert conn.closed
        thread.join()
        assert receiver.closed


def test_a_descriptor_is_forgotten_before_its_number_is_free(loop: Any) -> None:
    """Or the loop would watch another file, or stop watching it, that comes to have the number."""
    receiver, sender = Pipe(False)
    conn = loop.wrap(receiver)

    async def receive() -> None:
        with pytest.raises(OSError, match="handle is closed"):
            await conn.recv()

    async def close() -> None:
        while not conn._descriptors:
            await loop.sleep(0.001)
        await loop.sleep(0.02)
        (descriptor,) = conn._descriptors.values()
        run_thread(conn.close).join()  # the loop does nothing meanwhile
        os.fstat(descriptor)

    with sender:
        loop.run(lambda: loop.together(receive, close))
        assert receiver.closed


@pytest.mark.slow
def test_closed_from_another_thread_while_it_sends(loop: Any) -> None:
    """The task gets the error of a closed end, whatever it is just doing."""
    chance = random.Random(5)
    for _ in range(40):
        receiver, sender = Pipe(False, size=64 * KiB)
        conn = loop.wrap(sender)

        async def send_on(conn: Any = conn) -> None:
            while True:
                await conn.send_bytes(bytes(256 * KiB))

        async def send(send_on: Any = send_on) -> None:
            with pytest.raises(OSError, match="handle is closed"):
                await send_on()

        with receiver:
            receiving = run_thread(receive_all, receiver)
            thread = run_thread(loop.run, send)
            eventually(lambda conn=conn: conn._home is not None)
            time.sleep(chance.random() * 0.005)
            conn.close()
            thread.join()
            assert set(map(len, receiving.join())) <= {256 * KiB}


def test_a_close_that_is_refused_gives_nothing_up(loop: Any) -> None:
    receiver, sender = Pipe(size=64 * KiB)
    conn = loop.wrap(sender)

    async def refuse() -> None:
        await loop.sleep(0.02)
        async with conn.recv_view() as view:
            with pytest.raises(BufferError):
                conn.close()
            assert not conn.closed and view == b"lent"
        receiving.append(run_thread(receiver.recv_bytes))

    receiving: list[Any] = []
    with receiver:
        receiver.send_bytes(b"lent")
        loop.run(lambda: loop.together(lambda: conn.send_bytes(bytes(MiB)), refuse))
        assert receiving[0].join() == bytes(MiB)
        conn.close()


def test_a_call_at_home_that_fails_is_not_kept() -> None:
    theirs = pytest.importorskip("shmpipe.aio.anyio")

    def fail() -> None:
        raise ValueError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        theirs._start(asyncio.get_running_loop(), fail)
        await asyncio.sleep(0.01)
        assert not theirs._tasks

    asyncio.run(main())


def test_no_copies(loop: Any) -> None:
    with Pipe()[0] as end:
        conn = loop.wrap(end)
        for refused in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"cannot copy or pickle <shmpipe\.aio"):
                refused(conn)


def test_an_anyio_that_is_too_old_says_so(tmp_path: Path) -> None:
    (tmp_path / "anyio").mkdir()
    for name in ("__init__", "lowlevel"):
        (tmp_path / "anyio" / f"{name}.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import shmpipe.aio.anyio"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ImportError: shmpipe.aio.anyio needs AnyIO 4.10 or later" in result.stderr
