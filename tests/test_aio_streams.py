"""Streams of asyncio over the ends of ``pipe()``."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shmpipe import F_GETPIPE_WRITE_SZ, F_SETFL, PipeReader, PipeWriter, fcntl, pipe
from shmpipe.aio import connect_read_pipe, connect_write_pipe, open_reader, open_writer

from .links import KiB, MiB
from .loops import AsyncioLoop, _uvloop
from .support import Flag, run_child

PAGE = 4 * KiB


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
        return _uvloop().run
    return AsyncioLoop().run


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_through_both(run: Any) -> None:
    data = data_of(3 * MiB)

    async def main() -> None:
        reader_end, writer_end = pipe()
        reader, writer = await open_reader(reader_end), await open_writer(writer_end)
        assert writer.get_extra_info("pipe") is writer_end

        async def write() -> None:
            at = 0
            while at < len(data):
                writer.write(data[at : at + 10_007])
                await writer.drain()
                at += 10_007
            writer.write(b"")
            writer.writelines([b"end\n", b"of it"])
            assert writer.can_write_eof()
            writer.write_eof()
            await writer.wait_closed()

        async def read() -> None:
            assert await reader.readexactly(len(data)) == data
            assert await reader.readline() == b"end\n"
            assert await reader.read() == b"of it"
            assert reader.at_eof()

        await asyncio.gather(write(), read())
        assert writer.is_closing() and writer_end.closed and reader_end.closed

    run(main)


def write_lines(writer: PipeWriter, count: int) -> None:
    for number in range(count):
        writer.write(b"%d\n" % number)
    writer.close()


def read_all(reader: PipeReader) -> int:
    total = 0
    while data := reader.read(1 << 20):
        total += len(data)
    return total


def test_with_other_processes(run: Any) -> None:
    """Lines from one process, counted here, and as many bytes to another."""
    from_child, child_writes = pipe()
    child_reads, to_child = pipe(write_size=32 * KiB)
    source = run_child(write_lines, child_writes, 30_000, close=[from_child, child_reads, to_child])
    sink = run_child(read_all, child_reads, close=[from_child, child_writes, to_child])
    child_writes.close()
    child_reads.close()

    async def main() -> int:
        reader, writer = await open_reader(from_child), await open_writer(to_child)
        count = 0
        async for line in reader:
            assert int(line) == count
            count += 1
            writer.write(line)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        return count

    assert run(main) == 30_000
    source.join()
    assert sink.join() == sum(len(b"%d\n" % number) for number in range(30_000))


def test_limit_of_a_line(run: Any) -> None:
    async def main() -> None:
        reader_end, writer_end = pipe()
        with writer_end:
            reader = await open_reader(reader_end, limit=100)
            writer_end.write(b"x" * 300)
            with pytest.raises(asyncio.LimitOverrunError):
                await reader.readuntil(b"\n")
            writer_end.close()
            await reader.read()

    run(main)


def test_backpressure_follows_the_write_size(run: Any) -> None:
    async def main() -> None:
        reader, writer_end = pipe(16 * PAGE, write_size=8 * PAGE)
        fcntl(reader, F_SETFL, os.O_NONBLOCK)
        with reader:
            writer = await open_writer(writer_end)
            assert writer.transport.get_write_buffer_limits() == (2 * PAGE, 8 * PAGE)
            assert fcntl(writer_end, F_GETPIPE_WRITE_SZ) == 8 * PAGE
            writer.write(bytes(16 * PAGE))
            assert writer.transport.get_write_buffer_size() == 0
            writer.write(bytes(8 * PAGE))
            await asyncio.wait_for(writer.drain(), 20)  # not more than the write size waits
            writer.write(b"1")
            assert writer.transport.get_write_buffer_size() == 8 * PAGE + 1
            drained = asyncio.ensure_future(writer.drain())
            for _ in range(7):
                assert reader.read(PAGE) == bytes(PAGE)
                await asyncio.sleep(0.005)
                assert not drained.done() and reader.stats().pages_used < 16
            assert reader.read(PAGE) == bytes(PAGE)
            await asyncio.wait_for(drained, 20)
            writer.close()
            assert not writer_end.closed  # the last byte waits
            total = 0
            while not writer_end.closed or total < 16 * PAGE + 1:
                total += len(reader.read(1 << 20) or b"")
                await asyncio.sleep(0)
            assert total == 16 * PAGE + 1
            await writer.wait_closed()

    run(main)


def test_write_buffer_limits(run: Any) -> None:
    async def main() -> None:
        reader, writer_end = pipe(4 * PAGE)
        with reader:
            writer = await open_writer(writer_end)
            transport = writer.transport
            transport.set_write_buffer_limits(high=100)
            assert transport.get_write_buffer_limits() == (25, 100)
            transport.set_write_buffer_limits(low=10)
            assert transport.get_write_buffer_limits() == (10, 40)
            with pytest.raises(ValueError, match="must be >="):
                transport.set_write_buffer_limits(high=1, low=2)
            transport.abort()
            await asyncio.sleep(0)
            assert writer_end.closed

    run(main)


@pytest.mark.parametrize("waits", [False, True])
def test_reader_that_closes(run: Any, waits: bool) -> None:
    async def main() -> None:
        reader, writer_end = pipe(4 * PAGE)
        writer = await open_writer(writer_end)
        writer.write(bytes((20 if waits else 1) * PAGE))
        drain = asyncio.ensure_future(writer.drain())
        await asyncio.sleep(0.01)
        assert drain.done() is not waits
        reader.close()
        if waits:
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await asyncio.wait_for(drain, 20)
        for _ in range(2000):
            if writer.is_closing():
                break
            await asyncio.sleep(0.01)
        assert writer_end.closed
        writer.write(b"nobody")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await writer.drain()

    run(main)


def write_and_wait(writer: PipeWriter, written: Flag) -> None:
    writer.write(b"half a li")
    written.set()
    threading.Event().wait()


def test_killed_writer(run: Any) -> None:
    reader_end, writer_end = pipe()
    with Flag() as written:
        child = run_child(write_and_wait, writer_end, written, close=[reader_end])
        writer_end.close()
        written.wait()

        async def main() -> None:
            reader = await open_reader(reader_end)
            child.kill()
            assert await asyncio.wait_for(reader.readline(), 20) == b"half a li"
            assert await reader.read() == b""

        run(main)


def test_killed_reader(run: Any) -> None:
    reader_end, writer_end = pipe()
    child = run_child(threading.Event().wait, close=[writer_end])
    reader_end.close()

    async def write() -> None:
        writer = await open_writer(writer_end)
        while True:
            writer.write(bytes(PAGE))
            await writer.drain()

    async def main() -> None:
        task = asyncio.ensure_future(write())
        await asyncio.sleep(0.05)
        child.kill()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await asyncio.wait_for(task, 20)

    run(main)


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(exc)


def test_reading_transport(run: Any) -> None:
    async def main() -> None:
        reader, writer = pipe()
        transport, protocol = await connect_read_pipe(Recorder, reader)
        assert protocol.calls == ["made"] and transport.is_reading()
        assert transport.get_protocol() is protocol and "PipeReader" in repr(transport)
        writer.write(b"1")
        await until(lambda: protocol.calls == ["made", b"1"])
        transport.pause_reading()
        transport.pause_reading()
        writer.write(b"2")
        await asyncio.sleep(0.01)
        assert len(protocol.calls) == 2
        other = Recorder()
        transport.set_protocol(other)
        transport.resume_reading()
        transport.resume_reading()
        writer.close()
        await until(lambda: other.calls == [b"2", "eof", None])
        assert transport.is_closing() and reader.closed
        transport.close()
        await asyncio.sleep(0)
        assert len(other.calls) == 3

    run(main)


def test_closed_early(run: Any) -> None:
    async def main() -> None:
        reader, writer = pipe()
        reading, protocol = await connect_read_pipe(Recorder, reader)
        writing, other = await connect_write_pipe(Recorder, writer)
        writing.write(b"1")
        reading.close()
        writing.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert protocol.calls == ["made", None] and other.calls == ["made", None]
        assert reader.closed and writer.closed

    run(main)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not within 20 s")


def test_wrong_ends() -> None:
    async def main() -> None:
        reader, writer = pipe()
        with reader, writer:
            with pytest.raises(TypeError, match="PipeReader"):
                await open_reader(writer)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="PipeWriter"):
                await open_writer(reader)  # type: ignore[arg-type]

    asyncio.run(main())


def test_one_stream_for_an_end() -> None:
    async def main() -> None:
        reader, writer = pipe()
        lines = await open_reader(reader)
        with pytest.raises(ValueError, match="has a transport already"):
            await open_reader(reader)
        out = await open_writer(writer)
        with pytest.raises(ValueError, match="has a transport already"):
            await open_writer(writer)
        out.write(b"one\n")
        out.close()
        assert await asyncio.wait_for(lines.read(), 20) == b"one\n"

    asyncio.run(main())


def test_wrong_arguments() -> None:
    async def main() -> None:
        reader, writer = pipe()
        with reader, writer:
            for limit in ("1", None, 1.5):
                with pytest.raises(TypeError, match="limit must be a number of bytes, not"):
                    await open_reader(reader, limit=limit)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"[Ll]imit"):
                await open_reader(reader, limit=0)
            protocol: Any = asyncio.Protocol()  # made, where a maker is wanted
            with pytest.raises(TypeError, match=r"protocol_factory must be .*, not Protocol"):
                await connect_read_pipe(protocol, reader)
            with pytest.raises(TypeError, match=r"protocol_factory must be .*, not Protocol"):
                await connect_write_pipe(protocol, writer)
            writer.write(b"as before")
            assert reader.read(9) == b"as before"

    asyncio.run(main())
