"""The soak: a minute of it, a crowd on few cores, and that it finds what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import shmpipe

from .soaking.plans import plan
from .soaking.spoiling import FAULTS


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The same packages as here, wherever they were found.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-m", "tests.soaking", "--quiet", *arguments],
        env=environment | {"SHMPIPE_ENGINE": shmpipe.engine},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def figures(*arguments: str) -> dict[str, Any]:
    done = soak(*arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["engine"] == shmpipe.engine
    return found


@pytest.mark.timeout_s(180)
def test_a_minute() -> None:
    found = figures("--minutes", "1")
    assert found["operations"] > 10_000
    assert found["kills"] > 10


@pytest.mark.timeout_s(120)
def test_fifty_processes() -> None:
    found = figures("--minutes", "0.1", "--processes", "50")
    assert found["operations"] > 1000


@pytest.mark.once
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    _, kind, _, said = FAULTS[fault]
    done = soak("--rounds", "1", "--kind", kind, "--spoil", fault, "--limit", "2", "--seed", "3")
    assert done.returncode == 1, done.stdout
    assert re.search(said, done.stderr), done.stderr
    assert "again: --seed 3 --round 0" in done.stderr
    if fault == "hang":
        assert "most recent call first" in done.stderr, "no stacks"


def test_a_seed_makes_the_same_plans() -> None:
    plans = [plan(7, number) for number in range(50)]
    assert plans == [plan(7, number) for number in range(50)]
    assert plans != [plan(8, number) for number in range(50)]
