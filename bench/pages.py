"""Pages of the documentation with measured parts, between marks that say which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MARKS = re.compile(r"(<!-- measured: ([\w-]+) -->)\n.*?(<!-- end -->)", re.DOTALL)


def fill(page: str, parts: Mapping[str, Iterable[str]]) -> str:
    """The page with the lines of every measured part written anew.

    A part stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``.  KeyError: the page
    asks for a part that there is not.
    """
    return _MARKS.sub(lambda found: "\n".join([found[1], *parts[found[2]], found[3]]), page)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A table whose first ``left`` columns are texts and all others numbers."""
    rules = ["---"] * left + ["--:"] * (len(heads) - left)
    return ["| " + " | ".join(row) + " |" for row in [heads, rules, *rows]]


def compact(document: dict[str, Any]) -> str:
    """JSON with a line for each record: small, and a new run shows in a diff what it changed."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\n {3,}|\n +(?=[}\]])", " ", text) + "\n"
