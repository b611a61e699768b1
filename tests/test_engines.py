"""The two engines: which one runs, and that all of it does."""

from __future__ import annotations

import ast
import importlib
import inspect
import multiprocessing
import multiprocessing.forkserver
import os
import re
import subprocess
import sys
from pathlib import Path
from types import MethodDescriptorType
from typing import Any

import numpy
import pytest

import shmpipe
from shmpipe import segment

from .support import START_METHODS, run_process

PACKAGE = Path(shmpipe.__file__).parent
CHECKOUT = Path(__file__).resolve().parent.parent
# What nothing depends on for speed; everything else has to be in setup.py's list.
INTERPRETED = {
    "__init__",
    "__main__",
    "_engine",
    "_version",
    "answers",
    "arrays",
    "errors",
    "layouts",
    "naming",
    "patch",
    "peers",
    "rendezvous",
    "stats",
    "variables",
}


def modules() -> tuple[str, ...]:
    """The list in setup.py, without running it."""
    tree = ast.parse((CHECKOUT / "setup.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MODULES":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("setup.py names no MODULES")


def files_of_modules() -> list[str]:
    return [str(importlib.import_module(f"shmpipe.{name}").__file__) for name in modules()]


def test_every_module_is_named() -> None:
    found = {path.stem for path in (CHECKOUT / "shmpipe").glob("*.py")}
    assert found - INTERPRETED == set(modules())


@pytest.mark.once
def test_modules_know_only_those_above_them() -> None:
    """In the table of the design, which has them all."""
    design = (CHECKOUT / "docs" / "design.md").read_text()
    rows = [
        re.findall(r"`(\w+)`", line.split("|")[1])
        for line in design.splitlines()
        if line[:3] == "| `"
    ]
    rank = {module: number for number, row in enumerate(rows) for module in row}
    paths = [p for p in (CHECKOUT / "shmpipe").glob("*.py") if not p.stem.startswith("_")]
    below = []
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                known = [node.module] if node.module else [alias.name for alias in node.names]
                below += [(path.stem, name) for name in known if not name.startswith("_")]
    assert [(one, other) for one, other in below if rank[other] > rank[one]] == []


def test_every_module_is_of_the_engine() -> None:
    suffix = {"native": ".so", "pure": ".py"}[shmpipe.engine]
    assert [path for path in files_of_modules() if not path.endswith(suffix)] == []


@pytest.mark.parametrize("method", START_METHODS)
def test_children_run_the_same_engine(method: str) -> None:
    assert run_process(method, files_of_modules).join(20) == files_of_modules()


def answer(connection: Any, count: int) -> str:
    for _ in range(count):
        connection.send(connection.recv())
    return shmpipe.engine


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_both_engines_share_a_pipe(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large messages, and those larger than the ring, both ways."""
    if not any(PACKAGE.glob("primitives.*.so")):
        pytest.skip("there is only one engine here")
    other = {"native": "pure", "pure": "native"}[shmpipe.engine]
    ours, theirs = shmpipe.Pipe(size=1 << 16)
    messages: list[Any] = [1, {"a": [2]}, b"x" * 50_000, numpy.arange(100_000), "y" * 300_000]
    with ours, theirs:
        if method == "forkserver":
            multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
        monkeypatch.setenv("SHMPIPE_ENGINE", other)
        child = run_process(method, answer, theirs, 20 * len(messages))
        for _ in range(20):
            for message in messages:
                ours.send(message)
                assert numpy.array_equal(ours.recv(timeout=30), message)
        assert child.join(20) == other
        if method == "forkserver":
            multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def run(value: str) -> Any:
    environment = {**os.environ, "SHMPIPE_ENGINE": value}
    program = "import shmpipe; print(shmpipe.engine, shmpipe.Pipe()[0])"
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_connections_say_what_their_methods_take() -> None:
    """Compiled ones, too, of which only a line in their documentation is left."""
    tree = ast.parse((CHECKOUT / "shmpipe" / "connection.py").read_text())
    [body] = [node.body for node in tree.body if getattr(node, "name", "") == "Connection"]
    methods = [node for node in body if isinstance(node, ast.FunctionDef)]
    assert len(methods) > 20
    if shmpipe.engine == "native":  # the interpreter calls these without a detour
        assert type(shmpipe.Connection.send_bytes) is MethodDescriptorType
    for method in methods:
        if method.name.startswith("__"):
            continue
        told = inspect.signature(getattr(shmpipe.Connection, method.name)).parameters.values()
        taken = method.args
        names = [argument.arg for argument in (*taken.args, *taken.kwonlyargs)]
        defaults = [ast.literal_eval(value) for value in (*taken.defaults, *taken.kw_defaults)]
        assert [parameter.name for parameter in told] == names, method.name
        assert [
            parameter.default for parameter in told if parameter.default is not parameter.empty
        ] == defaults, method.name
        by_name = [parameter.name for parameter in told if parameter.kind == parameter.KEYWORD_ONLY]
        assert by_name == [argument.arg for argument in taken.kwonlyargs]
        assert ast.get_docstring(method) == inspect.getdoc(getattr(shmpipe.Connection, method.name))


def test_pure_can_always_be_had() -> None:
    result = run("pure")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("pure <shmpipe.connection.Connection recv/send>")


def test_native_is_an_error_where_it_is_not_installed() -> None:
    result = run("native")
    if any(PACKAGE.glob("primitives.*.so")):
        assert result.stdout.startswith("native <shmpipe.connection.Connection recv/send>")
    else:
        assert result.returncode == 1
        assert "ImportError: SHMPIPE_ENGINE=native" in result.stderr


def test_another_engine_is_an_error() -> None:
    result = run("quick")
    assert result.returncode == 1
    assert "ImportError: SHMPIPE_ENGINE=quick: allowed are pure and native" in result.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_without_the_global_lock_it_says_so(enabled: bool) -> None:
    """A free-threaded Python is simulated: what counts there is whether the lock is on."""
    program = f"import sys; sys._is_gil_enabled = lambda: {enabled}; import shmpipe"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.returncode == 0) == enabled, result.stderr
    assert (
        "ImportError: shmpipe does not work without Python's global" in result.stderr
    ) != enabled


def declared(text: str) -> set[str]:
    """The C variables that a .pxd declares for its module."""
    found = set()
    for types, names in re.findall(r"^cdef (int|u?int\d+_t|double) ([\w, ]+)$", text, re.MULTILINE):
        found |= {name.strip() for name in names.split(",")}
        assert types
    return found


# Those that look words up only while something is made are left out.
IN_A_HURRY = sorted(
    {path.stem for path in (CHECKOUT / "shmpipe").glob("*.pxd")}
    - {"primitives", "locking", "connection", "ends"}
)


@pytest.mark.parametrize("name", IN_A_HURRY)
def test_words_are_c_variables_where_they_are_used(name: str) -> None:
    """A word's index that is left a Python object is right, and slow."""
    source = ast.parse((CHECKOUT / f"shmpipe/{name}.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module == "segment"
        for alias in node.names
        if isinstance(getattr(segment, alias.name), int)
    }
    cdefs = declared((CHECKOUT / f"shmpipe/{name}.pxd").read_text())
    missing = {word for word in imported if word.isupper()} - cdefs - {"RD_WAIT", "WR_WAIT"}
    assert not missing
