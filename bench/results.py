"""A run as one document: what the JSON file holds, the tables and the plots are made from."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import shmpipe

from .model import Contender, Sample, Workload, percentile
from .peers import Peer
from .rounds import Plan

FORMAT = 1
PERCENTILES = (50.0, 99.0, 99.9)
# For the plot: denser and denser towards the end, where the distribution is interesting.
CURVE = [
    *range(0, 90, 2),
    *(90 + step / 5 for step in range(45)),
    *(99 + step / 50 for step in range(45)),
    *(99.9 + step / 500 for step in range(46)),
]


def _machine() -> dict[str, Any]:
    """pyperf's metadata if it is installed, else the little that the standard library knows."""
    try:
        import pyperf
    except ImportError:
        return {
            "cpu_machine": platform.machine(),
            "platform": platform.platform(),
            "python_version": platform.python_version(),
        }
    metadata = pyperf.Run([1.0], collect_metadata=True).get_metadata()
    # Not what changes while nothing does, nor names and paths that are nobody's business.
    kept = (
        *("cpu_model_name", "cpu_count", "cpu_freq", "cpu_config", "cpu_affinity", "aslr"),
        *("platform", "load_avg_1min", "timer"),
        *("python_version", "python_implementation", "python_compiler"),
    )
    return {name: metadata[name] for name in kept if name in metadata}


def _versions(peers: Iterable[Peer]) -> dict[str, str]:
    found = {"shmpipe": shmpipe.__version__, "python": platform.python_version()}
    for name in ["numpy", "pyperf", *(peer.distribution for peer in peers)]:
        if name is not None:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                pass
    return found


def begin(plan: Plan, peers: Iterable[Peer], skipped: dict[str, str]) -> dict[str, Any]:
    """The document of a run that has no results yet."""
    return {
        "format": FORMAT,
        "engine": getattr(shmpipe, "engine", "pure"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "plan": asdict(plan),
        "versions": _versions(peers),
        "machine": _machine(),
        "skipped": skipped,
        "workloads": [],
    }


def workload_entry(workload: Workload) -> dict[str, Any]:
    """What was measured of one workload."""
    subject = workload.contender(workload.subject)
    return {
        "name": workload.name,
        "group": workload.group,
        "title": workload.title,
        "unit": workload.unit,
        "size": workload.size,
        "subject": workload.subject,
        "per": workload.per,
        "contenders": [
            _contender_entry(workload, contender, subject) for contender in workload.contenders
        ],
    }


def _amount(workload: Workload, sample: Sample) -> float:
    """What CPU seconds and context switches are divided by."""
    if workload.per == "GB":
        return sample.bytes / 1e9
    return sample.count / 1e6 if workload.per == "million" else sample.count


def _contender_entry(
    workload: Workload, contender: Contender, subject: Contender | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": contender.name}
    if contender.failure is not None:
        entry["failure"] = contender.failure
    if not contender.measured:
        return entry
    entry["median"] = {
        "rate": contender.median(lambda sample: sample.rate),
        "seconds_each": contender.median(lambda sample: sample.seconds / sample.count),
        "bytes_per_second": contender.median(lambda sample: sample.bytes / sample.seconds),
        "cpu_seconds_per": contender.median(lambda sample: sample.cpu / _amount(workload, sample)),
        "switches_per": contender.median(
            lambda sample: sample.switches / _amount(workload, sample)
        ),
    }
    if subject is not None and subject is not contender:
        entry["subject_is_times_faster"] = subject.times_faster_than(contender)
    entry["rounds"] = [
        sample
        and {
            "count": sample.count,
            "seconds": sample.seconds,
            "cpu_seconds": sample.cpu,
            "switches": sample.switches,
        }
        for sample in contender.samples
    ]
    if contender.measured[0].latencies is not None:
        entry["latency"] = _latency(contender.measured)
    return entry


def _latency(samples: list[Sample]) -> dict[str, Any]:
    """Medians over the rounds, so that one disturbed round does not decide; the curve is of all."""
    by_round = [sorted(sample.latencies or ()) for sample in samples]
    everything = sorted(value for latencies in by_round for value in latencies)
    found: dict[str, Any] = {
        "mean": statistics.median(statistics.fmean(latencies) for latencies in by_round)
    }
    for percent in PERCENTILES:
        found[f"p{percent:g}"] = statistics.median(
            percentile(latencies, percent) for latencies in by_round
        )
    found["curve"] = [[percent, percentile(everything, percent)] for percent in CURVE]
    return found


def pyperf_suite(document: dict[str, Any]) -> Any:
    """Seconds for each message, round trip, pipe or import, as pyperf keeps and compares them."""
    import pyperf

    benchmarks = []
    for workload in document["workloads"]:
        for contender in workload["contenders"]:
            name = f"{workload['name']} {contender['name']}"
            metadata = {"name": name, "unit": "second", "shmpipe_engine": document["engine"]}
            runs = [
                pyperf.Run(
                    [sample["seconds"] / sample["count"]],
                    metadata={**metadata, "inner_loops": 1, "loops": sample["count"]},
                    collect_metadata=False,
                )
                for sample in contender.get("rounds", ())
                if sample
            ]
            if runs:
                benchmarks.append(pyperf.Benchmark(runs))
    return pyperf.BenchmarkSuite(benchmarks)
