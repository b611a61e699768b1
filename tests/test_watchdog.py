"""The guard itself: hangs of every kind end the run, and are explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import support

ROOT = Path(__file__).resolve().parent.parent

HANGS = {
    "blocked read": "os.read(os.pipe()[0], 1)",
    "busy": "while True: pass",
    "signals refused": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)); time.sleep(1000)",
    "child": "support.run_child(time.sleep, 1000).join(1000)",
    "bare fork": "os.fork(); time.sleep(1000)",
    "orphan": "support.run_child(orphan).join(); time.sleep(1000)",
    "spawned": "support.run_process('spawn', time.sleep, 1000).join(1000)",
}


def run_pytest(
    tmp_path: Path, body: str, marker: str = "@pytest.mark.timeout_s(1)"
) -> subprocess.CompletedProcess[str]:
    """Run one test with this body in a pytest of its own; it writes descendants to pids.txt."""
    (tmp_path / "test_inner.py").write_text(
        "import os, signal, socket, sys, threading, time, pytest\n"
        "from tests import children, support\n"
        "def remember(pid):\n"
        f"    open({str(tmp_path / 'pids.txt')!r}, 'a').write(f'{{pid}}\\n')\n"
        "original = children.register_pid\n"
        "def register_pid(pid):\n"
        "    remember(pid)\n"
        "    original(pid)\n"
        "children.register_pid = register_pid\n"
        "os.register_at_fork(after_in_child=lambda: remember(os.getpid()))\n"
        "def orphan():\n    support.run_child(time.sleep, 1000)\n"
        f"{marker}\n"
        f"def test_inner():\n    {body}\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        + ["-q", "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path / "test_inner.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SHMPIPE_TEST_TIMEOUT_FACTOR": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )


def living(tmp_path: Path) -> list[int]:
    """Which of the processes that the inner test started are still there."""
    path = tmp_path / "pids.txt"
    pids = [int(line) for line in path.read_text().split()] if path.exists() else []
    return [pid for pid in pids if (support.task_state(pid, pid) or "X")[0] not in "ZX"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANGS)
def test_hang_is_ended_and_explained(tmp_path: Path, kind: str) -> None:
    done = run_pytest(tmp_path, HANGS[kind])
    output = done.stdout + done.stderr
    assert done.returncode == -signal.SIGKILL, output
    assert "test_inner: not over after 1 s" in output
    if kind != "signals refused":
        assert 'test_inner.py", line' in output and "most recent call first" in output
    support.eventually(lambda: not living(tmp_path))


def test_dead_test_process_takes_its_children_along(tmp_path: Path) -> None:
    body = "support.run_child(time.sleep, 1000); os.kill(os.getpid(), 9)"
    assert run_pytest(tmp_path, body).returncode == -signal.SIGKILL
    assert (tmp_path / "pids.txt").exists()
    support.eventually(lambda: not living(tmp_path))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("os.pipe()", "file descriptors left open"),
        ("support.run_child(time.sleep, 1000)", "still running at the end of the test"),
        ("support.run_thread(time.sleep, 1000)", "still running at the end of the test"),
        ("open('/dev/shm/shmpipe-test-%d' % os.getpid(), 'w').close()", "left in /dev/shm"),
    ],
)
def test_leftovers_are_reported(tmp_path: Path, body: str, complaint: str) -> None:
    try:
        done = run_pytest(tmp_path, body, "")
    finally:
        for path in Path("/dev/shm").glob("shmpipe-test-*"):
            path.unlink()
    assert done.returncode == 1
    assert complaint in done.stdout


def test_clean_test_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "assert support.run_child(os.getpid).join() != os.getpid()", "")
    assert done.returncode == 0, done.stdout + done.stderr
