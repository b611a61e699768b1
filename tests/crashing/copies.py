"""The instrumented copy of the package, for each engine: made on first use, and kept.

It lies in a directory of its own that is named after what it was made of.  Whoever is to use it
runs with that directory in front of its path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import points

CHECKOUT = Path(__file__).resolve().parent.parent.parent
ENGINES = ("pure", "native")
_PROJECT = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
_HERE = Path(__file__).resolve().parent


def place() -> Path:
    """Where copies are kept: $SHMPIPE_CRASH_COPIES, or this user's directory among temporaries."""
    chosen = os.environ.get("SHMPIPE_CRASH_COPIES")
    return Path(chosen or Path(tempfile.gettempdir()) / f"shmpipe-crashing-{os.getuid()}")


def sources() -> dict[str, str]:
    """The files of the copy, by their path in the package, and how each reads."""
    found = {}
    names: list[str] = []
    package = CHECKOUT / "shmpipe"
    for path in sorted(package.rglob("*")):
        if path.suffix not in (".py", ".pyx", ".pxd", ".typed"):
            continue
        text = path.read_text()
        if path.parent == package and path.suffix == ".py" and path.stem in points.MODULES:
            text, steps = points.instrumented(text, path.stem)
            names += steps
        found[str(path.relative_to(package))] = text
    found["_names.py"] = f"NAMES = {tuple(names)!r}\n"
    found["_steps.py"] = (_HERE / "steps.py").read_text()
    return found


def step_names() -> list[str]:
    """All steps of the package."""
    return [
        name
        for module in points.MODULES
        for name in points.instrumented((CHECKOUT / f"shmpipe/{module}.py").read_text(), module)[1]
    ]


def copy_for(engine: str) -> Path:
    """The directory of the copy for one engine: "pure" or "native"; made if there is none yet.

    RuntimeError: it cannot be compiled.
    """
    files = sources()
    known = hashlib.sha256(f"{engine} {sys.version} {sysconfig.get_platform()}".encode())
    for name, text in sorted(files.items()):
        known.update(f"{name}\0{text}\0".encode())
    known.update((CHECKOUT / "setup.py").read_bytes())
    directory = place() / f"{engine}-{known.hexdigest()[:16]}"
    if directory.is_dir():  # it came by its name when it was ready
        os.utime(directory)
        return directory
    with _alone(engine):
        _forget_old(engine)
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(dir=place()) as stage:
                made = _made(engine, files, Path(stage))
                made.rename(directory)
    return directory


def _forget_old(engine: str) -> None:
    """Copies that nobody has used for a week go."""
    for path in place().glob(f"{engine}-*"):
        if path.stat().st_mtime < time.time() - 7 * 86_400:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(engine: str) -> Iterator[None]:
    """Two runs that begin at once do not make the same copy twice."""
    place().mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(place() / f"{engine}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _made(engine: str, files: dict[str, str], stage: Path) -> Path:
    project = stage / "project"
    for name, text in files.items():
        path = project / "shmpipe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if engine == "pure":
        return project
    for name in _PROJECT:
        shutil.copy(CHECKOUT / name, project / name)
    target = stage / "target"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    if importlib.util.find_spec("Cython") and importlib.util.find_spec("setuptools"):
        command.append("--no-build-isolation")  # what it takes is here already
    environment = {**os.environ, "SHMPIPE_NATIVE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("SHMPIPE_PURE", None)
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(
        [*command, "--target", str(target), str(project)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the instrumented copy cannot be compiled:\n{result.stdout}")
    return target


def environment_for(engine: str) -> dict[str, str]:
    """The environment of a process that uses the copy, and these tests."""
    directory = copy_for(engine)
    # Another checkout may have the same sources, and so the same copy, but other tests.
    mine = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:16]
    tests = place() / f"tests-{mine}"
    tests.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (tests / "tests").symlink_to(CHECKOUT / "tests")
    return {
        **os.environ,
        "PYTHONPATH": f"{directory}{os.pathsep}{tests}",
        "PYTHONSAFEPATH": "1",
        "SHMPIPE_ENGINE": engine,
    }
