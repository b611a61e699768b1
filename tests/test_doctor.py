"""``shmpipe doctor``: all is well where the tests run, and what is not there is told."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

import shmpipe
from shmpipe.__main__ import main
from shmpipe.commands import doctor
from shmpipe.commands.table import byte_count
from shmpipe.control import LARGEST, system_max_size
from shmpipe.waiting import spin_limit

COMMAND = [sys.executable, "-I", "-m", "shmpipe", "doctor"]


def findings(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, doctor.Finding]]:
    """The exit status and what was found, by name."""
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["shmpipe"] == shmpipe.__version__
    return status, {one["name"]: doctor.Finding(**one) for one in report["findings"]}


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = findings(capsys)
    assert status == 0
    assert [one.name for one in found.values()] == [check.name for check in doctor.CHECKS]
    assert doctor.MISSING not in {one.state for one in found.values()}
    assert found["engine"].found == shmpipe.engine
    assert found["CPUs"].found.startswith(f"{len(os.sched_getaffinity(0))} usable")
    assert found["tokens per socket"].found[0].isdecimal()
    spin = spin_limit(None)
    assert (f"{spin * 1e6:g} µs" if spin else "off") in found["spinning"].found
    largest = f"up to {byte_count(LARGEST)} when made; "
    assert found["pipe sizes"].found.startswith(largest)
    assert found["pipe sizes"].found.endswith(f"grows one up to {byte_count(system_max_size())}")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit == resource.RLIM_INFINITY or str(limit) in found["descriptors"].found


def test_what_a_pipe_takes_of_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = shmpipe.pipe()
    with reader, writer:
        reader.fileno()
        assert len(os.listdir("/proc/self/fd")) - before == doctor.FDS_OF_A_PIPE


def test_few_descriptors() -> None:
    code = (
        "import resource, sys; from shmpipe.__main__ import main;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 64)); sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if " descriptors " in line]
    assert line.split()[0] == doctor.SLOWER
    assert "limit 32 (can be raised to 64)" in line
    assert "ulimit -n" in done.stdout  # what it means


def fails() -> tuple[str, str]:
    raise OSError("not on this machine")


@pytest.mark.parametrize(
    ("otherwise", "status"), [(doctor.MISSING, 1), (doctor.SLOWER, 0)], ids=["needed", "not needed"]
)
def test_what_is_missing(
    otherwise: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = doctor.Check("good", lambda: (doctor.GOOD, "there"), "Is for something.")
    bad = doctor.Check("bad", fails, "Nothing goes without it.", otherwise)
    monkeypatch.setattr(doctor, "CHECKS", (bad, good))
    assert main(["doctor"]) == status
    output, errors = capsys.readouterr()
    assert f"{otherwise:8} bad   OSError: not on this machine" in output
    assert "Nothing goes without it." in output
    assert "Is for something." not in output
    assert ("there can be no pipes here: bad" in errors) == bool(status)
    main(["doctor", "--verbose"])
    assert "Is for something." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "name", "check"),
    [
        ("os", "memfd_create", "sealed memory"),
        ("os", "eventfd", "eventfd"),
        ("os", "pidfd_open", "pidfd"),
        ("select", "epoll", "nested epoll"),
        ("fcntl", "flock", "lock of a file"),
    ],
)
def test_each_thing_is_tried(
    module: str,
    name: str,
    check: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: object) -> Callable[[], None]:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(sys.modules[module], name, refused)
    status, found = findings(capsys)
    monkeypatch.undo()
    assert found[check].state != doctor.GOOD
    assert "not permitted" in found[check].found
    assert (status == 1) == (found[check].state == doctor.MISSING)
