"""Where a message's time goes, in instructions: ``python -m bench.instructions``.

Counts those of one process that sends 8 bytes to itself and receives them, by valgrind's callgrind.
Unlike seconds they are the same on a busy machine.  What a run has once (starting Python, making
the pipe) is subtracted by measuring two runs of different length.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SHORT, LONG = 2_000, 102_000
_TOTAL = re.compile(r"^([\d,]+) .*PROGRAM TOTALS")
_ROW = re.compile(r"^ *([\d,]+) .*?:(\S+) \[.*/(\S+?)(?:\.cpython\S*)?\.so[\d.]*\]")
_WHOSE = ("__pyx_f_7shmpipe_", "__pyx_pw_7shmpipe_")


def send_and_receive(count: int) -> None:
    import shmpipe

    receiver, sender = shmpipe.Pipe(False)
    send, receive, message = sender.send_bytes, receiver.recv_bytes, b"12345678"
    for _ in range(count):
        send(message)
        receive()


def _counted(count: int, directory: Path) -> tuple[int, dict[str, int]]:
    """Instructions of a run, in all and by function."""
    out = directory / str(count)
    subprocess.run(
        [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"),
            *(sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", __spec__.name),
            str(count),
        ],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    listing = subprocess.run(
        ["callgrind_annotate", "--threshold=100", str(out)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    total, found = 0, dict[str, int]()
    for line in listing.splitlines():
        if match := _TOTAL.match(line):
            total = int(match[1].replace(",", ""))
        elif match := _ROW.match(line):
            name = f"{_short(match[2])}  ({match[3]})"
            found[name] = found.get(name, 0) + int(match[1].replace(",", ""))
    return total, found


def _short(function: str) -> str:
    for prefix in _WHOSE:
        function = function.removeprefix(prefix)
    return function


def main() -> int:
    """Print the functions that take most, per message sent and received."""
    if len(sys.argv) > 1:
        send_and_receive(int(sys.argv[1]))
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        few, by_few = _counted(SHORT, Path(directory))
        many, by_many = _counted(LONG, Path(directory))
    print(f"{(many - few) / (LONG - SHORT):8.0f}  instructions for a message sent and received")
    each = {name: (n - by_few.get(name, 0)) / (LONG - SHORT) for name, n in by_many.items()}
    for name, instructions in sorted(each.items(), key=lambda item: -item[1]):
        if instructions >= 5:
            print(f"{instructions:8.0f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
