"""What several commands understand: values on their command lines, and the signal to stop."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_in_bytes(text: str) -> int:
    """``65536``, ``64K`` or ``64KiB``."""
    number = text.lower().removesuffix("ib").removesuffix("b")
    suffix = number[-1:] if number[-1:] in SUFFIXES else ""
    try:
        size = int(number.removesuffix(suffix)) * SUFFIXES[suffix]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (try 4096, 64K or 1M)") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"a size is at least 1 byte: {text!r}")
    return size


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


def spin_seconds(text: str) -> float | None:
    """``auto``, or seconds."""
    if text == "auto":
        return None
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("at least 0 seconds, or auto")
    return seconds


def add_size(parser: argparse.ArgumentParser) -> None:
    """The option for the size of the pipes."""
    parser.add_argument(
        "--size",
        type=size_in_bytes,
        default=65536,
        metavar="BYTES",
        help="size of all the pipes (default: 64K)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option for results that a program is to read."""
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of a table"
    )


def terminated(number: int, frame: object) -> NoReturn:
    """Leave through the code that ends the children."""
    sys.exit(128 + number)
