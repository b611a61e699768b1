"""What stands in two places says the same in both; the tools leave alone what is not theirs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shmpipe

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a checkout"),
]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_pre_commit_has_the_same_versions() -> None:
    hooks = set(re.findall(r'"(\w+==[^"]+)"', text(".pre-commit-config.yaml")))
    (lint,) = re.findall(r"^lint = \[(.*)\]$", text("pyproject.toml"), re.M)
    assert hooks == set(re.findall(r'"([^"]+)"', lint)) != set()


def test_every_python_of_the_classifiers_is_tested() -> None:
    named = re.findall(r"Python :: (3\.\d+)", text("pyproject.toml"))
    assert f">={named[0]}" in text("pyproject.toml").split("requires-python")[1].split("\n")[0]
    for script in ("tools/test", "tools/package"):
        (listed,) = re.findall(r"\b(3\.10(?: 3\.\d+)+)", text(script))
        assert listed.split() == named
    wheels = re.findall(r"cp3(\d+)-manylinux", text("pyproject.toml"))
    assert [f"3.{minor}" for minor in wheels] == named
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in named


def test_the_version_is_in_one_place() -> None:
    pages = ["pyproject.toml", "setup.py", "README.md", "shmpipe/__init__.py", "mkdocs.yml"]
    assert [page for page in pages if shmpipe.__version__ in text(page)] == []
    assert shmpipe.__version__ in text("shmpipe/_version.py")


def test_the_changelog_keeps_its_form() -> None:
    headings = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.M)
    assert headings[0] == "[Unreleased]" or "dev" not in shmpipe.__version__
    for heading in headings[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text("CHANGELOG.md"), re.M)) <= kinds


def test_the_page_of_an_index_has_no_dead_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of README.md, by a function of setup.py, which as a whole would build."""
    tree = ast.parse(text("setup.py"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "description"]
    names: dict[str, Any] = {"re": re}
    exec(compile(tree, "setup.py", "exec"), names)
    monkeypatch.chdir(ROOT)
    page = names["description"]()
    assert re.findall(r"\]\((?!https?:)[^)]*\)", page) == []
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text("README.md")) != []
    assert "docs/performance/rate.svg" in page and "docs/tutorial.md" in page


@pytest.mark.parametrize("made_here", [True, False])
def test_an_environment_of_the_users_is_left_alone(made_here: bool, tmp_path: Path) -> None:
    """A half-made one of our own is made again; here by a Python that fails to."""
    environment = tmp_path / ".venv"
    environment.mkdir()
    (environment / "mine").touch()
    if made_here:
        (environment / ".made-by").touch()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncase $* in *venv*) exit 3 ;; esac\necho a Python\n")
    python.chmod(0o755)
    script = 'source "$1/tools/_env.sh"; ensure_env "$2" "$3" ""'
    done = subprocess.run(
        ["bash", "-euc", script, "test", ROOT, environment, python], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert ("was not made here" in done.stderr) != made_here, done.stderr
    assert (environment / "mine").exists() != made_here
