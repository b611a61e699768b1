"""A pool of processes that takes large arrays, with shmpipe under ``ProcessPoolExecutor``.

    python examples/edges.py --size 4000 --workers 2

An image is cut into strips, a pool finds the edges in each (Sobel's filter), and the strips are put
together again.  It is done twice: with the pipes that the executor makes for itself, and under
``shmpipe.installed()``, where it makes shmpipe's.  That is the only line that differs.

What is timed is everything between ``map`` and the last result; much of it is the filter.  With
``--filter copy`` the workers do next to nothing, and what remains is how the arrays travel.

Ctrl-C ends it at once.  If a worker dies the executor says so (BrokenProcessPool), and that is all
that is printed.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

import shmpipe


def sobel(strip):
    """How steep the brightness is at each pixel but those at the rim."""
    rows = strip[:-2] + 2 * strip[1:-1] + strip[2:]
    across = rows[:, 2:] - rows[:, :-2]
    columns = strip[:, :-2] + 2 * strip[:, 1:-1] + strip[:, 2:]
    down = columns[2:] - columns[:-2]
    return np.hypot(across, down)


def copy(strip):
    return strip[1:-1, 1:-1].copy()


FILTERS = {"sobel": sobel, "copy": copy}


def leave_ctrl_c_to_the_parent():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def strips_of(image, count):
    """Strips that overlap by the two rows which the filter needs beside a row."""
    bounds = np.linspace(1, len(image) - 1, count + 1, dtype=int)
    return [
        np.ascontiguousarray(image[first - 1 : last + 1])
        for first, last in itertools.pairwise(bounds)
    ]


def filter_image(image, options, apply):
    """The filtered image, and how many seconds it took once the workers were there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "shmpipe"])
    executor = ProcessPoolExecutor(options.workers, context, leave_ctrl_c_to_the_parent)
    try:
        list(executor.map(time.sleep, [0.1] * options.workers))  # now all workers have started
        start = time.perf_counter()
        strips = list(executor.map(apply, strips_of(image, options.strips)))
        return np.vstack(strips), time.perf_counter() - start
    finally:
        executor.shutdown(cancel_futures=True)


def main():
    parser = argparse.ArgumentParser(description="Find edges in a large image, with a pool.")
    parser.add_argument("--size", type=int, default=3000, help="pixels of a side (default: 3000)")
    parser.add_argument("--strips", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--filter", choices=FILTERS, default="sobel")
    options = parser.parse_args()
    apply = FILTERS[options.filter]
    line = np.linspace(-8, 8, options.size, dtype=np.float32)
    image = np.sin(line[:, None] ** 2 + line**2)  # rings, finer and finer
    expected = apply(image)
    for name, pipes in (
        ("the executor's own pipes", contextlib.nullcontext),
        ("shmpipe.installed()", shmpipe.installed),
    ):
        with pipes():
            found, seconds = filter_image(image, options, apply)
        if not np.array_equal(found, expected):
            sys.exit(f"{name}: wrong")
        moved = (image.nbytes + found.nbytes) / 2**20
        print(f"{name}: {seconds:.2f} s, {moved / seconds:.0f} MiB/s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenProcessPool as error:
        sys.exit(str(error))
