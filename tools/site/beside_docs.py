"""A hook of MkDocs: pages that do not lie in docs/ are in the site, too, and links lead to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: Any) -> Files:
    """In the site they lie where docs/ does."""
    examples = sorted(ROOT.glob("examples/*.md")) + sorted(ROOT.glob("examples/*.py"))
    for path in [ROOT / name for name in PAGES] + examples:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from docs/ to the checkout's root, and back, lead to the same place here."""
    name = page.file.src_uri
    if name in PAGES:
        return markdown.replace("](docs/", "](")
    up = "../" * (name.count("/") + 1)
    return re.sub(rf"\]\({re.escape(up)}(?=examples/|[A-Z]+\.md)", f"]({up[3:]}", markdown)
