"""The pages fit together: every one is in the navigation, links lead somewhere, the API is whole.

`./tools/docs` builds the site; where MkDocs is installed, so does a test here.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shmpipe
import shmpipe.aio

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "mkdocs.yml"
TOOLS = ROOT / "tools" / "site"

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not CONFIG.exists(), reason="not in a checkout"),
]

BUILDERS = ("mkdocs", "material", "mkdocstrings_handlers.python")


def pages() -> list[Path]:
    at_root = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*at_root, ROOT / "examples" / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def text_of(page: Path) -> str:
    """Without what stands in fences."""
    return re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", "", page.read_text(), flags=re.M | re.S)


def anchors_of(page: Path) -> set[str]:
    """As both MkDocs and what shows Markdown beside code make them of headings."""
    text = text_of(page)
    found = set(re.findall(r"^::: (\S+)", text, re.M))
    for heading in re.findall(r"^#+ +(.*)$", text, re.M):
        plain = re.sub(r"[^\w\s-]", "", heading.strip().lower())
        found.add(re.sub(r"\s+", "-", plain.strip()))
    return found


def links() -> list[tuple[Path, str]]:
    """Of every page; images are links as well, absolute addresses are none of ours."""
    return [
        (page, target)
        for page in pages()
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text_of(page)))
        if not re.match(r"[a-z]+:", target)
    ]


def broken(page: Path, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{page.relative_to(ROOT)}: {target}: no such file"
    if ROOT not in file.parents and file != ROOT:
        return f"{page.relative_to(ROOT)}: {target}: leads out of the checkout"
    if anchor and anchor not in anchors_of(file):
        return f"{page.relative_to(ROOT)}: {target}: no such heading"
    return None


def test_every_page_is_in_the_navigation() -> None:
    navigation = CONFIG.read_text().split("\nnav:", 1)[1].split("\ntheme:", 1)[0]
    named = re.findall(r": (\S+\.md)$", navigation, re.M)
    below = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    beside = {"CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"}
    assert sorted(named) == sorted(below | beside)


def test_links_lead_somewhere() -> None:
    found = links()
    assert len(found) > 50
    assert [problem for link in found if (problem := broken(*link))] == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [("nothing.md", "no such file"), ("design.md#nothing", "heading"), ("../..", "leads out")],
)
def test_broken_links_are_seen(target: str, problem: str) -> None:
    assert problem in (broken(ROOT / "docs" / "index.md", target) or "")


def test_every_public_name_is_in_the_api_page() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    # (`shmpipe.pipe` would be the module of that name.)
    text = text.replace("::: shmpipe.pipe.pipe\n", "::: shmpipe.pipe\n")
    described = set(re.findall(r"^::: (\S+)", text, re.M))
    named = re.findall(r"^\| `(F_\w+)` \|", text, re.M) + re.findall(
        r"^`shmpipe\.(\w+)`$", text, re.M
    )
    described |= {f"shmpipe.{name}" for name in named}
    public = {f"shmpipe.{name}" for name in shmpipe.__all__}
    public |= {f"shmpipe.aio.{name}" for name in shmpipe.aio.__all__}
    assert public - described == set()
    for name in re.findall(r"^::: shmpipe\.(?:(aio)\.)?(\w+)$", text, re.M):
        assert hasattr(shmpipe.aio if name[0] else shmpipe, name[1])


def test_everything_public_has_a_docstring() -> None:
    bare = [
        f"{kind.__name__}.{name}"
        for kind in map(vars(shmpipe).get, shmpipe.__all__)
        if isinstance(kind, type)
        for name, member in vars(kind).items()
        if not name.startswith("_") and callable(member) and not member.__doc__
    ]
    assert bare == []


def needs_builders() -> None:
    try:
        missing = [name for name in BUILDERS if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:  # of what a dotted name begins with
        missing = [str(error.name)]
    if missing:
        pytest.skip(f"not installed: {missing} (pip install '.[docs]', or ./tools/docs)")


def test_docstrings_become_lists() -> None:
    needs_builders()
    spec = importlib.util.spec_from_file_location("docstrings", TOOLS / "docstrings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "First.\n\nsize: bytes,\n    in all.\nwake: how.\nF_A, F_B: both.\nThe end: here."
    assert module.with_lists(text, {"size", "wake"}) == (
        "First.\n\n\n* `size`: bytes,\n    in all.\n* `wake`: how.\n* `F_A, F_B`: both.\n"
        "\nThe end: here."
    )


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    needs_builders()
    command = [sys.executable, "-I", "-m", "mkdocs", "build", "--strict", "--site-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "api" / "index.html").read_text()
    shown = re.findall(r'id="(shmpipe\.[^"]*)"', page)
    assert len(shown) == len(set(shown)) > 100
    assert [name for name in shown if "._" in name] == []
    for name in (
        "shmpipe.Pipe",
        "shmpipe.pipe.pipe",
        "shmpipe.Connection.recv",
        "shmpipe.aio.AsyncConnection.send",
    ):
        assert f'id="{name}"' in page
    assert (tmp_path / "site" / "examples" / "hub.py").exists()
