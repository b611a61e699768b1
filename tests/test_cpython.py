"""CPython's own tests of connections, queues, pools, managers and executors, on our pipes.

Which they are, and which are left out for what reason, stands in cpython/selection.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import lru_cache

import pytest

from .cpython import runner, selection
from .support import START_METHODS

pytestmark = pytest.mark.skipif(
    not runner.installed(), reason="this interpreter comes without its test package"
)
NO_EXECUTORS = "this interpreter comes without test.test_concurrent_futures"
METHODS = pytest.mark.parametrize("method", START_METHODS)


@lru_cache
def available(method: str) -> list[str]:
    return runner.available(method)


def bad(report: runner.Report) -> set[str]:
    return report.named("failed", "hung", "crashed")


def check(method: str, names: Iterable[str]) -> None:
    """All these tests pass on our pipes, and leave nothing behind."""
    names = list(names)
    report = runner.run_tests(method, "shmpipe", names, jobs=2)
    failures = bad(report)
    if failures:
        # What fails with the standard pipe as well says something about this machine, not about us.
        excused = failures & bad(runner.run_tests(method, "stdlib", sorted(failures)))
        failures -= excused
        for name in sorted(excused):
            warnings.warn(f"the standard pipe too: {report.outcomes[name]}", stacklevel=1)
    assert not failures, "\n\n".join(str(report.outcomes[name]) for name in sorted(failures))
    assert not report.outside
    assert not report.left
    assert not report.altered, report.output
    assert set(report.outcomes) == set(names)
    assert report.named("passed")
    assert report.pipes


@METHODS
def test_connections(method: str) -> None:
    names = selection.chosen(available(method), method, ["connections"])
    check(method, [name for name in names if name not in selection.SLEEPERS])


@pytest.mark.slow
@METHODS
def test_connections_that_are_waited_for(method: str) -> None:
    check(method, selection.SLEEPERS)


@pytest.mark.slow
@pytest.mark.timeout_s(600)
@METHODS
@pytest.mark.parametrize("group", [group for group in selection.GROUPS if group != "connections"])
def test_what_is_built_on_connections(group: str, method: str) -> None:
    names = selection.chosen(available(method), method, [group])
    if not names and group == "executors":
        pytest.skip(NO_EXECUTORS)
    check(method, names)


# What the runner notices


@METHODS
def test_the_exceptions_are_exceptions(method: str) -> None:
    """They pass on the standard pipe, and still fail on ours; else they need not be listed."""
    names = list(selection.EXCEPTIONS)
    assert runner.run_tests(method, "stdlib", names).named("passed") == set(names)
    assert runner.run_tests(method, "shmpipe", names, limit=20).named("failed") == set(names)


@METHODS
def test_every_pattern_of_the_selection_finds_something(method: str) -> None:
    for group, patterns in selection.GROUPS.items():
        if group == "executors" and not selection.chosen(available(method), method, [group]):
            continue
        for pattern in set(patterns) - selection.RARE:
            assert runner.select(available(method), [pattern.format(method=method)]), pattern


@METHODS
def test_a_good_pipe_of_somebody_else_passes(method: str) -> None:
    names = ["WithProcessesTestConnection.test_connection", "WithProcessesTestPoll.test_strings"]
    report = runner.run_tests(method, "good", [*names, *selection.EXCEPTIONS])
    assert report.named("passed") == {*names, *selection.EXCEPTIONS}, bad(report)
    assert report.pipes and not (report.outside or report.left or report.altered)


@METHODS
def test_a_failure_is_seen(method: str) -> None:
    names = ["WithProcessesTestPoll.test_dont_merge", "WithProcessesTestConnection.test_context"]
    report = runner.run_tests(method, "deaf", names)
    assert report.named("failed") == set(names[:1])
    assert report.named("passed") == set(names[1:])
    assert "AssertionError: False != True" in report.outcomes[names[0]].detail


def test_programs_that_tests_start_have_the_pipe_too() -> None:
    names = runner.select(available("fork"), ["ProcessPool*.test_interpreter_shutdown"])
    if not names:
        pytest.skip(NO_EXECUTORS)
    report = runner.run_tests("fork", "loud", names)
    assert report.named("failed") == set(names)
    assert "b'a pipe is made" in report.outcomes[names[0]].detail


def test_a_hang_is_ended_and_explained_and_the_others_run() -> None:
    names = [
        "WithProcessesTestConnection.test_duplex_false",
        "WithProcessesTestConnection.test_connection",
        "WithProcessesTestConnection.test_context",
    ]
    report = runner.run_tests("fork", "endless", names, limit=3)
    assert report.named("hung") == {names[1]}
    assert report.named("passed") == {names[0], names[2]}
    assert "most recent call first" in report.outcomes[names[1]].detail
    assert "in test_connection" in report.outcomes[names[1]].detail


def test_a_crash_is_seen_and_the_others_run() -> None:
    names = ["WithProcessesTestConnection.test_context", "TestWait.test_wait_socket"]
    report = runner.run_tests("fork", "deadly", names)
    assert report.named("crashed") == {names[0]}
    assert report.named("passed") == {names[1]}


def test_a_crash_after_the_last_test_is_seen() -> None:
    names = ["WithProcessesTestConnection.test_context"]
    report = runner.run_tests("fork", "brittle", names)
    assert report.named("passed") == set(names)
    assert len(report.outside) == 1 and "status -9" in report.outside[0]


def test_a_process_left_behind_is_seen_and_ended() -> None:
    names = ["WithProcessesTestConnection.test_context"]
    report = runner.run_tests("fork", "littering", names, grace=0.5)
    assert report.named("passed") == set(names)
    assert len(report.left) == 1 and "time.sleep(600)" in report.left[0]
