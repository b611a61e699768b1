"""A progress bar that is fed by workers: checksums of all files below some directories.

    python examples/checksums.py /usr/lib/python3 --workers 4 > sums

The sums go to stdout as ``sha256sum`` prints them, the bar to stderr if that is a terminal.

Each worker has a connection, on which it is given a path at a time and tells how far it has come.
Such a report is not worth waiting for: sent with ``timeout=0``, it is dropped if nobody has looked
for long.  Because a worker's end is in no other process, its death shows as end of file, and what
it had in hand is known: that file is reported as failed, the other workers do the rest.

Ctrl-C ends it.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
from multiprocessing.connection import wait
from typing import Any

import shmpipe

PIECE = 1 << 20  # bytes
INTERVAL = 0.1  # seconds between two reports of a worker, and between two looks of the bar


def checksum(path, report):
    digest, done, due = hashlib.sha256(), 0, time.monotonic() + INTERVAL
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            done += len(piece)
            if time.monotonic() >= due:
                due += INTERVAL
                report(done)
    return digest.hexdigest(), done


def work(connection):
    """Receives paths; sends ("so far", bytes), ("sum", (text, bytes)) and ("error", exception)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(done):
        with contextlib.suppress(TimeoutError):
            connection.send(("so far", done), timeout=0)

    with contextlib.suppress(BrokenPipeError):
        for path in connection:  # until end of file
            try:
                connection.send(("sum", checksum(path, report)))
            except OSError as error:
                if isinstance(error, BrokenPipeError):
                    raise
                connection.send(("error", error))


class Bar:
    """How many bytes of all have been read."""

    def __init__(self, total):
        self.total = max(total, 1)
        self.shown = sys.stderr.isatty()
        self.start = time.monotonic()

    def draw(self, done):
        if not self.shown:
            return
        width = max(shutil.get_terminal_size().columns - 30, 10)
        part = min(done / self.total, 1)
        rate = done / max(time.monotonic() - self.start, 1e-9) / 2**20
        filled = "#" * int(part * width)
        print(f"\r{part:4.0%} [{filled:<{width}}] {rate:7.0f} MiB/s", end="", file=sys.stderr)
        sys.stderr.flush()

    def clear(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def start_workers(count):
    """The processes, by their connections."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shmpipe"])
    workers = {}
    for _ in range(count):
        ours, theirs = shmpipe.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # now only the worker has it
        workers[ours] = process
    return workers


def check_all(paths, workers, bar):
    """Print the checksums; how many could not be made."""
    todo = iter(paths)
    in_hand = {}  # path, by connection
    so_far = {}  # bytes of the file in hand, by connection
    finished = failed = 0

    def give(connection):
        path = next(todo, None)
        if path is None:
            connection.close()  # which ends the worker
            return
        in_hand[connection] = path
        with contextlib.suppress(BrokenPipeError):  # that it has died we shall see as end of file
            connection.send(path)

    def fail(path, why):
        nonlocal failed
        failed += 1
        bar.clear()
        print(f"{path}: {why}", file=sys.stderr)

    for connection in workers:
        give(connection)
    while in_hand:
        ready: list[Any] = wait(in_hand, INTERVAL)
        for connection in ready:
            try:
                messages = connection.recv_many()
            except EOFError:
                fail(in_hand.pop(connection), f"process {workers[connection].pid} has died")
                connection.close()
                continue
            for what, value in messages:
                if what == "so far":
                    so_far[connection] = value
                    continue
                so_far.pop(connection, None)
                path = in_hand.pop(connection)
                if what == "sum":
                    bar.clear()
                    print(f"{value[0]}  {path}", flush=True)
                    finished += value[1]
                else:
                    fail(path, value)
                give(connection)
        bar.draw(finished + sum(so_far.values()))
    bar.clear()
    for path in todo:  # only if no worker is left
        fail(path, "no worker is left")
    return failed


def files_below(top):
    if not os.path.isdir(top):
        yield top
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                yield path


def size_of(path):
    try:
        return os.path.getsize(path)
    except OSError:  # the worker will say why
        return 0


def main():
    parser = argparse.ArgumentParser(description="Checksums of files, by several processes.")
    parser.add_argument("paths", nargs="*", default=["."], help="default: .")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    paths = [path for top in options.paths for path in files_below(top)]
    bar = Bar(sum(map(size_of, paths)))
    workers = start_workers(options.workers)
    failed = check_all(paths, workers, bar)
    for process in workers.values():
        process.join()
    sys.exit(f"{failed} of {len(paths)} files failed" if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
