"""The command line."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

import shmpipe
from shmpipe.commands.table import replace_unprintable

from . import (
    creation,
    crowd,
    importing,
    objects,
    pages,
    performance_page,
    plots,
    report,
    results,
    roundtrip,
    selecting,
    streaming,
)
from .model import Workload
from .peers import Peer, all_peers
from .rounds import Plan, measure

MODULES = [creation, streaming, roundtrip, objects, selecting, crowd, importing]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure shmpipe and its peers, in turns, each in processes of its own.",
        epilog="Groups of workloads: " + ", ".join(module.GROUP for module in MODULES) + ".",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--fast", action="store_true", help="fewer rounds, shorter runs")
    amount.add_argument("--smoke", action="store_true", help="only see that everything works")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="WORKLOAD",
        help="groups, or names as the tables give them in brackets",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        metavar="PEER",
        help="only those whose name contains one of these; shmpipe takes part anyway",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--pyperf", type=Path, metavar="FILE", help="write them as a pyperf suite")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots (matplotlib)")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="DIR",
        help="write the measured parts of DIR/performance.md, and figures and plots beside it",
    )
    parser.add_argument(
        "--load", type=Path, metavar="FILE", help="take the results from there: measure nothing"
    )
    parser.add_argument("--list", action="store_true", help="list workloads and contenders")
    return parser


def _tell(text: str) -> None:
    print(text, flush=True)


def _peers(wanted: list[str] | None) -> tuple[list[Peer], dict[str, str]]:
    """Those who take part, and the reasons of those who do not."""
    taking_part, skipped = [], {}
    words = [word.lower() for word in wanted or ()]
    names = [peer.name for peer in all_peers()]
    for word in words:
        if not any(word in name.lower() for name in names):
            raise SystemExit(f"no peer has {word!r} in its name: there are {', '.join(names)}")
    for peer in all_peers():
        if words and not peer.ours and not any(word in peer.name.lower() for word in words):
            continue
        reason = peer.missing()
        if reason is None:
            taking_part.append(peer)
        else:
            skipped[peer.name] = reason
    return taking_part, skipped


def _selected(only: list[str] | None, peers: list[Peer], plan: Plan) -> list[Workload]:
    everything = [workload for module in MODULES for workload in module.workloads(peers, plan)]
    if not only:
        return everything
    known = {name for workload in everything for name in (workload.group, workload.name)}
    if unknown := set(only) - known:
        raise SystemExit(f"unknown workload: {', '.join(sorted(unknown))}; see --list")
    return [workload for workload in everything if {workload.group, workload.name} & set(only)]


def _check_places(options: argparse.Namespace) -> None:
    """Before anything is measured: what could not be written would be lost."""
    for path in (options.json, options.pyperf, options.markdown):
        if path and not path.resolve().parent.is_dir():
            raise SystemExit(f"cannot write {path}: there is no directory {path.parent}")
    if options.docs and not (options.docs / "performance.md").is_file():
        raise SystemExit(f"--docs {options.docs}: there is no performance.md in it")


def _loaded(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"cannot take results from {path}: {error}") from None
    return document


def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The document, and whether the run came to its end."""
    plan = Plan.smoke() if options.smoke else Plan.fast() if options.fast else Plan()
    peers, skipped = _peers(options.peers)
    for name, reason in skipped.items():
        _tell(f"skipped: {name} ({reason}); pip install '.[bench]' has all peers")
    selected = _selected(options.only, peers, plan)
    _tell(f"shmpipe {shmpipe.__version__}, engine {shmpipe.engine}")
    document = results.begin(plan, peers, skipped)
    try:
        for workload in selected:
            measure(workload, plan, lambda text: print(text, file=sys.stderr, flush=True))
            entry = results.workload_entry(workload)
            document["workloads"].append(entry)
            _tell("\n".join(report.lines(entry)) + "\n")
    except KeyboardInterrupt:
        return document, False
    return document, True


def _write(document: dict[str, Any], options: argparse.Namespace) -> None:
    if options.docs:
        beside = options.docs / "performance"
        beside.mkdir(exist_ok=True)
        options.json = options.json or beside / "measured.json"
        options.plots = options.plots or beside
        page = options.docs / "performance.md"
        text = performance_page.fill(page.read_text(encoding="utf-8"), document)
        page.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(pages.compact(document), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(report.markdown(document), encoding="utf-8")
    for option, write in (
        (options.pyperf, lambda path: results.pyperf_suite(document).dump(str(path), replace=True)),
        (options.plots, lambda path: plots.write(document, path)),
    ):
        if option:
            try:
                write(option)
            except ImportError as error:
                _tell(f"not written: {option} ({error})")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; returns the exit status."""
    replace_unprintable()
    options = _parser().parse_args(arguments)
    if options.list:
        for workload in _selected(options.only, _peers(options.peers)[0], Plan()):
            contenders = ", ".join(contender.name for contender in workload.contenders)
            _tell(f"{workload.group:10} {workload.name:20} {contenders}")
        return 0
    _check_places(options)
    if options.load:
        _write(_loaded(options.load), options)
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    document, complete = _measure(options)
    _write(document, options)
    if not complete:
        _tell("interrupted: what had been measured is all there is")
        return 130
    return 0
