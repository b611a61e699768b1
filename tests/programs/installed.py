"""Queues, pools and executors on our pipes: ``python installed.py METHOD SCENARIO``.

A program of its own, because what it leaves behind at its end is of interest as well. It prints
"done" if all went well, and nothing else.
"""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import shmpipe

LARGE = 3_000_001  # bytes: more than the pipe holds


def make_arrays() -> list[Any]:
    rows = np.arange(700_000, dtype=np.float64).reshape(1000, 700)
    return [rows, np.asfortranarray(rows), rows[::2, ::3], np.zeros((0, 3)), np.array(["a", "bc"])]


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return type(one) is type(other) and one == other
    return (
        isinstance(other, np.ndarray)
        and one.dtype == other.dtype
        and one.shape == other.shape
        and other.flags.writeable
        and bool(np.array_equal(one, other))
    )


def make_objects() -> list[Any]:
    return [1, "text", None, {"key": (1, 2)}, bytes(LARGE), bytearray(LARGE), *make_arrays()]


def ours(*ends: Any) -> bool:
    return all(type(end) is shmpipe.Connection for end in ends)


def patched_here() -> bool:
    return multiprocessing.Pipe is shmpipe.Pipe


def echo(inward: Any, outward: Any) -> None:
    """Runs in a child: sends back what it gets, until None."""
    outward.put((patched_here(), ours(inward._reader, outward._writer)))
    while (obj := inward.get()) is not None:
        outward.put(obj[0])


def through_queues(context: Any, inward: Any, outward: Any) -> None:
    assert ours(inward._reader, inward._writer, outward._reader, outward._writer)
    process = context.Process(target=echo, args=(inward, outward))
    process.start()
    assert outward.get() == (context.get_start_method() == "fork", True)
    for obj in make_objects():
        inward.put([obj])
        assert same(obj, outward.get()), obj
    inward.put(None)
    process.join()
    assert process.exitcode == 0
    process.close()


def use_queue(context: Any) -> None:
    with_limit, plain = context.Queue(3), context.Queue()
    through_queues(context, with_limit, plain)
    for number in range(3):
        with_limit.put(number)
    try:
        with_limit.put(3, timeout=0.05)
    except queue.Full:
        pass
    else:
        raise AssertionError("took a fourth object")
    assert [with_limit.get() for _ in range(3)] == [0, 1, 2]
    try:
        with_limit.get(timeout=0.05)
    except queue.Empty:
        pass
    else:
        raise AssertionError("had a fourth object")
    # Both sides at once: more than all the pipes hold is under way.
    for number in range(20):
        plain.put(np.full(LARGE, number, np.uint8))
    for number in range(20):
        assert same(np.full(LARGE, number, np.uint8), plain.get())
    for each in (with_limit, plain):
        assert each.empty()
        each.close()
        each.join_thread()


def use_simple_queue(context: Any) -> None:
    inward, outward = context.SimpleQueue(), context.SimpleQueue()
    through_queues(context, inward, outward)
    assert inward.empty() and outward.empty()
    inward.close()
    outward.close()


def work_off(tasks: Any, results: Any) -> None:
    while (task := tasks.get()) is not None:
        results.put(task.sum())
        tasks.task_done()
    tasks.task_done()


def use_joinable_queue(context: Any) -> None:
    tasks, results = context.JoinableQueue(), context.Queue()
    assert ours(tasks._reader, tasks._writer)
    processes = [context.Process(target=work_off, args=(tasks, results)) for _ in range(2)]
    for process in processes:
        process.start()
    for number in range(40):
        tasks.put(np.full(50_000, number))
    tasks.join()
    for _ in processes:
        tasks.put(None)
    tasks.join()
    assert sorted(results.get() for _ in range(40)) == [50_000 * number for number in range(40)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    for each in (tasks, results):
        each.close()
        each.join_thread()


def double(array: Any) -> Any:
    return array * 2


def large(size: int) -> bytes:
    return bytes(size)


def fail(text: str) -> None:
    raise ValueError(text)


def use_pool(context: Any) -> None:
    arrays = make_arrays()[:4]
    with context.Pool(2) as pool:
        assert ours(pool._inqueue._reader, pool._inqueue._writer)
        assert ours(pool._outqueue._reader, pool._outqueue._writer)
        for array, doubled in zip(arrays, pool.map(double, arrays), strict=True):
            assert same(array * 2, doubled)
        sizes = [LARGE, 0, 10, 2 * LARGE, 70_000]
        assert [len(result) for result in pool.imap(large, sizes)] == sizes
        unordered = pool.imap_unordered(large, range(300))
        assert sorted(len(result) for result in unordered) == list(range(300))
        assert pool.apply(large, (LARGE,)) == bytes(LARGE)
        failures: list[BaseException] = []
        pool.apply_async(fail, ("as asked",), error_callback=failures.append).wait()
        assert [(type(error), error.args) for error in failures] == [(ValueError, ("as asked",))]
        pool.close()
        pool.join()
    with context.Pool(2) as pool:  # and one that is ended while it works
        pool.map_async(large, [LARGE] * 50)
    pool.join()


def use_executor(context: Any) -> None:
    arrays = make_arrays()[:4]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        futures = [executor.submit(double, array) for array in arrays]
        # These are only there once something was submitted.
        assert ours(executor._call_queue._reader, executor._result_queue._reader)
        assert ours(executor._executor_manager_thread_wakeup._reader)
        for array, future in zip(arrays, futures, strict=True):
            assert same(array * 2, future.result())
        sizes = [LARGE, 0, 10, 2 * LARGE, 70_000]
        assert [len(result) for result in executor.map(large, sizes)] == sizes
        numbers = list(range(300))
        assert [len(result) for result in executor.map(large, numbers, chunksize=7)] == numbers
        assert isinstance(executor.submit(fail, "as asked").exception(), ValueError)
        broken = executor.submit(os._exit, 3)
        try:
            broken.result()
        except concurrent.futures.process.BrokenProcessPool:
            pass
        else:
            raise AssertionError("the executor outlived its worker")


SCENARIOS: dict[str, Callable[[Any], None]] = {
    "Queue": use_queue,
    "SimpleQueue": use_simple_queue,
    "JoinableQueue": use_joinable_queue,
    "Pool": use_pool,
    "ProcessPoolExecutor": use_executor,
}


def descriptors() -> dict[str, str]:
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing itself
            pass
    return found


def main() -> None:
    method, scenario = sys.argv[1:]
    context = multiprocessing.get_context(method)
    standard = multiprocessing.Pipe
    with shmpipe.installed():
        # The first time starts what then stays, such as the fork server.
        SCENARIOS[scenario](context)
        before = descriptors()
        SCENARIOS[scenario](context)
        assert descriptors() == before
    assert multiprocessing.Pipe is standard
    assert multiprocessing.active_children() == []
    print("done")


if __name__ == "__main__":
    main()
