"""A log file through a chain of three processes, as ``cat LOG | grep PATTERN | sort | uniq -c``.

    python examples/logfilter.py access.log --pattern '" 5[0-9][0-9] ' --top 5

One process reads the file, the second keeps the lines that match, and the third counts them by
their first word, here the address of whoever made the request.  Between them are two ``pipe()``s,
which carry bytes and have the semantics of the kernel's.  Without a file, one is made up.

The pipes' write size is half of their size: a writer that has filled its pipe sleeps until half of
it is free, instead of waking up for every page.  At the end you see how often anybody slept.

With ``--first N`` the counting ends early.  Then the others get BrokenPipeError, as programs in a
shell's pipeline get SIGPIPE, and leave.  If one of the three dies, the result is not shown, for
it would be wrong: as a shell does with ``set -o pipefail``.  Ctrl-C ends all of them.
"""

import argparse
import collections
import contextlib
import io
import itertools
import multiprocessing
import os
import random
import re
import sys
import tempfile
from multiprocessing.connection import wait
from typing import Any

import shmpipe

SIZE = 1 << 20  # bytes, of each pipe and of the buffers at its ends


def read_file(path, target):
    with open(path, "rb", buffering=0) as file, target:
        while piece := file.read(SIZE):
            target.write(piece)


def keep_matching(source, target, pattern):
    matches = re.compile(pattern.encode()).search
    # Both ends are raw files, like those of open(..., buffering=0): for lines, buffer them.
    with io.BufferedReader(source, SIZE) as lines, io.BufferedWriter(target, SIZE) as out:
        out.writelines(filter(matches, lines))


def count_addresses(source, first, result):
    with io.BufferedReader(source, SIZE) as lines:
        counts = collections.Counter(
            line.split(b" ", 1)[0].decode() for line in itertools.islice(lines, first)
        )
        stats = source.stats()
    result.send((counts, stats))


def stage(work, *arguments):
    """Run a part of the chain; an early end of the part behind it, or Ctrl-C, is no error."""
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        work(*arguments)


def make_up_log(path, lines):
    choose = random.Random(1)
    with open(path, "w") as file:
        for number in range(lines):
            address = f"10.0.{choose.randrange(4)}.{choose.randrange(1, 20)}"
            status = choose.choices((200, 304, 404, 500, 503), (80, 10, 6, 3, 1))[0]
            size = choose.randrange(200, 50_000)
            file.write(
                f"{address} - - [30/Nov/2026:{number // 3600 % 24:02}:{number // 60 % 60:02}:"
                f'{number % 60:02} +0000] "GET /page/{choose.randrange(500)} HTTP/1.1" '
                f"{status} {size}\n"
            )


def run(path, options):
    """The counts, and what the second pipe has counted; None: a part of the chain has died."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shmpipe"])
    from_file, to_grep = shmpipe.pipe(SIZE, write_size=SIZE // 2)
    from_grep, to_count = shmpipe.pipe(SIZE, write_size=SIZE // 2)
    result, result_end = shmpipe.Pipe(duplex=False)
    parts = [
        (read_file, path, to_grep),
        (keep_matching, from_file, to_count, options.pattern),
        (count_addresses, from_grep, options.first, result_end),
    ]
    children = [context.Process(target=stage, args=part, daemon=True) for part in parts]
    for child in children:
        child.start()
    # Only the children hold the ends now, so each sees when its neighbours have gone.
    for end in (from_file, to_grep, from_grep, to_count, result_end):
        end.close()
    found = None
    waiting: dict[Any, Any] = {result: None, **{child.sentinel: child for child in children}}
    while waiting:
        for ready in wait(list(waiting)):
            child = waiting.pop(ready)
            if child is None:
                with contextlib.suppress(EOFError):  # it has died, as its sentinel will tell
                    found = result.recv()
            else:
                child.join()
                if child.exitcode:
                    return None  # the others are daemons: they end with this process
    return found


def main():
    parser = argparse.ArgumentParser(description="Who makes most of the requests that match?")
    parser.add_argument("log", nargs="?", help="default: one that is made up")
    parser.add_argument("--pattern", default='" 5[0-9][0-9] ', help="default: errors of the server")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--first", type=int, help="look at so many matching lines only")
    parser.add_argument("--lines", type=int, default=200_000, help="of the log that is made up")
    options = parser.parse_args()
    try:
        re.compile(options.pattern)
    except re.error as error:
        parser.error(f"--pattern {options.pattern}: {error}")
    with tempfile.TemporaryDirectory() as directory:
        path = options.log
        if path is None:
            path = os.path.join(directory, "access.log")
            make_up_log(path, options.lines)
        elif not os.path.exists(path) or os.path.isdir(path):
            parser.error(f"there is no file {path}")
        found = run(path, options)
    if found is None:
        sys.exit("a part of the chain has died: there is no result")
    counts, stats = found
    for address, count in counts.most_common(options.top):
        print(f"{count:8} {address}")
    print(f"{sum(counts.values()):8} matching lines")
    print(f"{stats.bytes_written:8} bytes through the second pipe, whose writer", end=" ")
    print(f"slept {stats.writer_sleeps} times, and its reader {stats.reader_sleeps} times")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
