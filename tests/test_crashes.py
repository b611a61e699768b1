"""Processes that are killed or stopped at every step of what they do with a pipe.

See ``crashing``.  `tools/crash` does the same at random, for as long as one likes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

import pytest

import shmpipe

from .crashing import copies, page, points
from .crashing.command import every_step, walk

FULL = "SHMPIPE_EXPLORE" in os.environ


def show(found: dict[str, Any]) -> str:
    cases = "\n".join(found["failures"])
    return f"seed {found['seed']}; to see one again: ./tools/crash --replay CASE\n{cases}"


@pytest.mark.once
def test_some_steps() -> None:
    """On the interpreted copy, which takes no time to make."""
    found = walk("pure", {"kind": "sample", "seed": "sample", "count": 25})
    assert not found["failures"], show(found)
    assert found["kills"] >= 5
    assert sum(found["promises_checked"].values()) > 200


@pytest.mark.slow
@pytest.mark.timeout_s(3600 if FULL else 600)
def test_every_step() -> None:
    """With one peer and in a crowd, on the engine of this run; nobody is left out."""
    seed = os.environ.get("SHMPIPE_CRASH_SEED", "walk")
    found = every_step(shmpipe.engine, seed, FULL, at_once=2)  # they mostly wait
    assert found["engine"] == shmpipe.engine
    assert not found["failures"], show(found)
    assert not found["steps_not_died_at"]
    assert found["kills"] >= found["steps"]


@pytest.mark.once
def test_the_page_shows_the_figures() -> None:
    directory = copies.CHECKOUT / "docs" / "reliability"
    figures = json.loads((directory / "crashes.json").read_text())
    assert page.table_in((directory / "crashes.md").read_text()) == page.table(figures)
    assert [one["engine"] for one in figures["engines"]] == list(copies.ENGINES)
    for one in figures["engines"]:
        assert one["kills"] >= 2000
        assert not one["failures"]
        assert not one["steps_not_died_at"]


# --- the steps themselves ------------------------------------------------------------------------


@pytest.mark.once
def test_names_of_steps_are_unique() -> None:
    assert [name for name, count in Counter(copies.step_names()).items() if count > 1] == []


@pytest.mark.once
def test_every_module_with_steps_is_instrumented() -> None:
    found = [
        path.stem
        for path in (copies.CHECKOUT / "shmpipe").glob("*.py")
        if path.stem not in points.MODULES and points.instrumented(path.read_text(), path.stem)[1]
    ]
    # What these do has no other process to see it, or is what the others do there; and to meet by
    # name, which comes before there is a pipe, has tests of its own.
    own = ["arrays", "identity", "messages", "primitives"]
    meeting = ["answers", "naming", "peers", "rendezvous"]
    assert sorted(found) == sorted([*own, *meeting])


@pytest.mark.once
def test_every_mark_is_a_step() -> None:
    """Those that the explorer makes mutants of, too."""
    named = set(copies.step_names())
    package = copies.CHECKOUT / "shmpipe"
    for path in package.glob("*.py"):
        missing = set(points.marks(path.read_text()).values()) - named
        assert not missing, path.name


@pytest.mark.once
def test_stores_calls_and_marks_are_found() -> None:
    source = """
from __future__ import annotations

def act(self):
    words = self.words
    words[WPOS] = 1
    self.lock.release()
    local.release()
    self.bell.other()  # step: some-name (late 2)
    # crash: other-name
    self.bell.other()
    self.lock.release()  # no crash: for a reason
    if not self.lock.acquire(False):
        pass
    elif self.mine:  # step: second-look (never)
        words[3] += 1
    while self.lock.acquire(False):
        pass

def create(self):
    self.lock.release()
"""
    text, names = points.instrumented(source, "module")
    assert names == [
        "module.act.WPOS",
        "module.act.release",
        "some-name",
        "other-name",
        "module.act.acquire",
        "second-look",
        "module.act.words",
        "module.act.acquire-2",
    ]
    calls = re.findall(rf"{points.AT}\('(.*?)'\)", text)
    assert Counter(calls) == Counter([*names, "module.act.acquire-2"])  # a loop's twice
    compile(text, "module", "exec")


@pytest.mark.once
def test_a_mark_without_a_statement_is_an_error() -> None:
    source = "from __future__ import annotations\n# crash: nowhere\n"
    with pytest.raises(ValueError, match="marks without a statement"):
        points.instrumented(source, "module")
