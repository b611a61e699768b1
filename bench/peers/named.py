"""Peers whose two sides meet under a name: pyzmq, cloudtoid-interprocess, iceoryx2."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .base import Channel, Peer, capacity

ZERO_COPY = 64 << 10  # from where on pyzmq's copy=False is worth its bookkeeping
ICEORYX_BUFFER = 256  # messages at most; it makes room for all of them in advance

_numbers = itertools.count()


class NamedChannel(Channel):
    """A name of its own, a directory for what is stored, and no leftovers in shared memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._name = f"shmpipe-bench-{os.getpid()}-{next(_numbers)}-"
        self._directory = tempfile.mkdtemp(prefix=self._name)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        for file in Path("/dev/shm").glob(f"*{self._name}*"):
            file.unlink(missing_ok=True)


class ZmqChannel(NamedChannel):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._context: Any = None  # of the process that uses the channel
        self._sockets: list[Any] = []  # one that goes takes along what it has not sent yet

    def _socket(self, kind: str) -> Any:
        import zmq

        if self._context is None:
            self._context = zmq.Context()
        socket = self._context.socket(getattr(zmq, kind))
        # By default a thousand messages, of whatever size.
        limit = max(2, min(1000, capacity(self._size) // self._size))
        socket.set_hwm(limit)
        address = f"ipc://{self._directory}/socket"
        if kind == "PULL":
            socket.bind(address)
        else:
            socket.connect(address)
        self._sockets.append(socket)
        return socket

    def sender(self) -> Callable[[bytes], Any]:
        send = self._socket("PUSH").send
        if self._size < ZERO_COPY:
            return send
        return lambda data: send(data, copy=False)

    def receiver(self) -> Callable[[], Any]:
        return self._socket("PULL").recv

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        receive = self._socket("PULL").recv_into
        return lambda: receive(buffer)

    def putter(self) -> Callable[[Any], Any]:
        if self._size < ZERO_COPY:
            return super().putter()
        send = self._socket("PUSH").send_multipart

        def put(obj: Any) -> None:
            buffers: list[pickle.PickleBuffer] = []
            stem = pickle.dumps(obj, 5, buffer_callback=buffers.append)
            send([stem, *buffers], copy=False)

        return put

    def getter(self) -> Callable[[], Any]:
        if self._size < ZERO_COPY:
            return super().getter()
        receive = self._socket("PULL").recv_multipart

        def get() -> Any:
            stem, *buffers = receive(copy=False)
            return pickle.loads(stem, buffers=[part.buffer for part in buffers])

        return get

    def leave(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
            self._sockets.clear()


class Zmq(Peer):
    """PUSH and PULL sockets over ``ipc://``; arrays as multipart messages without copying."""

    name = "pyzmq"
    distribution = "pyzmq"
    requires = ("zmq",)
    into = writers = True

    def channel(self, size: int, writers: int = 1) -> Channel:
        return ZmqChannel(size)


class CloudtoidChannel(NamedChannel):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._ends: list[Any] = []

    def _end(self, kind: str) -> Any:
        import cloudtoid_interprocess

        end = getattr(cloudtoid_interprocess, kind)(
            self._name, capacity(self._size), self._directory
        )
        self._ends.append(end)
        return end

    def sender(self) -> Callable[[bytes], Any]:
        try_send, give_way = self._end("Publisher").try_send, os.sched_yield

        def send(data: bytes) -> None:
            while not try_send(data):  # There is no way to wait for space.
                give_way()

        return send

    def receiver(self) -> Callable[[], Any]:
        return self._end("Subscriber").receive

    def leave(self) -> None:
        while self._ends:
            self._ends.pop().close()


class Cloudtoid(Peer):
    name = "cloudtoid-interprocess"
    distribution = "cloudtoid-interprocess"
    requires = ("cloudtoid_interprocess",)
    writers = True

    def channel(self, size: int, writers: int = 1) -> Channel:
        return CloudtoidChannel(size)


class IceoryxChannel(NamedChannel):
    """Publish and subscribe, one subscriber, nothing dropped.  The receiver polls."""

    def __init__(self, size: int, writers: int) -> None:
        super().__init__(size)
        self._writers = writers
        self._parts: list[Any] = []
        self._depth = max(2, min(ICEORYX_BUFFER, capacity(size) // size))

    def _service(self) -> Any:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(self._directory)
        config.global_cfg.prefix = iox.FileName.new(self._name)
        node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        service = (
            node.service_builder(iox.ServiceName.new("stream"))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .subscriber_max_buffer_size(self._depth)
            .enable_safe_overflow(False)
            .max_publishers(self._writers)
            .max_nodes(self._writers + 1)
            .open_or_create()
        )
        self._parts += [node, service]
        return service

    def sender(self) -> Callable[[bytes], Any]:
        import iceoryx2 as iox

        publisher = (
            self._service()
            .publisher_builder()
            .initial_max_slice_len(self._size + 4096)  # a pickle is larger than its object
            .backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        self._parts.append(publisher)
        loan, copy, give_way = publisher.loan_slice_uninit, ctypes.memmove, os.sched_yield

        def send(data: bytes) -> None:
            while True:
                sample = loan(len(data))
                copy(sample.payload_ptr, data, len(data))
                # In spite of the strategy it happens that nobody gets a message when the buffer
                # is full.
                if sample.assume_init().send():
                    return
                give_way()

        return send

    def _take(self) -> Callable[[], Any]:
        subscriber = self._service().subscriber_builder().buffer_size(self._depth).create()
        self._parts.append(subscriber)
        receive, give_way = subscriber.receive, os.sched_yield

        def take() -> Any:
            while (sample := receive()) is None:
                give_way()
            return sample

        return take

    def receiver(self) -> Callable[[], Any]:
        take, copy = self._take(), ctypes.string_at

        def receive() -> bytes:
            sample = take()
            data = copy(sample.payload_ptr, sample.payload().number_of_elements)
            sample.delete()
            return data

        return receive

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        take, copy = self._take(), ctypes.memmove
        target = (ctypes.c_char * len(buffer)).from_buffer(buffer)

        def receive() -> None:
            sample = take()
            copy(target, sample.payload_ptr, sample.payload().number_of_elements)
            sample.delete()

        return receive

    def leave(self) -> None:
        while self._parts:
            part = self._parts.pop()
            if hasattr(part, "delete"):
                part.delete()


class Iceoryx(Peer):
    name = "iceoryx2"
    distribution = "iceoryx2"
    requires = ("iceoryx2",)
    into = writers = True

    def channel(self, size: int, writers: int = 1) -> Channel:
        return IceoryxChannel(size, writers)
