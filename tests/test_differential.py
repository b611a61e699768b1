"""The random differential run, small; and that it would notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from . import differential, page_model, subjects
from .differential import Run

OPS = 20_000


@pytest.mark.parametrize("against", ["kernel", "model"])
def test_no_difference(against: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    found = Run(OPS, seed, against).all()
    assert found is None, found.report()


def test_no_difference_between_the_oracles() -> None:
    found = Run(OPS, 1, "model", left="kernel").all()
    assert found is None, found.report()


def merge_into_read_bytes(model: Any, count: int) -> bool:
    part = count % page_model.PAGE
    return bool(model.slots) and 0 < part <= page_model.PAGE - model.slots[-1].length


def size_up(arg: int) -> int:
    return max(page_model.PAGE, -(-(arg % (1 << 32)) // page_model.PAGE) * page_model.PAGE)


def byte_count_readable(model: Any) -> bool:
    return len(model.data) > 1 or not model.writer_open


@pytest.mark.parametrize(
    ("place", "name", "planted"),
    [
        (page_model.PageModel, "_merges", lambda model, count: False),
        (page_model.PageModel, "_merges", merge_into_read_bytes),
        (page_model.PageModel, "readable", byte_count_readable),
        (page_model.PageModel, "unread", lambda model: model.used),
        (page_model, "round_size", size_up),
        (page_model, "pollout", lambda policy, pages, used, write_pages=1: used <= pages // 2),
        (subjects.ModelPipe, "wrong_way", lambda pipe, end: None),
    ],
)
def test_planted_fault_is_found_and_shortened(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, planted: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, planted)
    run = Run(OPS, 5, "model", left="kernel")
    found = run.all()
    assert found is not None
    assert len(found.steps) <= 12
    # The short replay shows a difference on its own, and its report names the episode.
    make = differential.makers("model", "kernel")
    assert differential.run_steps(make, found.setup, found.steps) is not None
    assert "seed 5 episode" in found.report()
