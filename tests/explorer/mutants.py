"""The protocol without one of its steps: what the explorer must notice.

A step is marked in the source, behind a statement or on a line of its own above it:

    # step: NAME              left out
    # step: NAME (never)      of an ``if``: its test is false
    # step: NAME (always)     of an ``if``: its test is true
    # step: NAME (late n)     done n statements later (without a number: 1)
    # step: NAME (early n)    done n statements earlier

Each is changed in the code of its function, while a search runs.
"""

from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Iterator
from typing import Any

from .loading import DIRECTORY, MODULES, code

_MARK = re.compile(r"#.*\bstep: ([a-z0-9-]+)(?: \((never|always|(?:late|early)(?: \d+)?)\))?$")


class Mutant:
    """One step, and what is done to it."""

    def __init__(self, module: str, line: int, name: str, how: str) -> None:
        self.module, self.line, self.name, self.how = module, line, name, how

    def __repr__(self) -> str:
        return f"{self.name} ({self.module}.py:{self.line}, {self.how or 'left out'})"


def mutants() -> list[Mutant]:
    """All of them, from the markers in the sources."""
    found = []
    for module in MODULES:
        lines = (DIRECTORY / f"{module}.py").read_text().splitlines()
        for number, line in enumerate(lines, 1):
            match = _MARK.search(line)
            if match:
                above = line.lstrip().startswith("#")
                found.append(Mutant(module, number + above, match[1], match[2] or ""))
    return found


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The function concerned runs changed."""
    tree = ast.parse((DIRECTORY / f"{mutant.module}.py").read_text())
    path, body, at = _find(tree, mutant)
    _change(body, at, mutant)
    ast.fix_missing_locations(tree)
    # The same name for the file: whoever reads tracebacks finds the place.
    module: Any = getattr(code, mutant.module)
    changed = _code(compile(tree, str(module.__file__), "exec"), path)
    function = _function(module, path)
    before = function.__code__
    function.__code__ = changed
    try:
        yield
    finally:
        function.__code__ = before


def _find(tree: ast.Module, mutant: Mutant) -> tuple[list[str], list[ast.stmt], int]:
    """Of the marked statement: the names around it, the block that it is in, and where."""
    best: Any = None

    def visit(node: ast.AST, path: list[str]) -> None:
        nonlocal best
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for at, statement in enumerate(block):
                if statement.lineno <= mutant.line <= _head_end(statement):
                    best = path, block, at
                inner = path
                if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                    inner = [*path, statement.name]
                visit(statement, inner)
        for handler in getattr(node, "handlers", []):
            visit(handler, path)

    visit(tree, [])
    if best is None:
        raise ValueError(f"there is no statement at {mutant}")
    return best  # type: ignore[no-any-return]


def _head_end(statement: ast.stmt) -> int:
    if isinstance(statement, ast.If | ast.While):
        return statement.test.end_lineno or 0
    if hasattr(statement, "body"):
        return statement.lineno
    return statement.end_lineno or 0


def _change(block: list[ast.stmt], at: int, mutant: Mutant) -> None:
    statement, how = block[at], mutant.how
    if how in ("never", "always"):
        if not isinstance(statement, ast.If):
            raise ValueError(f"not an if: {mutant}")
        statement.test = ast.Constant(how == "always")
    elif how:
        word, _, count = how.partition(" ")
        to = at + int(count or 1) * (1 if word == "late" else -1)
        if not 0 <= to < len(block):
            raise ValueError(f"no such place in the block: {mutant}")
        block.insert(to, block.pop(at))
    else:
        block[at] = ast.Pass(lineno=statement.lineno, col_offset=0)


def _code(outer: types.CodeType, path: list[str]) -> types.CodeType:
    for name in path:
        outer = next(
            const
            for const in outer.co_consts
            if isinstance(const, types.CodeType) and const.co_name == name
        )
    return outer


def _function(module: Any, path: list[str]) -> Any:
    found = module
    for name in path:
        found = vars(found)[name]
        found = getattr(found, "__func__", found)
    return found
