"""What is written in two places says the same in both."""

from __future__ import annotations

import re
import sys
from pathlib import Path

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
