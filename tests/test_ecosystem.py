"""What other libraries' objects do on their way through ``send()``; skipped where they are missing.

Out of band means: the pickle is small, and the memory of the object lies beside it, uncopied.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from shmpipe import objects
from shmpipe.frames import OBJECT

from .links import MiB, link_of, stop_resource_sharer
from .support import run_child, run_thread

__all__ = ["stop_resource_sharer"]

COUNT = 100_000


def needs(*modules: str) -> Any:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


def pandas_frame() -> Any:
    import pandas

    numbers = numpy.arange(COUNT)
    return pandas.DataFrame(
        {
            "a": numbers,
            "b": numbers * 0.5,
            "kind": pandas.Categorical(numbers % 7),
            "day": pandas.date_range("2020", periods=COUNT),
        }
    )


def arrow_frame() -> Any:
    return pandas_frame().convert_dtypes(dtype_backend="pyarrow")


def record_batch() -> Any:
    import pyarrow

    text = [str(number) for number in range(COUNT)]
    return pyarrow.RecordBatch.from_pydict({"a": numpy.arange(COUNT), "text": text})


def table() -> Any:
    import pyarrow

    return pyarrow.Table.from_batches([record_batch()] * 2)


def image() -> Any:
    from PIL import Image

    return Image.fromarray(numpy.arange(300 * 400 * 3).astype("u1").reshape(300, 400, 3))


def equals(left: Any, right: Any) -> bool:
    return bool(left.equals(right))


def same_pixels(left: Any, right: Any) -> bool:
    return bool(left.mode == right.mode and left.tobytes() == right.tobytes())


# Its name, what makes it, how it is compared, the bytes that are its data.
OBJECTS = [
    pytest.param(pandas_frame, equals, 25 * COUNT, id="pandas", marks=needs("pandas")),
    pytest.param(
        arrow_frame, equals, 25 * COUNT, id="pandas on Arrow", marks=needs("pandas", "pyarrow")
    ),
    pytest.param(record_batch, equals, 16 * COUNT, id="record batch", marks=needs("pyarrow")),
    pytest.param(table, equals, 16 * COUNT, id="table", marks=needs("pyarrow")),
    pytest.param(image, same_pixels, 360_000, id="image", marks=needs("PIL")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "same", "data"), OBJECTS)
def test_out_of_band(make: Callable[[], Any], same: Callable[[Any, Any], bool], data: int) -> None:
    sent = make()
    kind, content, size = objects.dump(sent)
    assert kind == OBJECT
    count, pickled = struct.unpack_from("<2Q", content[0])
    assert count >= 1 and pickled < 4096
    assert size > data
    with link_of("shmpipe", False) as (receiver, sender):
        thread = run_thread(sender.send, sent)
        received = receiver.recv()
        thread.join()
        assert type(received) is type(sent) and same(received, sent)


@pytest.mark.slow
@needs("pyarrow")
def test_arrow_without_a_copy_out_of_the_pipe() -> None:
    """A stream of record batches, read where it lies."""
    import pyarrow

    sent = record_batch()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, sent.schema) as writer:
        writer.write_batch(sent)
    stream = sink.getvalue()
    with link_of("shmpipe", False, size=4 * MiB) as (receiver, sender):
        sender.send_bytes(stream)

        def total(view: memoryview) -> int:
            (batch,) = pyarrow.ipc.open_stream(pyarrow.py_buffer(view))
            return int(numpy.asarray(batch.column(0)).sum())

        with receiver.recv_view() as view:  # nothing of the batch may stay behind the block
            assert total(view) == COUNT * (COUNT - 1) // 2


def new_tensor() -> Any:
    import torch
    import torch.multiprocessing  # registers how tensors are handed over

    return torch.arange(COUNT)


@pytest.mark.slow
@needs("torch")
def test_tensor(stop_resource_sharer: None) -> None:
    """torch hands its tensors over itself, in memory that both processes have from then on."""
    import torch

    tensor = new_tensor()
    with link_of("shmpipe") as (ours, theirs):
        child = run_child(change, theirs, close=[ours])
        ours.send(tensor)
        assert ours.recv() == "done"
        child.join()
        assert tensor[5] == -1 and torch.equal(tensor[6:], torch.arange(6, COUNT))
        assert objects.dump(tensor)[2] < 4096


def change(connection: Any) -> None:
    tensor = connection.recv()
    tensor[5] = -1  # nothing that would use torch's threads, which a forked process does not have
    del tensor
    connection.send("done")


@pytest.mark.slow
@needs("torch")
def test_tensor_as_an_array() -> None:
    """Through the pipe, as a copy."""
    import torch

    tensor = new_tensor()
    with link_of("shmpipe", False) as (receiver, sender):
        thread = run_thread(sender.send_array, tensor)
        received = torch.from_numpy(receiver.recv_array())
        thread.join()
        assert torch.equal(received, tensor)
        into = torch.zeros_like(tensor)
        thread = run_thread(sender.send_array, tensor.numpy())
        receiver.recv_array(into.numpy())
        thread.join()
        assert torch.equal(into, tensor)
