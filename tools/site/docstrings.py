"""An extension of Griffe: what docstrings say of parameters becomes a list.

They are written to be read as text: ``size: capacity in bytes`` with the rest of it indented below.
Markdown would run such lines together.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"(\w+(?:, \w+)*): (.*)")


def with_lists(text: str, parameters: set[str]) -> str:
    """The text with its items, names of parameters or of commands, as a Markdown list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        item = ITEM.fullmatch(line)
        if item and all(name in parameters or name[:2] == "F_" for name in item[1].split(", ")):
            if not inside:
                lines.append("")
            inside = True
            lines.append(f"* `{item[1]}`: {item[2]}")
        elif inside and line and not line.startswith(" "):
            inside = False
            lines += ["", line]
        else:
            inside = inside and bool(line)
            lines.append(line)
    return "\n".join(lines)


class Lists(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = with_lists(func.docstring.value, names)
