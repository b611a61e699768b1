"""Tries an installed shmpipe, in an environment that has nothing else: python smoke.py ENGINE

ENGINE, native or pure, is the one that must have been installed.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy

import shmpipe


def answer(conn: Any) -> None:
    """In a child: negatives of arrays, until the end."""
    for array in conn:
        conn.send(-array)


def messages() -> None:
    ours, theirs = shmpipe.Pipe()
    process = get_context("spawn").Process(target=answer, args=(theirs,))
    process.start()
    theirs.close()
    with ours:
        for count in (1, 1_000_000):
            array = numpy.arange(count)
            ours.send(array, timeout=30)
            assert (ours.recv(timeout=30) == -array).all()
    process.join(30)
    assert process.exitcode == 0


def stream() -> None:
    reader, writer = shmpipe.pipe()
    with reader:
        with writer:
            writer.write(b"some bytes")
        assert (reader.read(), reader.read()) == (b"some bytes", b"")


def what_is_installed(engine: str) -> None:
    assert shmpipe.engine == engine, f"the engine is {shmpipe.engine}"
    assert importlib.metadata.version("shmpipe") == shmpipe.__version__
    site = Path(sysconfig.get_path("platlib")).resolve()
    assert site in Path(shmpipe.__file__).resolve().parents, "not what is installed"
    files = [Path(file) for file in importlib.metadata.files("shmpipe") or ()]
    kinds = {file.suffix for file in files if file.parts[0] == "shmpipe"} - {".pyc"}
    assert kinds == {".py", ".typed"} | ({".so"} if engine == "native" else set()), kinds
    tops = {file.parts[0] for file in files} - {"shmpipe", ".."}
    assert len(tops) == 1 and tops.pop().endswith(".dist-info")


def commands() -> None:
    command = Path(sysconfig.get_path("scripts")) / "shmpipe"
    for arguments in (["--version"], ["doctor"], ["seqwc", "--count", "100000"]):
        subprocess.run([command, *arguments], check=True, timeout=120)


if __name__ == "__main__":
    what_is_installed(sys.argv[1])
    messages()
    stream()
    commands()
    print("the package is good")
