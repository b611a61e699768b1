"""Which engine runs: the modules as they were compiled, or the same ones interpreted.

Both lie side by side where the package was compiled; Python prefers the compiled ones.
SHMPIPE_ENGINE=pure takes the others, SHMPIPE_ENGINE=native fails where there are none.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from typing import Any

PACKAGE = __package__
VARIABLE = "SHMPIPE_ENGINE"


class _SourcesOnly:
    """Finds this package's modules as Python files, whatever else there is."""

    def __init__(self, directory: str) -> None:
        self._finder = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parent, _, _ = name.rpartition(".")
        return self._finder.find_spec(name) if parent == PACKAGE else None


def _choose() -> str:
    """Choose, before anything else of the package is imported; returns the engine's name.

    ImportError: SHMPIPE_ENGINE has another value than "pure" or "native", or there is no compiled
    engine although "native" is asked for; or this Python runs without its global lock.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "pure", "native"):
        raise ImportError(f"{VARIABLE}={wanted}: allowed are pure and native")
    if wanted == "pure":
        sys.meta_path.insert(0, _SourcesOnly(os.path.dirname(__file__)))
    from . import primitives

    if wanted == "native" and not primitives.COMPILED:
        raise ImportError(f"{VARIABLE}=native, but this shmpipe was installed without compiling")
    # Of what threads of one process share, much is right because only one of them runs at a time.
    # (A compiled module that says nothing of it has switched the lock on, if it was allowed to.)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "shmpipe does not work without Python's global lock (GIL): set PYTHON_GIL=1, or use a "
            "Python that is not a free-threaded one"
        )
    return "native" if primitives.COMPILED else "pure"


engine = _choose()
"""``"native"`` where the compiled modules run, else ``"pure"``."""
