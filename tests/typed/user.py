"""What a user writes, for a type checker; it is not run. The types are what an editor shows."""

from __future__ import annotations

import io
import selectors
from collections.abc import Callable, Iterator
from multiprocessing import Process
from multiprocessing.connection import wait
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import shmpipe
from shmpipe.aio import AsyncConnection, open_reader, open_writer


def work(conn: shmpipe.Connection) -> None:
    for obj in conn:
        conn.send(obj, timeout=1.0)


def messages() -> None:
    with shmpipe.Pipe()[0] as end:
        assert_type(end, shmpipe.Connection)
    ours, theirs = shmpipe.Pipe(duplex=False, size=1 << 20, wake="half")
    Process(target=work, args=(theirs,)).start()
    assert_type(ours.recv_bytes(), bytes)
    assert_type(ours.try_recv_bytes(100), "bytes | None")
    assert_type(ours.recv_bytes_into(bytearray(10)), int)
    assert_type(ours.recv_many(10), list[Any])
    assert_type(ours.recv_packed(), Callable[[], Any])
    assert_type(ours.poll(1.5), bool)
    assert_type(theirs.try_send_bytes(memoryview(b"")), bool)
    assert_type(theirs.send_many(range(3)), int)
    with theirs.reserve(100) as view:
        assert_type(view, memoryview)
        view[:4] = b"some"
    shmpipe.fcntl(theirs.outgoing, shmpipe.F_SETPIPE_WRITE_SZ, 4096)
    try:
        ours.recv_bytes(timeout=0)
    except shmpipe.PartlyReceived as late:
        assert_type(late.kept, int)
    except TimeoutError:
        pass
    assert_type(shmpipe.fcntl(ours, shmpipe.F_GETPIPE_SZ), int)
    assert_type(ours.stats().writer_wakes, int)
    selectors.DefaultSelector().register(ours, selectors.EVENT_READ)
    selectors.DefaultSelector().register(theirs.outgoing, selectors.EVENT_WRITE)
    ends: list[Any] = [ours, theirs.outgoing]  # the stubs of wait() know its own connections only
    wait(ends)
    with theirs.begin_send({"a": 1}) as message:
        assert_type(message, shmpipe.SteppedSend)
        assert_type(message.step(), bool)


def arrays(conn: shmpipe.Connection) -> None:
    conn.send_array([1, 2, 3])
    assert_type(conn.recv_array(), NDArray[Any])
    out: NDArray[np.float32] = np.empty(100, np.float32)
    assert_type(conn.recv_array(out, timeout=1), NDArray[np.float32])
    with conn.recv_array_view() as lent, conn.reserve_array((3, 4), np.uint8) as free:
        assert_type(free, NDArray[np.uint8])
        free[:] = lent.sum()
    with conn.reserve_array(7, out.dtype, "F") as same, conn.reserve_array(7, "f4") as any_of_them:
        assert_type(same, NDArray[np.float32])
        assert_type(any_of_them, NDArray[Any])
    for plain in (bool, int, float, complex):
        conn.reserve_array(7, plain)
    with conn.reserve_array(7, float) as floats, conn.reserve_array(7, [("x", "f4")]) as records:
        assert_type(floats, NDArray[Any])
        assert_type(records, NDArray[Any])


def stream() -> None:
    reader, writer = shmpipe.pipe(1 << 20, write_size=1 << 19)
    assert_type(reader, shmpipe.PipeReader)
    assert_type(reader.read(10), "bytes | Any")
    for wake in WAKE:
        shmpipe.pipe(wake=wake)
    with io.BufferedReader(reader, 1 << 20) as buffered, io.BufferedWriter(writer) as full:
        assert_type(buffered.readline(), bytes)
        io.TextIOWrapper(buffered).readline()
        full.flush()
    assert_type(writer.write(b"data"), "int | None")
    with reader, writer:
        lines: Iterator[bytes] = iter(reader)
        assert_type(shmpipe.fcntl(writer, shmpipe.F_GETFL), int)
    del lines


def names() -> None:
    with shmpipe.listen("name", direction="send") as listener:
        assert_type(listener, shmpipe.Listener)
        for conn in listener:
            assert_type(conn, shmpipe.Connection)
    assert_type(shmpipe.connect("name", wait=True, timeout=1), shmpipe.Connection)
    with shmpipe.installed():
        pass


async def event_loop(end: shmpipe.Connection) -> None:
    out: NDArray[np.uint8] = np.empty(100, np.uint8)
    async with AsyncConnection(end) as conn:
        assert_type(conn, AsyncConnection)
        assert_type(await conn.recv_bytes(), bytes)
        assert_type(await conn.recv_array(), NDArray[Any])
        assert_type(await conn.recv_array(out), NDArray[np.uint8])
        async for obj in conn:
            await conn.send(obj)
        async with conn.recv_view() as view:
            assert_type(view, memoryview)
        async with conn.reserve_array(7, np.float32) as free:
            assert_type(free, NDArray[np.float32])
    reader, writer = shmpipe.pipe()
    (await open_writer(writer)).write(await (await open_reader(reader)).readline())


# (As many as `shmpipe.policies.POLICIES` has, which a test compares.)
WAKE: tuple[
    Literal["write-size"],
    Literal["page"],
    Literal["half"],
    Literal["edge-half"],
    Literal["full-edge"],
] = ("write-size", "page", "half", "edge-half", "full-edge")


def mistakes(conn: shmpipe.Connection) -> None:
    conn.send(1, 2)  # type: ignore[call-arg]
    conn.send_bytes("text")  # type: ignore[arg-type]
    conn.recv(timeout="long")  # type: ignore[arg-type]
    conn.recv_array([1, 2])  # type: ignore[arg-type]
    shmpipe.fcntl(3, shmpipe.F_GETPIPE_SZ)  # type: ignore[arg-type]
    conn.reserve_array(7, np.uint8, "K")  # type: ignore[arg-type]
    shmpipe.Pipe(wake="never")  # type: ignore[arg-type]
    shmpipe.listen("name", direction="sideways")  # type: ignore[arg-type]
    AsyncConnection(7)  # type: ignore[arg-type]
