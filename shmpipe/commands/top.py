"""Shows the pipes of one's own running processes, or of those whose ids are given.

They are found through /proc and read from their segments, without a lock and without the right to
write, so nobody notices. First one line for each direction, with counts since the pipe was made:

  FILL       how much of it is in use
  IN/S       bytes written per second, OUT/S bytes read, since the last look
  SLEEPS     how often readers/writers went to sleep, WAKES how often they were woken
  WITHHELD   reads that freed space while a writer waited, but that the wake policy passed over

Then who holds which end. DEAD are processes that were killed while they used the pipe; with an
exclamation mark if one may have had a lock, which the next process that wants it takes over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .options import terminated
from .segments import Direction, Holder, Pipe, look

HELP = "live table of the shared-memory pipes of running processes"

COUNTS = (
    *("PIPE", "SIZE", "WSIZE", "POLICY", "FILL", "IN/S", "OUT/S"),
    *("SLEEPS", "WAKES", "WITHHELD"),
)
NUMBERS = (1, 2, 4, 5, 6, 7, 8, 9)  # the columns that are set flush right
HOLDERS = ("PIPE", "READERS", "WRITERS", "DEAD")

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, BELOW = "\x1b[H", "\x1b[K\n", "\x1b[J"


def seconds_of(text: str) -> float:
    """0 to an hour."""
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError("0 to 3600 seconds")
    return value


def process_id(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("not a process id")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("pid", type=process_id, nargs="*", help="processes (default: all of this user)")
    add("--once", action="store_true", help="look, print, leave")
    add(
        "--interval",
        type=seconds_of,
        default=1.0,
        metavar="SECONDS",
        help="between two looks; with --once, 0 means one look and no rates (default: 1)",
    )
    add("--json", action="store_true", help="a JSON document per look, one line each")


class Rates:
    """What has been counted since the look before, per second."""

    def __init__(self) -> None:
        self._time = 0.0
        self._counts: dict[tuple[int, int], dict[str, int]] = {}

    def next(self, pipes: Sequence[Pipe], now: float) -> list[list[dict[str, float] | None]]:
        """For each direction of each pipe; None for one that was not there before."""
        passed = now - self._time
        before, self._counts, self._time = self._counts, {}, now
        rates = []
        for pipe in pipes:
            of_pipe: list[dict[str, float] | None] = []
            for ring, direction in enumerate(pipe.directions):
                key = (pipe.inode, ring)
                self._counts[key] = direction.counts
                old = before.get(key)
                of_pipe.append(
                    {
                        name: max(0, value - old[name]) / passed
                        for name, value in direction.counts.items()
                    }
                    if old and passed > 0
                    else None
                )
            rates.append(of_pipe)
        return rates


def amount(number: float, unit: int = 1024) -> str:
    """At most four characters: ``4.2M``; with a `unit` of 1000 for what is not bytes."""
    for suffix in ("", "k" if unit == 1000 else "K", "M", "G", "T", "P"):
        if number < 999.5:
            return f"{number:.1f}{suffix}" if suffix and number < 9.95 else f"{number:.0f}{suffix}"
        number /= unit
    return "huge"


def _name(pipe: Pipe, ring: int) -> str:
    return f"{pipe.inode}" if len(pipe.directions) == 1 else f"{pipe.inode}/{ring}"


def _counts(pipe: Pipe, ring: int, rates: dict[str, float] | None) -> list[str]:
    direction: Direction = pipe.directions[ring]
    counts = {name: amount(count, 1000) for name, count in direction.counts.items()}
    return [
        _name(pipe, ring),
        amount(direction.size),
        amount(direction.write_size),
        direction.policy,
        f"{direction.used / direction.size:.0%}",
        amount(rates["bytes_written"]) if rates else "-",
        amount(rates["bytes_read"]) if rates else "-",
        f"{counts['reader_sleeps']}/{counts['writer_sleeps']}",
        f"{counts['reader_wakes']}/{counts['writer_wakes']}",
        counts["writer_wakes_withheld"],
    ]


def _holders(pipe: Pipe, ring: int) -> list[str]:
    readers = [holder for holder in pipe.holders if holder.reads[ring]]
    writers = [holder for holder in pipe.holders if holder.writes[ring]]
    dead = [f"{one.pid}{'!' if one.locks else ''}" for one in pipe.dead]
    return [
        _name(pipe, ring),
        *(_processes(some) if some else "-" for some in (readers, writers)),
        ",".join(dead) or "-",
    ]


def _processes(holders: Sequence[Holder]) -> str:
    """``python 12,13 sh 5``: the ids by name."""
    names: dict[str, list[str]] = {}
    for holder in holders:
        names.setdefault(holder.command, []).append(str(holder.pid))
    return " ".join(f"{name} {','.join(pids)}" for name, pids in names.items())


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        fields = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(fields).rstrip())
    return lines


def render(
    pipes: Sequence[Pipe], rates: Sequence[Sequence[dict[str, float] | None]], columns: int
) -> list[str]:
    """Both tables, no line longer than `columns`."""
    counts, holders = [list(COUNTS)], [list(HOLDERS)]
    for pipe, of_pipe in zip(pipes, rates, strict=True):
        for ring in range(len(pipe.directions)):
            counts.append(_counts(pipe, ring, of_pipe[ring]))
            holders.append(_holders(pipe, ring))
    lines = [*_aligned(counts, NUMBERS), "", *_aligned(holders)]
    if not pipes:
        lines = ["no pipes found"]
    return _cut(lines, columns)


def _cut(lines: Sequence[str], columns: int) -> list[str]:
    return [line if len(line) <= columns else line[: columns - 1] + "…" for line in lines]


def screen(
    pipes: Sequence[Pipe],
    rates: Sequence[Sequence[dict[str, float] | None]],
    columns: int,
    height: int,
) -> list[str]:
    """Both tables in at most `height` lines: the first pipes in both, and how many there are more.

    Of those that are shown everything is shown, who has died above all.
    """
    lines = render(pipes, rates, columns)
    if len(lines) <= height:
        return lines
    room = height - 5  # two lines of heads, the note, an empty line before each of the last two
    shown = 0
    for pipe in pipes:
        room -= 2 * len(pipe.directions)
        if room < 0:
            break
        shown += 1
    more = f"{len(pipes) - shown} more pipes (--once shows all)"
    above = [*render(pipes[:shown], rates[:shown], columns), ""] if shown else []
    return [*above, *_cut([more], columns)]


def document(
    pipes: Sequence[Pipe], rates: Sequence[Sequence[dict[str, float] | None]]
) -> dict[str, Any]:
    """One look for JSON."""
    found = []
    for pipe, of_pipe in zip(pipes, rates, strict=True):
        entry = asdict(pipe)
        for direction, rate in zip(entry["directions"], of_pipe, strict=True):
            direction["per_second"] = rate
        found.append(entry)
    return {"time": time.time(), "pipes": found}


def run(args: argparse.Namespace) -> int:
    """Look and show, again and again unless --once; 1 if a process cannot be looked at."""
    live = sys.stdout.isatty() and not args.once and not args.json
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, terminated)
    try:
        if live:
            sys.stdout.write(ENTER)
        _looks(args, live)
    except (ProcessLookupError, PermissionError) as error:
        failure = error
    except KeyboardInterrupt:
        if args.once:
            raise
        return 0
    else:
        return 0
    finally:
        if live:
            with contextlib.suppress(OSError):  # a terminal that has hung up is gone
                sys.stdout.write(LEAVE)
                sys.stdout.flush()
    print(f"shmpipe top: {failure}", file=sys.stderr)
    return 1


def _looks(args: argparse.Namespace, live: bool) -> None:
    rates = Rates()
    pids = frozenset(args.pid)
    if args.once and args.interval:
        rates.next(look(pids), time.monotonic())
        time.sleep(args.interval)
    while True:
        pipes = look(pids)
        shown = rates.next(pipes, time.monotonic())
        if args.json:
            print(json.dumps(document(pipes, shown)), flush=True)
        elif live:
            size = shutil.get_terminal_size()
            lines = screen(pipes, shown, size.columns, size.lines - 1)
            sys.stdout.write(HOME + "".join(line + END_OF_LINE for line in lines) + BELOW)
            sys.stdout.flush()
        else:
            # A file or another program takes lines of any length.
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16
            print("\n".join(render(pipes, shown, columns)), flush=True)
        if args.once:
            return
        time.sleep(max(args.interval, 0.05))
