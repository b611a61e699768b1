"""Searches the schedules of the scenarios.

tools/explore                        each scenario, with few pre-emptions
tools/explore --full                 each as far as its limits say, and 5,000 schedules go
tools/explore --full --json FILE     the same; what was found is stored in FILE as it is found (with
                                     --scenario NAME only that part of it is replaced)
tools/explore --table FILE PAGE      puts the table of such a file into a page
tools/explore --scenario NAME        one of them (with --preemptions N, or "all")
tools/explore --scenario NAME --replay SCHEDULE
                                     one schedule, as a readable interleaving
tools/explore --mutants [NAME ...]   look for a search that catches each mutant
tools/explore --check-mutants        each mutant once more, with the search known to catch it
tools/explore --list                 names of scenarios and mutants
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from . import hunting, results
from .mutants import applied, mutants
from .search import Result, replay
from .telling import Teller


def report(name: str, bound: int | None, result: Result, seconds: float) -> bool:
    how = "all" if bound is None else f"{bound} pre-emptions"
    extent = "" if result.complete else "  (not to the end)"
    print(f"{name:28} {how:15} {result.schedules:8} schedules {seconds:7.1f} s{extent}", flush=True)
    if result.failure is not None:
        print(f"    {result.failure}\n    --scenario {name} --replay '{result.schedule}'")
    return result.failure is None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/explore",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, nargs=2, metavar=("FILE", "PAGE"))
    parser.add_argument("--scenario", choices=sorted(hunting.SCENARIOS), metavar="NAME")
    parser.add_argument("--preemptions", metavar="N")
    parser.add_argument("--most", type=int, help="schedules of a scenario", metavar="N")
    parser.add_argument("--replay", metavar="SCHEDULE")
    parser.add_argument("--mutant", metavar="NAME", help="with one of the steps changed")
    parser.add_argument("--mutants", nargs="*", metavar="NAME")
    parser.add_argument("--check-mutants", action="store_true")
    parser.add_argument("--seconds", type=float, default=120, help="for each mutant")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join([*hunting.SCENARIOS, "", *map(repr, mutants())]))
        return 0
    if options.table is not None:
        results.put_table(*options.table)
        return 0
    if options.mutants is not None:
        return hunt_all(options.mutants, options.seconds)
    if options.check_mutants:
        return check_all()
    with contextlib.ExitStack() as stack:
        if options.mutant:
            chosen = next(mutant for mutant in mutants() if mutant.name == options.mutant)
            stack.enter_context(applied(chosen))
        if options.replay is not None:
            if options.scenario is None:
                parser.error("--replay needs --scenario")
            return show(options.scenario, options.replay)
        return explore_in_full(options) if options.full else explore(options)


def explore(options: argparse.Namespace) -> int:
    names = [options.scenario] if options.scenario else list(hunting.SCENARIOS)
    good = True
    for name in names:
        scenario = hunting.SCENARIOS[name]
        bound = scenario.limits.preemptions if options.scenario else scenario.fast
        if options.preemptions is not None:
            bound = None if options.preemptions == "all" else int(options.preemptions)
        start = time.monotonic()
        most = options.most
        if most is None and not options.scenario:
            most = hunting.FAST_MOST
        result = hunting.search(scenario, bound, most)
        good &= report(name, bound, result, time.monotonic() - start)
    return 0 if good else 1


def explore_in_full(options: argparse.Namespace) -> int:
    most = options.most or results.FULL_MOST
    record = results.Record(options.json, options.scenario)
    for name in [options.scenario] if options.scenario else list(hunting.SCENARIOS):
        record.add(name, results.in_full(hunting.SCENARIOS[name], most, report))
    return int(record.failed)


def show(name: str, schedule: str) -> int:
    teller = Teller()
    failure = replay(hunting.SCENARIOS[name], schedule, teller)
    print("\n".join(teller.lines))
    print(f"\n{failure or 'nothing fails'}")
    return 1 if failure else 0


def hunt_all(names: list[str], seconds: float) -> int:
    found = hunting.caught()
    everyone = mutants()
    found = {name: how for name, how in found.items() if name in {m.name for m in everyone}}
    missed = []
    for mutant in everyone:
        if names and mutant.name not in names:
            continue
        start = time.monotonic()
        result = hunting.hunt(mutant, seconds)
        if result is None:
            missed.append(mutant.name)
            print(f"{mutant}: NOT CAUGHT in {time.monotonic() - start:.0f} s", flush=True)
        else:
            scenario, bound, how = result
            found[mutant.name] = scenario, bound, how.schedules
            text = f"{mutant}: {scenario}, {bound} pre-emptions, {how.schedules} schedules"
            print(f"{text}: {how.failure}", flush=True)
        hunting.write_caught(found)
    print(f"{len(found)} caught, not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def check_all() -> int:
    missed = []
    for mutant, how in hunting.known(mutants()):
        if how is None or hunting.fails_with(mutant, how).failure is None:
            missed.append(mutant.name)
            print(f"{mutant}: NOT CAUGHT", flush=True)
    print(f"{len(mutants())} mutants, not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
