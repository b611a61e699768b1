"""Asynchronous connections: what they send and receive, in which order, and how calls end."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

from shmpipe import Connection, Pipe, pipe
from shmpipe.aio import AsyncConnection

from .links import KiB, MiB, numbered
from .loops import loop, sizes
from .support import Flag, eventually, run_child, run_process, run_thread

__all__ = ["loop"]

LARGE = 5 * MiB + 5


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# ---------------------------------------------------------------- what it is for


def test_importing_shmpipe_does_not_import_asyncio() -> None:
    program = "import sys, shmpipe; sys.exit('asyncio' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_both_ways(loop: Any) -> None:
    messages: list[Any] = [1, "two", b"x" * 20_000, numpy.arange(500_000), {"three": [None]}, b""]

    async def main() -> None:
        left, right = (loop.wrap(end) for end in Pipe(size=64 * KiB))

        async def ask() -> None:
            for message in messages:
                await left.send(message)
                assert numpy.array_equal(await left.recv(), message)
            left.close()

        async def answer() -> None:
            async for message in right:
                await right.send(message)

        async with left, right:
            await loop.together(ask, answer)
            with pytest.raises(EOFError):
                await right.recv()
            with pytest.raises(BrokenPipeError):
                await right.send(1)

    loop.run(main)


def test_bytes(loop: Any) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False))
        async with receiver, sender:
            await sender.send_bytes(b"0123456789", 2, 3)
            assert await receiver.recv_bytes() == b"234"
            await sender.send_bytes(bytearray(b"abc"))
            buffer = bytearray(8)
            assert await receiver.recv_bytes_into(buffer, 2) == 3
            assert buffer == b"\0\0abc\0\0\0"
            await sender.send_bytes(b"long")
            with pytest.raises(OSError, match="bad message length"):
                await receiver.recv_bytes(3)

    loop.run(main)


def test_large_into_a_buffer(loop: Any) -> None:
    data = noise(LARGE)

    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=64 * KiB))
        buffer = bytearray(LARGE)

        async def receive() -> None:
            assert await receiver.recv_bytes_into(buffer) == LARGE

        async with receiver, sender:
            await loop.together(lambda: sender.send_bytes(data), receive)
        assert buffer == data

    loop.run(main)


def test_wrong_ends_and_closed_ones(loop: Any) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False))
        assert (receiver.readable, receiver.writable) == (True, False)
        assert (sender.readable, sender.writable) == (False, True)
        with pytest.raises(OSError, match="read-only"):
            await receiver.send(1)
        with pytest.raises(OSError, match="write-only"):
            await sender.recv()
        with pytest.raises(TypeError):
            await sender.send_bytes("text")
        await sender.aclose()
        sender.close()
        assert sender.closed and not receiver.closed
        with pytest.raises(OSError, match="handle is closed"):
            await sender.send(1)
        receiver.close()
        with pytest.raises(OSError, match="handle is closed"):
            await receiver.recv()
        assert "closed" in repr(receiver)

    loop.run(main)


def test_made_for_connections_alone(loop: Any) -> None:
    theirs = multiprocessing.Pipe()
    with Pipe()[0] as end, theirs[0], theirs[1]:
        things: dict[str, Any] = {
            "builtins.int": 1,
            "builtins.NoneType": None,
            "multiprocessing.connection.Connection": theirs[0],
            "shmpipe.halves.Half": end.incoming,
        }
        things["shmpipe.pipe.PipeReader"], writer = pipe()
        with things["shmpipe.pipe.PipeReader"], writer:
            for name, thing in things.items():
                with pytest.raises(TypeError, match=rf"a shmpipe\.Connection.* not {name}$"):
                    loop.wrap(thing)
        wrapper = loop.wrap(end)
        with pytest.raises(TypeError, match=r"not shmpipe\.aio\..*AsyncConnection$"):
            loop.wrap(wrapper)
    with pytest.raises(OSError, match="handle is closed"):
        loop.wrap(end)


def test_one_wrapper_for_a_connection() -> None:
    receiver, sender = Pipe(False)
    with receiver, sender:
        first = AsyncConnection(receiver)
        with pytest.raises(ValueError, match="wrapper already"):
            AsyncConnection(receiver)
        assert first.connection is receiver
        del first
        AsyncConnection(receiver).close()


class Raises:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise, (self.error,)


def _raise(error: type[Exception]) -> None:
    raise error("in unpickling")


@pytest.mark.parametrize("error", [EOFError, TimeoutError])
def test_what_unpickling_raises_is_not_taken_for_something_else(error: type[Exception]) -> None:
    from .loops import AsyncioLoop

    async def main() -> None:
        receiver, sender = (AsyncConnection(end) for end in Pipe(False))
        async with receiver, sender:
            await sender.send(Raises(error))
            with pytest.raises(error, match="in unpickling"):
                await receiver.recv()
            await sender.send(Raises(error))
            with pytest.raises(error, match="in unpickling"):
                await receiver.__anext__()
            await sender.send(1)
            assert await receiver.recv() == 1

    AsyncioLoop().run(main)


def test_lending(loop: Any) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=64 * KiB))

        async def send() -> None:
            for number in range(50):
                async with sender.reserve(10_000) as view:
                    view[:] = numbered(number, 10_000)
                await sender.send_bytes(numbered(number, 100))

        async def receive() -> None:
            for number in range(50):
                async with receiver.recv_view() as view:
                    await loop.sleep(0)
                    assert view == numbered(number, 10_000)
                assert await receiver.recv_bytes() == numbered(number, 100)

        async with receiver, sender:
            await loop.together(send, receive)
            sender.close()
            with pytest.raises(EOFError):
                async with receiver.recv_view():
                    raise AssertionError

    loop.run(main)


# ---------------------------------------------------------------- order, and nobody starves


def test_tasks_come_in_their_order(loop: Any) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=4 * KiB))
        found: list[tuple[int, int]] = []

        def receive(who: int) -> Callable[[], Any]:
            async def task() -> None:
                for _ in range(40):
                    found.append((who, await receiver.recv()))

            return task

        async def send() -> None:
            for number in range(400):
                await sender.send(number)

        async with receiver, sender:
            await loop.together(*[receive(who) for who in range(10)], send)
        assert [number for _, number in found] == list(range(400))
        # Each has to wait for its turn, so they all get as much, and in the same order every time.
        assert all(found[at][0] == found[at + 10][0] for at in range(100, 300))

    loop.run(main)


def test_senders_come_in_their_order(loop: Any) -> None:
    """Small messages do not overtake one that is larger than the pipe."""

    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=4 * KiB))
        called: list[int] = []  # (Trio starts tasks in any order.)

        def send(who: int) -> Callable[[], Any]:
            async def task() -> None:
                called.append(who)
                await sender.send_bytes(numbered(who, 20_000 if who % 3 == 0 else 20))

            return task

        async def receive() -> None:
            found = []
            for _ in range(30):
                await loop.sleep(0)
                found.append(int((await receiver.recv_bytes())[:8]))
            assert found == called

        async with receiver, sender:
            await loop.together(*[send(who) for who in range(30)], receive)

    loop.run(main)


def test_others_run_beside_a_call_that_never_waits(loop: Any) -> None:
    """And beside messages that are much larger than the pipe."""

    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=64 * KiB))
        over = False
        rounds = 0

        async def tick() -> None:
            nonlocal rounds
            while not over:
                rounds += 1
                await loop.sleep(0)

        async def small() -> None:
            nonlocal over
            for _ in range(500):
                await sender.send(1)
                await receiver.recv()
            assert rounds >= 10
            await loop.together(lambda: sender.send_bytes(bytes(LARGE)), receiver.recv_bytes)
            assert rounds >= 10 + LARGE // (128 * KiB)
            over = True

        async with receiver, sender:
            await loop.together(tick, small)

    loop.run(main)


def test_a_call_takes_no_more_than_the_pipe_holds() -> None:
    """However fast the sender goes on with a large message."""
    receiver, sender = Pipe(False, size=64 * KiB)
    with receiver, sender:
        thread = run_thread(sender.send_bytes, noise(5 * MiB))
        kept = 0
        while True:
            try:
                data = receiver.recv_bytes(timeout=0.0)
            except TimeoutError as error:
                before, kept = kept, getattr(error, "kept", 0)
                assert kept - before <= 2 * 64 * KiB
            else:
                break
        assert data == noise(5 * MiB)
        assert kept
        thread.join()


# ---------------------------------------------------------------- other processes


def echo(connection: Connection) -> None:
    for message in connection:
        connection.send(message)


def send_numbered(sender: Connection, lengths: list[int]) -> None:
    for number, length in enumerate(lengths):
        sender.send_bytes(numbered(number, length))
    sender.close()


def receive_numbered(receiver: Connection) -> list[tuple[int, int]]:
    found = []
    try:
        while True:
            message = receiver.recv_bytes()
            found.append((int(message[:8]), len(message)))
    except EOFError:
        return found


def test_with_another_process(loop: Any) -> None:
    ours, theirs = Pipe(size=64 * KiB)
    child = run_child(echo, theirs, close=[ours])
    theirs.close()

    async def main() -> None:
        async with loop.wrap(ours) as conn:
            for size in [1, 100, 10_000, 100_000, 1_000_000] * 4:
                data = noise(size)
                await loop.together(lambda: conn.send(data), lambda: same(conn, data))  # noqa: B023

    async def same(conn: Any, data: bytes) -> None:
        assert await conn.recv() == data

    loop.run(main)
    child.join()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_receiving_process_of_every_start_method(method: str) -> None:
    from .loops import AsyncioLoop

    receiver, sender = Pipe(False, size=16 * KiB)
    child = run_process(method, receive_numbered, receiver)
    receiver.close()
    lengths = sizes(3, 300, 100_000)

    async def main() -> None:
        async with AsyncConnection(sender) as conn:
            for number, length in enumerate(lengths):
                await conn.send_bytes(numbered(number, length))

    AsyncioLoop().run(main)
    assert child.join() == list(enumerate(lengths))


def receive_in_a_loop(receiver: Connection, tasks: int) -> list[int]:
    """Numbers received by tasks of an event loop of a process of its own."""
    import asyncio

    found: list[int] = []

    async def main() -> None:
        conn = AsyncConnection(receiver)

        async def task() -> None:
            try:
                while True:
                    found.append(int((await conn.recv_bytes())[:8]))
            except EOFError:
                pass

        await asyncio.gather(*[task() for _ in range(tasks)])

    asyncio.run(main())
    return found


@pytest.mark.slow
def test_loops_in_several_processes_share_the_ends() -> None:
    """Two that receive, one here and one elsewhere; two that send, small and large messages."""
    from .loops import AsyncioLoop

    receiver, sender = Pipe(False, size=16 * KiB)
    children = [run_child(receive_in_a_loop, receiver, 3, close=[sender]) for _ in range(2)]
    receiver.close()
    lengths = sizes(4, 400, 60_000)
    other = run_child(send_numbered, sender, lengths)

    async def main() -> None:
        async with AsyncConnection(sender) as conn:
            for number, length in enumerate(lengths):
                await conn.send_bytes(numbered(1000 + number, length))

    AsyncioLoop().run(main)
    other.join()
    found = [child.join() for child in children]
    assert sorted(found[0] + found[1]) == [*range(400), *range(1000, 1400)]
    for part in found:
        assert [n for n in part if n < 1000] == sorted(n for n in part if n < 1000)
        assert [n for n in part if n >= 1000] == sorted(n for n in part if n >= 1000)


def send_and_die(sender: Connection, half: bool) -> None:
    sender.send("first")
    if half:
        stepped = sender.begin_send_bytes(bytes(LARGE))
        stepped.step()
    os._exit(9)


def wait_to_be_killed(end: Connection, ready: Flag) -> None:
    ready.set()
    threading.Event().wait()


@pytest.mark.parametrize("half", [False, True])
def test_killed_sender(loop: Any, half: bool) -> None:
    receiver, sender = Pipe(False, size=64 * KiB)
    child = run_child(send_and_die, sender, half, close=[receiver])
    sender.close()

    async def main() -> None:
        async with loop.wrap(receiver) as conn:
            assert await conn.recv() == "first"
            with pytest.raises(EOFError):
                await conn.recv()

    loop.run(main)
    eventually(lambda: not child.alive())


@pytest.mark.parametrize("half", [False, True])
def test_killed_sender_whose_end_is_held_elsewhere(loop: Any, half: bool) -> None:
    """Then no end of file shows; what comes next is received all the same."""
    receiver, sender = Pipe(False, size=64 * KiB)
    child = run_child(send_and_die, sender, half, close=[receiver])

    async def main() -> None:
        async with loop.wrap(receiver) as incoming, loop.wrap(sender) as outgoing:

            async def receive() -> None:
                assert await incoming.recv() == "second"

            assert await incoming.recv() == "first"
            eventually(lambda: not child.alive())
            await loop.together(receive, lambda: outgoing.send("second"))

    loop.run(main)


@pytest.mark.parametrize("size", [100, LARGE])
def test_killed_receiver(loop: Any, size: int) -> None:
    receiver, sender = Pipe(False, size=64 * KiB)
    with Flag() as ready:
        child = run_child(wait_to_be_killed, receiver, ready, close=[sender])
        receiver.close()
        ready.wait()

        async def main() -> None:
            async with loop.wrap(sender) as conn:

                async def fill() -> None:
                    while True:
                        await conn.send_bytes(bytes(size))

                async def fail() -> None:
                    with pytest.raises(BrokenPipeError):
                        await fill()

                async def kill() -> None:
                    await loop.sleep(0.05)
                    child.kill()

                await loop.together(fail, kill)

        loop.run(main)


# ---------------------------------------------------------------- how calls end


def test_time_limits(loop: Any) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=4 * KiB))
        async with receiver, sender:
            with pytest.raises(TimeoutError):
                await loop.within(0.01, receiver.recv)
            for size in (3000, 100_000):
                await sender.send_bytes(bytes(3000))
                with pytest.raises(TimeoutError):
                    await loop.within(0.01, lambda: sender.send_bytes(bytes(size)))  # noqa: B023
                assert await receiver.recv_bytes() == bytes(3000)
            await sender.send("here")
            assert await loop.within(10, receiver.recv) == "here"

    loop.run(main)


@pytest.mark.parametrize("what", ["recv", "send", "send large"])
def test_close_ends_what_waits(loop: Any, what: str) -> None:
    async def main() -> None:
        receiver, sender = (loop.wrap(end) for end in Pipe(False, size=4 * KiB))
        end = receiver if what == "recv" else sender
        ended = 0

        async def wait() -> None:
            nonlocal ended
            size = LARGE if what == "send large" else 3000
            call = receiver.recv if what == "recv" else partial(sender.send_bytes, bytes(size))
            with pytest.raises(OSError, match="handle is closed"):
                await call()
            ended += 1

        async def close() -> None:
            await loop.sleep(0.02)
            assert not ended
            end.close()

        async with receiver, sender:
            if what == "send":
                await sender.send_bytes(bytes(3000))
            await loop.together(wait, wait, close)
            assert ended == 2
            if end is sender:
                assert await drained(receiver) == (1 if what == "send" else 0)

    async def drained(receiver: Any) -> int:
        count = 0
        try:
            while True:
                await receiver.recv_bytes()
                count += 1
        except EOFError:
            return count

    loop.run(main)


@pytest.mark.slow
@pytest.mark.timeout_s(240)
def test_receives_cancelled_at_random(loop: Any) -> None:
    """Nothing is lost, nothing comes twice, and the order stays."""
    receiver, sender = Pipe(False, size=8 * KiB)
    lengths = sizes(5, 12_000, 30_000)
    child = run_child(send_numbered, sender, lengths, close=[receiver])
    sender.close()
    found: list[tuple[int, int]] = []
    cancelled = 0

    async def main() -> None:
        conn = loop.wrap(receiver)

        async def receive() -> None:
            message = await conn.recv_bytes()
            found.append((int(message[:8]), len(message)))

        async def task() -> None:
            nonlocal cancelled
            choice = random.Random(1)
            try:
                while True:
                    if not await loop.cut_short(choice.randrange(12), receive):
                        cancelled += 1
            except EOFError:
                pass

        async with conn:
            await loop.together(task, task, task)

    loop.run(main)
    child.join()
    assert found == list(enumerate(lengths))
    assert cancelled > 1000


@pytest.mark.slow
@pytest.mark.timeout_s(240)
def test_sends_cancelled_at_random(loop: Any) -> None:
    """What was sent is received whole, what was cancelled is not received at all."""
    receiver, sender = Pipe(False, size=8 * KiB)
    lengths = sizes(6, 12_000, 30_000)
    child = run_child(receive_numbered, receiver, close=[sender])
    receiver.close()
    sent: list[tuple[int, int]] = []
    numbers = iter(range(len(lengths)))

    async def main() -> None:
        conn = loop.wrap(sender)

        async def task() -> None:
            choice = random.Random(2)
            for number in numbers:
                length = lengths[number]

                async def send() -> None:
                    await conn.send_bytes(numbered(number, length))  # noqa: B023
                    sent.append((number, length))  # noqa: B023

                await loop.cut_short(choice.randrange(12), send)

        async with conn:
            await loop.together(task, task, task)

    loop.run(main)
    assert child.join() == sent
    assert 1000 < len(sent) < len(lengths) - 1000
