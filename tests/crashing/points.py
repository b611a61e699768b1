"""The steps of the package at which a process may be killed, found in its sources.

A step is a statement that others can see something of: it stores into shared memory, works on a
semaphore or a file lock, sends or eats a token, or gives up, hands over or adopts a descriptor.
They are found by how they are written, so a new one cannot be forgotten.  A mark ``step: NAME``
(see ``explorer.mutants``) or ``crash: NAME``, behind the statement or on a line of its own above
it, names a step or makes one where the pattern sees none; ``no crash: why`` takes one out.

The making of a new pipe is left out: nobody else has it yet.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

MODULES = (
    "arrivals",
    "bytering",
    "collecting",
    "connection",
    "control",
    "doorbell",
    "ends",
    "filelock",
    "frames",
    "lending",
    "locking",
    "pagering",
    "pipe",
    "places",
    "readers",
    "receiving",
    "ring",
    "segment",
    "sending",
    "stepping",
    "stream",
    "waiting",
    "writers",
)
AT = "_at_step"

_MARK = re.compile(
    r"#.*\b(?<!no )(?:step|crash): ([a-z0-9-]+)(?: \((?:never|always|(?:late|early)(?: \d+)?)\))?$"
)
_LEFT_OUT = re.compile(r"#.*\bno crash: \S")
# Windows onto the segment, by the names that they have.
_SHARED = {"words", "_words", "view", "numbers", "ends", "data", "headers", "header"}
_CALLS = {
    "DupFd",
    "_let_go",
    "acquire",
    "adopted",
    "attach",
    "copy_in",
    "eventfd_read",
    "eventfd_write",
    "flock",
    "keep",
    "lend",
    "lockf",
    "madvise",
    "owned",
    "poll_fd",
    "recv",
    "release",
    "send",
    "setsockopt",
    "wait",
}
# Of whom such a call concerns nobody else, or leads to steps of its own.
_OWN = {"local", "view", "room", "whole", "piece", "receiver", "sender", "self"}
_OF_SELF = {"acquire", "_let_go"}
# What happens while nobody else has the pipe, or to a forked child's own things.
_NOT_IN = {
    "Pipe",
    "_after_fork",
    "_close_unborn",
    "_sockets",
    "adopted",
    "create",
    "doorbells",
    "first_settings",
    "name_doors",
    "owned",
    "pipe",
}


def marks(source: str) -> dict[int, str]:
    """The names in the source's marks, by the line that each is about."""
    return {
        number + line.lstrip().startswith("#"): match[1]
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _MARK.search(line))
    }


def instrumented(source: str, module: str) -> tuple[str, list[str]]:
    """The module with a call at each of its steps, and the steps' names in order.

    ValueError: a mark that belongs to no statement.
    """
    tree = ast.parse(source)
    transform = _Transform(source, module)
    transform.block(tree.body, "")
    lost = transform.marks.keys() - transform.seen
    if lost:
        raise ValueError(f"marks without a statement: {module}.py, lines {sorted(lost)}")
    if transform.names:
        _add_import(tree)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", transform.names


def _add_import(tree: ast.Module) -> None:
    place = next(
        at + 1
        for at, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    )
    tree.body[place:place] = ast.parse(f"from ._steps import at as {AT}").body


class _Transform:
    def __init__(self, source: str, module: str) -> None:
        self.module = module
        self.marks = marks(source)
        self.left_out = {
            number + line.lstrip().startswith("#")
            for number, line in enumerate(source.splitlines(), 1)
            if _LEFT_OUT.search(line)
        }
        self.seen: set[int] = set()
        self.names: list[str] = []
        self._count: Counter[str] = Counter()

    def block(self, body: list[ast.stmt], function: str) -> None:
        """Put the calls into a block, and into those inside it."""
        out: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                inside = function if isinstance(statement, ast.ClassDef) else statement.name
                if inside not in _NOT_IN:
                    self.block(statement.body, inside)
                out.append(statement)
                continue
            name = self._name_of(statement, function)
            if name is not None:
                out.append(_call(name))
            self._inner_blocks(statement, function)
            if name is not None and isinstance(statement, ast.While):
                statement.body.insert(0, _call(name))  # each round of it is one
            out.append(statement)
        body[:] = out

    def _inner_blocks(self, statement: ast.stmt, function: str) -> None:
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            if inner:
                self.block(inner, function)
        for handler in getattr(statement, "handlers", []):
            self.block(handler.body, function)

    def _name_of(self, statement: ast.stmt, function: str) -> str | None:
        """The name of the step that a statement is; None: it is none."""
        lines = range(statement.lineno, _head_end(statement) + 1)
        for line in lines:
            if line in self.marks:
                self.seen.add(line)
                self.names.append(self.marks[line])
                return self.marks[line]
        what = None if self.left_out.intersection(lines) or not function else _access(statement)
        if what is None:
            return None
        name = f"{self.module}.{function}.{what}"
        self._count[name] += 1
        if self._count[name] > 1:
            name = f"{name}-{self._count[name]}"
        self.names.append(name)
        return name


def _head_end(statement: ast.stmt) -> int:
    if isinstance(statement, ast.If | ast.While):
        return statement.test.end_lineno or 0
    if hasattr(statement, "body"):
        return statement.lineno
    return statement.end_lineno or 0


def _call(name: str) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(AT, ast.Load()), [ast.Constant(name)], []))


def _access(statement: ast.stmt) -> str | None:
    """What a statement does to what is shared, in a word; None: nothing."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Subscript) and _last(target.value) in _SHARED:
                return _last(target.slice) or _last(target.value)
    if isinstance(statement, ast.If | ast.While):
        heads: list[ast.AST] = [statement.test]
    elif isinstance(statement, ast.For):
        heads = [statement.iter]
    elif isinstance(statement, ast.With):
        heads = [item.context_expr for item in statement.items]
    elif hasattr(statement, "body"):
        heads = []
    else:
        heads = [statement]
    for head in heads:
        for node in ast.walk(head):
            if isinstance(node, ast.Lambda):
                break
            if isinstance(node, ast.Call) and _is_access(node.func):
                return _last(node.func)
    return None


def _is_access(function: ast.expr) -> bool:
    name = _last(function)
    if name not in _CALLS:
        return False
    if not isinstance(function, ast.Attribute):
        return name != "release"  # the function that releases views
    owner = _last(function.value)
    return owner not in _OWN or (owner == "self" and name in _OF_SELF)


def _last(node: ast.AST) -> str:
    """The name that an expression ends with; "": it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
