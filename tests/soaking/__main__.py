"""A random mix of everything that pipes are used for, on real processes, for as long as one likes.

tools/soak                        one minute on each engine
tools/soak --minutes 60           so many on each
tools/soak --seed 7 --round 31    one round again: the same decisions, if not the same interleaving
tools/soak --processes 50         rounds of so many processes, however few cores there are
tools/soak --kind stream          only rounds of a kind: bytes, objects, records, stream

Senders, receivers, writers and readers make all calls in random order, with random sizes (up to
three times the ring), time limits and settings, while they are killed, stopped, interrupted by
signals, forked, and handed over.  Every message has a number and a checksum.  Printed are the
figures, as JSON; a failure is told with its seed, and with all stacks of all processes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import multiprocessing.util
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import shmpipe
from tests.figures import added, stamp
from tests.watchdog import descendants, describe

from .director import LIMIT, Failure, Round
from .ledger import Ledger
from .plans import KINDS, Plan, plan
from .processes import adopt_orphans


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None, help="at most")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a call may take")
    parser.add_argument("--spoil", default="", help="put in a fault, undisturbed")
    parser.add_argument("--store", type=Path, metavar="FILE", help="add the figures to a file")
    parser.add_argument("--quiet", action="store_true", help="no line for each round")
    options = parser.parse_args()
    adopt_orphans()
    multiprocessing.util.get_temp_dir()  # one for all: those who are killed remove nothing
    factor = float(os.environ.get("SHMPIPE_TEST_TIMEOUT_FACTOR", "1"))
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    say(f"engine {shmpipe.engine}, --seed {seed}")
    figures: Counter[str] = Counter()
    ledger = Ledger()
    start = time.monotonic()
    number = options.round or 0
    status = 0
    while True:
        made = plan(seed, number, options.processes, tuple(options.kind or KINDS))
        if options.spoil:
            made = undisturbed(made, options.spoil)
        if not options.quiet:
            say(f"round {made.describe()}")
        # For a director that is stuck itself.
        faulthandler.dump_traceback_later(made.seconds + 4 * LIMIT * factor, exit=True)
        current = Round(made, ledger, figures, options.limit * factor)
        try:
            current.run()
        except Failure as failure:
            status = 1
            say(f"\n==== {failure}\n==== in round {made.describe()}")
            say(f"==== again: --seed {seed} --round {number}")
            break
        finally:
            end_all(status != 0)
        number += 1
        seconds = time.monotonic() - start
        done = options.rounds is not None and number >= options.rounds
        if done or options.round is not None or seconds >= options.minutes * 60:
            break
    figures["seconds"] = round(time.monotonic() - start)
    print(json.dumps({"engine": shmpipe.engine, "seed": seed, **dict(sorted(figures.items()))}))
    if options.store and not status:
        store(options.store, figures)
    return status


def store(path: Path, figures: Counter[str]) -> None:
    """Add the figures of a run to those of earlier ones."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    added(stored, shmpipe.engine, figures, stamp())
    path.write_text(json.dumps(stored, indent=1) + "\n")


def undisturbed(made: Plan, fault: str) -> Plan:
    """A round in which nothing but the fault can explain what is found."""
    quiet: dict[str, Any] = {"gap": 1e9, "signals": 0.0, "duplex": False, "ending": "finish"}
    hosts = [[role] for role in range(made.senders + made.receivers)]
    quiet |= {"hosts": hosts, "methods": ["fork"] * len(hosts), "starved": [False] * len(hosts)}
    return replace(made, spoil=fault, **quiet)


def end_all(with_stacks: bool) -> None:
    """End what is left of a round that has failed (of others, nothing is left)."""
    faulthandler.cancel_dump_traceback_later()
    keep = lasting()
    left = [pid for pid in descendants(os.getpid()) if pid not in keep]
    if with_stacks:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
            describe(pid)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def lasting() -> set[int]:
    """Processes of multiprocessing's own, which stay."""
    from multiprocessing import forkserver, resource_tracker

    return {
        getattr(resource_tracker._resource_tracker, "_pid", None) or 0,
        getattr(forkserver._forkserver, "_forkserver_pid", None) or 0,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
