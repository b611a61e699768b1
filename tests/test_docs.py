"""The programs in README.md and docs/ run, and print what is written below them.

A block that is fenced with ```python is a program of its own: it runs as a script, writes nothing
to stderr and ends with status 0. Where a block fenced with ```output comes next, that is what it
prints. Any other fence, such as ```python fragment, is not run. Commands in ```sh blocks have to be
there, and to know their options; they are not run either.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shmpipe.__main__ import make_parser

from .support import register_pid

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if page.exists()]
FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *(.*?) *$")


@dataclass
class Block:
    page: str
    line: int  # of the first line of its text
    info: str
    text: str
    output: str | None = None  # the ```output block that follows

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a Markdown page, in their order."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence is not None:
                opened, lines = fence, []
                found.append(Block(page, number + 1, fence[3], ""))
        elif fence is not None and fence[2].startswith(opened[2]) and not fence[3]:
            found[-1].text = "".join(f"{line}\n" for line in lines)
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]))
    assert opened is None, f"{found[-1]} does not end"
    for before, block in itertools.pairwise(found):
        if block.info == "output":
            assert before.info == "python", f"{block} is the output of no program"
            before.output = block.text
    return found


def programs() -> list[Block]:
    blocks = [
        b for page in PAGES for b in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text())
    ]
    return [block for block in blocks if block.info == "python"]


def commands() -> list[tuple[str, list[str]]]:
    """Each command in the ```sh blocks, with where it stands."""
    found = []
    for page in PAGES:
        for block in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text()):
            for line in block.text.splitlines() if block.info == "sh" else ():
                words = shlex.split(line, comments=True)
                for ampersands, part in itertools.groupby(words, lambda word: word == "&&"):
                    if not ampersands:
                        found.append((str(block), list(part)))
    return found


def run(text: str, directory: Path) -> tuple[int, str, str]:
    """Run a program; its exit status, output and errors."""
    script = directory / "program.py"  # a file, so that spawned children can import it
    script.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    register_pid(process.pid)
    try:
        # At an end of both outputs the children are gone as well.
        output, errors = process.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        errors += "not over after 40 s"
    return process.returncode, output, errors


def check(block: Block, text: str, directory: Path) -> None:
    status, output, errors = run(text, directory)
    assert (status, errors) == (0, ""), f"{block}\n{errors}"
    if block.output is not None:
        assert output == block.output, f"{block}"


@pytest.mark.parametrize("block", programs(), ids=str)
def test_program(block: Block, tmp_path: Path) -> None:
    check(block, block.text, tmp_path)


@pytest.mark.parametrize(("where", "words"), commands(), ids=str)
def test_command(where: str, words: list[str]) -> None:
    match words:
        case ["python" | "python3", "-m", module, *arguments]:
            name = module
        case [program, *arguments]:
            name = program.removeprefix("~/venv/bin/")
    if name == "shmpipe":
        make_parser().parse_args(arguments)  # exits if it does not know them
    elif name.partition(".")[0] == "bench":
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), where
    elif name.startswith("./tools/"):
        tool = ROOT / name
        assert os.access(tool, os.X_OK), where
        assert all(argument in tool.read_text() for argument in arguments), where
    else:
        assert [name, *arguments] in (["venv", "~/venv"], ["pip", "install", "."]), where


def test_switch_between_memory_and_tcp(tmp_path: Path) -> None:
    """With its one line changed, the example does the same over TCP."""
    line = "\nstart = start_in_memory "
    (block,) = [block for block in programs() if line in block.text]
    assert block.text.count(line) == 1 and block.output
    check(block, block.text.replace(line, "\nstart = start_over_tcp "), tmp_path)


def test_blocks_are_found() -> None:
    text = (
        "text\n```python\na = 1\n\nprint(a)\n```\n\n```output\n1\n```\n"
        "* item\n\n  ~~~ python fragment\n  ```\n    ...\n  ~~~\n```\n```\n"
    )
    assert blocks_of("page", text) == [
        Block("page", 3, "python", "a = 1\n\nprint(a)\n", "1\n"),
        Block("page", 9, "output", "1\n"),
        Block("page", 14, "python fragment", "```\n  ...\n"),
        Block("page", 18, "", ""),
    ]
    with pytest.raises(AssertionError, match="page:2 does not end"):
        blocks_of("page", "```python\nprint()\n")
    with pytest.raises(AssertionError, match="output of no program"):
        blocks_of("page", "```text\n```\n```output\n```\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise SystemExit(3)", "3"),
        ("import sys; print('oh', file=sys.stderr)", "oh"),
        ("print('other')", "other"),
    ],
)
def test_a_program_that_does_something_else_is_seen(
    text: str, complaint: str, tmp_path: Path
) -> None:
    block = Block("page", 1, "python", text, "expected\n")
    with pytest.raises(AssertionError, match=complaint):
        check(block, text, tmp_path)
