"""All interleavings of the shipped code, and the explorer that goes through them."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from .explorer import hunting, results, textbook
from .explorer.loading import DIRECTORY, MODULES, code
from .explorer.memory import Failure, Op
from .explorer.mutants import Mutant, applied, mutants
from .explorer.scheduler import Limits, Run
from .explorer.search import Result, Scenario, Search, replay
from .explorer.telling import Teller

DOCS = Path(__file__).resolve().parent.parent / "docs" / "reliability"

pytestmark = pytest.mark.timeout_s(300)


# --- the explorer itself -------------------------------------------------------------------------


def test_a_fork_of_this_process_leaves_the_simulated_ones_alone() -> None:
    """A hook that met a simulated end failed where nobody could catch it."""

    class Socket:
        def setblocking(self, on: bool) -> None: ...
        def setsockopt(self, level: int, option: int, value: int) -> None: ...

    bell = code.doorbell.Doorbell(Socket(), OSError, False)
    failed: list[str] = []
    going_on = threading.Event()
    thread = threading.Thread(target=going_on.wait)  # only then the hook has something to do
    thread.start()
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: failed.append(repr(args))
    try:
        child = os.fork()
        if not child:
            for what in failed:
                os.write(2, f"{what}\n".encode())
            os._exit(len(failed))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        sys.unraisablehook = hook
        going_on.set()
        thread.join()
    assert not failed and not bell._shared


def search(scenario: Scenario, preemptions: int | None = None) -> Result:
    result = Search(scenario, Limits(preemptions)).run()
    assert result.complete or result.failure
    return result


@pytest.mark.parametrize("preemptions", [None, 3])
@pytest.mark.parametrize(
    ("scenario", "impossible"),
    [
        (textbook.Litmus(fenced=False), set()),
        (textbook.Litmus(fenced=True), {(0, 0)}),
        (textbook.Litmus(fenced=False, tso=False), {(0, 0)}),
    ],
    ids=["without a fence", "with one", "sequential"],
)
def test_a_store_may_be_seen_late(
    scenario: textbook.Litmus, impossible: set[Any], preemptions: int | None
) -> None:
    scenario.outcomes.clear()
    assert search(scenario, preemptions).failure is None
    assert scenario.outcomes == {(0, 0), (0, 1), (1, 0), (1, 1)} - impossible


@pytest.mark.parametrize("preemptions", [None, 3])
def test_stores_are_seen_in_their_order(preemptions: int | None) -> None:
    scenario = textbook.Message()
    assert search(scenario, preemptions).failure is None
    assert scenario.outcomes == {(0, 0), (0, 1), (1, 1)}  # never the flag without the data


@pytest.mark.parametrize(
    ("scenario", "fails"),
    [
        (textbook.Peterson(fenced=True), False),
        (textbook.Peterson(fenced=True, rounds=2), False),
        (textbook.Peterson(fenced=False), True),
        (textbook.Peterson(fenced=False, tso=False), False),
        (textbook.Buffer(), False),
        (textbook.Buffer(producers=2), False),
        (textbook.Buffer(broken="order"), True),
        (textbook.Buffer(broken="free"), True),
        (textbook.Condition(looks=True), False),
        (textbook.Condition(looks=False), True),
        (textbook.Condition(looks=True, fenced=False), True),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else value.title(),
)
@pytest.mark.parametrize("preemptions", [None, 2])
def test_textbook(scenario: Scenario, fails: bool, preemptions: int | None) -> None:
    result = search(scenario, preemptions)
    assert bool(result.failure) == fails
    if fails:
        assert replay(scenario, result.schedule) == result.failure


def test_reductions_lose_no_outcome() -> None:
    """The same outcomes as without a memory of states."""

    class Plain(textbook.Litmus):
        remembers = False

    plain, quick = Plain(fenced=False), textbook.Litmus(fenced=False)
    many, few = Search(plain, Limits(9)).run(), Search(quick, Limits()).run()
    assert plain.outcomes == quick.outcomes
    assert few.schedules < many.schedules


class Unwinding(Scenario):
    """A task that touches something as it unwinds."""

    def build(self, run: Run) -> None:
        run.killable = frozenset("A")

        def body() -> None:
            try:
                run.store("x", 1)
                run.step(Op("fence", drains=True))
            finally:
                run.step(Op("posts", (), ("y",), True))
                run.put("y", run.load("x"))

        run.add("A", "A", body)
        run.add("B", "B", lambda: run.load("x") + run.load("y"))

    def check(self, run: Run) -> None:
        if run.deaths and run.tasks[0].moves < 4 and run.get("y"):
            raise Failure("a dead task goes on")


def test_the_dead_touch_nothing() -> None:
    assert Search(Unwinding(), Limits(2, deaths=1)).run().failure is None


# --- the shipped code ----------------------------------------------------------------------------


QUICKLY = 50  # schedules: what is done in the fast part of the tests


@pytest.mark.parametrize("name", hunting.SCENARIOS)
def test_scenario_begins_well(name: str) -> None:
    result = hunting.search(hunting.SCENARIOS[name], 0, QUICKLY)
    assert result.failure is None, f"--scenario {name} --replay '{result.schedule}'"


@pytest.mark.slow
@pytest.mark.parametrize("name", hunting.SCENARIOS)
def test_scenario(name: str) -> None:
    scenario = hunting.SCENARIOS[name]
    result = hunting.search(scenario, scenario.fast, hunting.FAST_MOST)
    assert result.failure is None, f"--scenario {name} --replay '{result.schedule}'"


@pytest.mark.slow
@pytest.mark.timeout_s(3600)
@pytest.mark.skipif(
    "SHMPIPE_EXPLORE" not in os.environ, reason="takes an hour: SHMPIPE_EXPLORE=full"
)
@pytest.mark.parametrize("name", hunting.SCENARIOS)
def test_scenario_in_full(name: str) -> None:
    found = results.in_full(hunting.SCENARIOS[name], results.FULL_MOST, lambda *told: None)
    assert "failure" not in found, f"--scenario {name} --replay '{found['schedule']}'"


def test_what_the_full_set_found_is_in_the_docs() -> None:
    """Made by ``./tools/explore --full --json FILE`` and ``--table FILE PAGE``."""
    stored = (DOCS / "explorer.json").read_text()
    page = (DOCS / "explorer.md").read_text()
    assert page == results.with_table(page, stored)
    scenarios = json.loads(stored)["scenarios"]
    assert list(scenarios) == list(hunting.SCENARIOS)
    assert not any("failure" in found for found in scenarios.values())


# --- without one of its steps --------------------------------------------------------------------

LOOKS = {"has_data", "has_space", "_has_space", "is_ready"}


def asks(node: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in names
        for call in ast.walk(node)
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_fence_and_every_look_is_marked(module: str) -> None:
    """So that a new one comes with a mutant, or says why it has none (``no step``)."""
    source = (DIRECTORY / f"{module}.py").read_text()
    lines = ["", *source.splitlines()]
    unmarked = []
    for node in ast.walk(ast.parse(source)):
        fence = isinstance(node, ast.Expr) and asks(node, {"fence"})
        if fence or (isinstance(node, ast.If) and asks(node.test, LOOKS)):
            near = lines[node.lineno - 1 : node.lineno + 1]
            if not any("# step: " in line or "# no step: " in line for line in near):
                unmarked.append(lines[node.lineno].strip())
    assert not unmarked


def test_names_of_steps_are_unique() -> None:
    names = [mutant.name for mutant in mutants()]
    assert sorted(set(names)) == sorted(names)


def cases() -> list[Any]:
    """Those that take long to catch are for the full set."""
    found = []
    for mutant, how in hunting.known(mutants()):
        slow = how is not None and how[2] > QUICKLY
        marks = [pytest.mark.slow] if slow else []
        found.append(pytest.param(mutant, how, id=mutant.name, marks=marks))
    return found


@pytest.mark.parametrize(("mutant", "how"), cases())
def test_mutant_is_caught(mutant: Mutant, how: hunting.How | None) -> None:
    assert how is not None, f"find a search: ./tools/explore --mutants {mutant.name}"
    result = hunting.fails_with(mutant, how)
    assert result.failure is not None, f"not caught: {mutant}"
    teller = Teller()
    with applied(mutant):
        again = replay(hunting.SCENARIOS[how[0]], result.schedule, teller)
    assert again is not None
    if "no end after" not in str(again):  # a replay has its own patience
        assert again == result.failure
    if "before anything runs" not in str(result.failure):
        assert len(teller.lines) > 10
