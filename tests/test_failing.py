"""Every system call that makes or adopts an end fails once: a clear error, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs")
compiler = shutil.which("cc") or shutil.which("gcc")

# Calls that must have been among those that failed, or the walk has not seen them.
EXPECTED = {
    "Pipe": {"memfd_create", "ftruncate", "fcntl", "mmap", "socketpair", "setsockopt"},
    "pipe": {"memfd_create", "ftruncate", "fcntl", "mmap", "socketpair", "setsockopt"},
    "adopted connection, new here": {"fcntl", "pread", "mmap", "setsockopt"},
    "adopted end of a pipe": {"fcntl", "pread", "setsockopt"},
    "fileno of a connection": {"epoll_create1", "eventfd", "epoll_ctl"},
    "lent message": {"mmap"},
    "hand-over": {"fcntl"},
}


@pytest.mark.skipif(compiler is None, reason="needs a C compiler")
def test_every_call_fails_once(tmp_path: Path) -> None:
    shim = tmp_path / "failing.so"
    assert compiler is not None
    source = str(PROGRAMS / "failing.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(shim), source, "-ldl"], check=True
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LD_PRELOAD": str(shim),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "failing.py")],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    found = json.loads(done.stdout)
    for case, calls in EXPECTED.items():
        for error in ("EMFILE", "ENOMEM"):
            failed = {name.removesuffix("64") for name in found[f"{case}, {error}"]}
            assert calls <= failed, f"{case}: only {failed} were reached"
