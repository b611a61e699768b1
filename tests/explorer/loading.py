"""The modules under test: a copy of the package's sources, with a simulated machine below them.

They are imported under another name, so that nothing else in this process notices, always
interpreted, whatever engine is installed.  Only what is below the seam is replaced: ``primitives``
(its copies stay), ``identity``, the file lock, the clock, sockets and descriptors.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from . import kernel, semaphores, views

_FOUND = importlib.util.find_spec("shmpipe")
assert _FOUND is not None and _FOUND.origin is not None
DIRECTORY = Path(_FOUND.origin).parent
NAME = "explored_shmpipe"
MODULES = (
    "living",
    "places",
    "segment",
    "locking",
    "ring",
    "pagering",
    "bytering",
    "doorbell",
    "policies",
    "waiting",
    "following",
    "readers",
    "writers",
    "control",
    "stream",
    "deadlines",
    "frames",
    "assembling",
    "keeping",
    "arrivals",
    "sending",
    "collecting",
    "receiving",
    "lending",
    "stepping",
)


class _Sources:
    """Finds the copy's modules as Python files, compiled ones beside them or not."""

    def __init__(self) -> None:
        self._finder = FileFinder(str(DIRECTORY), (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parent, _, _ = name.rpartition(".")
        return self._finder.find_spec(name) if parent == NAME else None


@contextmanager
def _no_fork_hooks() -> Iterator[None]:
    """A simulated socket must not meet what a real fork of the testing process sets off."""
    register, os.register_at_fork = os.register_at_fork, lambda **hooks: None  # type: ignore
    try:
        yield
    finally:
        os.register_at_fork = register


def _load() -> types.SimpleNamespace:
    package = types.ModuleType(NAME)
    package.__path__ = [str(DIRECTORY)]
    sys.modules[NAME] = package
    sys.meta_path.insert(0, _Sources())

    primitives: Any = importlib.import_module(f"{NAME}.primitives")
    primitives.Semaphore = primitives.Sleepable = semaphores.Semaphore
    primitives.ThreadLock = semaphores.ThreadLock
    primitives.fence = semaphores.fence
    primitives.spin = semaphores.spin
    primitives.idle = lambda seconds: None
    primitives.poll_fd = kernel.poll_fd
    primitives.coarse_time = kernel.Clock.monotonic
    identity: Any = kernel.Identity()
    sys.modules[f"{NAME}.identity"] = package.identity = identity  # type: ignore[attr-defined]

    found = types.SimpleNamespace(primitives=primitives)
    with _no_fork_hooks():
        for name in MODULES:
            module: Any = importlib.import_module(f"{NAME}.{name}")
            setattr(found, name, module)
            if hasattr(module, "time"):
                module.time = kernel.Clock
    found.doorbell.select = kernel.SELECT
    found.doorbell.owned = kernel.owned
    for module in (found.doorbell, found.places):
        module.os = kernel.Os(module.os)
    found.places.PLACES = 4
    found.lending.Window = views.Window
    # The garbage collector is not a task.
    del found.lending.Loan.__del__, found.stepping.SteppedSend.__del__
    # What only makes runs longer: one nap is enough before the dead are looked for.
    found.locking._FIRST_NAP = found.locking._LONGEST_NAP = found.locking.PATIENCE
    return found


code = _load()
