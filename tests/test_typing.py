"""A user's program type-checks, strictly, against the installed package; its mistakes are seen."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shmpipe

from .support import register_pid

PROGRAM = Path(__file__).parent / "typed" / "user.py"

pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="not installed: mypy"),
]


def mypy(program: Path, directory: Path) -> tuple[int, str]:
    """Exit status and what it says, of a program elsewhere than in the checkout."""
    environment = dict(os.environ)
    where = Path(shmpipe.__file__).parent.parent
    if where.name != "site-packages":  # mypy finds what is installed by itself
        environment["MYPYPATH"] = str(where)
    arguments = ["--strict", "--config-file=", "--cache-dir", str(directory / "cache")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mypy", *arguments, str(program)],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    register_pid(process.pid)
    output, _ = process.communicate()
    return process.returncode, output


def test_a_users_program(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text(PROGRAM.read_text())
    assert mypy(program, tmp_path) == (0, "Success: no issues found in 1 source file\n")


def test_it_would_see_a_mistake(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text("import shmpipe\n\nshmpipe.Pipe()[0].recv(timeout='x')\n")
    status, output = mypy(program, tmp_path)
    assert status == 1 and "arg-type" in output, output
