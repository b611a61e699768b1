"""A user's program type-checks, strictly, against the installed package; its mistakes are seen.

So do the programs of the documentation and examples/, as far as one without annotations can.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shmpipe
from shmpipe.policies import POLICIES

from .support import register_pid
from .test_docs import programs

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).parent / "typed" / "user.py"

pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="not installed: mypy"),
]


def mypy(directory: Path, *options: str) -> tuple[int, str]:
    """Exit status and what it says, of the programs in a directory that is not the checkout."""
    environment = dict(os.environ)
    where = Path(shmpipe.__file__).parent.parent
    if where.name != "site-packages":  # mypy finds what is installed by itself
        environment["MYPYPATH"] = str(where)
    cache = directory.parent / "cache"
    arguments = [*options, "--config-file=", "--cache-dir", str(cache)]
    programs = sorted(map(str, directory.glob("*.py")))
    process = subprocess.Popen(
        [sys.executable, "-m", "mypy", *arguments, *programs],
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
    text = PROGRAM.read_text()
    assert all(f'"{name}"' in text.rpartition("WAKE: ")[2] for name in POLICIES)
    (tmp_path / "user.py").write_text(text)
    assert mypy(tmp_path, "--strict") == (0, "Success: no issues found in 1 source file\n")


def test_the_programs_of_the_documentation(tmp_path: Path) -> None:
    found = {f"block{number}": block.text for number, block in enumerate(programs())}
    found |= {path.stem: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert len(found) > 30
    for name, text in found.items():
        (tmp_path / f"{name}.py").write_text(text)
    status, output = mypy(tmp_path, "--check-untyped-defs")
    assert status == 0, output


def test_it_would_see_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("import shmpipe\n\nshmpipe.Pipe()[0].recv(timeout='x')\n")
    status, output = mypy(tmp_path, "--strict")
    assert status == 1 and "arg-type" in output, output
