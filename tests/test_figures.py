"""The figures in docs/reliability: the pages show what is stored, and of what it is."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import figures

pytestmark = pytest.mark.once

DOCS = figures.CHECKOUT / "docs" / "reliability"


@pytest.mark.parametrize("name", sorted(figures.TABLES))
def test_pages_show_what_is_stored(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    stored = json.loads((DOCS / f"{name}.json").read_text())
    assert page == figures.shown(page, figures.TABLES[name](stored))


def stamps(stored: Any) -> list[Any]:
    """All that a file has."""
    if isinstance(stored, dict):
        made = stored.get("made", [])
        inner = [one for value in stored.values() for one in stamps(value)]
        return (made if isinstance(made, list) else [made]) + inner
    return [one for value in stored for one in stamps(value)] if isinstance(stored, list) else []


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_says_when_and_of_what_its_figures_are(path: Path) -> None:
    found = stamps(json.loads(path.read_text()))
    assert found
    for made in found:
        assert made.keys() == figures.stamp().keys() and all(made.values())
        assert figures.told(made) in path.with_suffix(".md").read_text()


def test_stamp() -> None:
    made = figures.stamp()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])
    assert made["commit"] == "unknown" or re.fullmatch(r"[0-9a-f]{7,}\+?", made["commit"])
    assert made["version"] in figures.told(made) and made["commit"] in figures.told(made)


def test_stamp_outside_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shmpipe").mkdir()
    (tmp_path / "shmpipe" / "_version.py").write_text('"""The version."""\n\n__version__ = "9.8"\n')
    monkeypatch.setattr(figures, "CHECKOUT", tmp_path)
    made = figures.stamp()
    assert (made["version"], made["commit"]) == ("9.8", "unknown")


def test_runs_of_one_state_are_added_up() -> None:
    stored: dict[str, Any] = {}
    one, two = ({**figures.stamp(), "commit": commit} for commit in ("aaaaaaa", "bbbbbbb"))
    for made in (one, one, two):
        figures.added(stored, "pure", Counter(operations=10, seconds=60), made)
    first, second = stored["pure"]
    assert (first["operations"], first["runs"], first["made"]) == (20, 2, one)
    assert (second["operations"], second["runs"], second["made"]) == (10, 1, two)
    table = figures.soak_table(stored)
    for row in (
        "| interpreted | aaaaaaa | 2 | 0 | 20 |",
        "| interpreted | bbbbbbb | 1 | 0 | 10 |",
        "| interpreted | together | 3 | 0 | 30 |",
    ):
        assert row in table


def test_parts_are_put_together(tmp_path: Path) -> None:
    stored = json.loads((DOCS / "hostile.json").read_text())
    page = (DOCS / "hostile.md").read_text()
    (tmp_path / "hostile.md").write_text(figures.shown(page, "nothing"))
    parts = []
    for name, report in stored.items():
        (tmp_path / name).write_text(json.dumps(report))
        parts.append(f"{name}={tmp_path / name}")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("sys.argv", ["figures", "hostile", str(tmp_path), *parts])
        assert figures.main() == 0
    assert json.loads((tmp_path / "hostile.json").read_text()) == stored
    assert (tmp_path / "hostile.md").read_text() == page


def test_the_command_says_what_it_does() -> None:
    tool = str(figures.CHECKOUT / "tools" / "reliability")
    told = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0 and "--fast" in told.stdout
    wrong = subprocess.run([tool, "--no-such"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "--fast" in wrong.stdout
