"""A schedule as something to read: who did what, with what, and where in the source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .loading import NAME
from .memory import Place, Task
from .world import segment


class Teller:
    """Collects the lines of one run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, task: Task | None, text: str, place: Place | None) -> None:
        if text.startswith("    sees") and self.lines:
            self.lines[-1] += "  ->  " + text.removeprefix("    sees ")
            return
        what = text if place is None else f"{text} {name_of(place)}"
        if text.startswith("    ("):
            self.lines.append(f"{task.name if task else '':3}{what.rstrip()})")
            return
        where = _where() if task is not None else ""
        self.lines.append(
            f"{task.name if task else '':3}{task.moves if task else '':4}  {what:58} {where}"
        )


def name_of(place: Any) -> str:
    if type(place) is not int:
        return place if isinstance(place, str) else " ".join(map(str, place))
    if place >= segment._TABLES:
        return f"page or fill at {place - segment._TABLES}"
    if place >= segment._PLACES:
        slot, rest = divmod(place - segment._PLACES, 64)
        lock = dict(
            zip(range(8, 64, 4), ("RD_LOCK", "WR_LOCK", "RD_TURN", "WR_TURN"), strict=False)
        )
        return f"place {slot}: " + (f"number for {lock.get(rest, 'nothing')}" if rest else "token")
    ring, index = divmod((place - segment._RING0) // 8, segment.LINES * segment.LINE)
    return WORDS.get(index, f"word {index}") + (" of the other ring" if ring else "")


def _where() -> str:
    """The innermost line of the modules under test, with its callers' names."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        if (
            frame.f_globals.get("__package__") == NAME
            and "primitives" not in frame.f_code.co_filename
        ):
            name = Path(frame.f_code.co_filename).stem
            found.append(f"{name}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found[:3])


def _control_words() -> dict[int, str]:
    """The control words' names: those of the constants that are below the first name of a size."""
    names: dict[int, str] = {}
    text = Path(str(segment.__file__)).read_text()
    part = text[text.index("# --- control words") : text.index("LINES =")]
    for name, value in vars(segment).items():
        if name.isupper() and type(value) is int and name in part.replace(",", " ").split():
            names[value] = name
    return names


WORDS = _control_words()
