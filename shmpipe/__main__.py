"""``python -m shmpipe``, installed as ``shmpipe``: measurements and tools around the pipe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from shmpipe._version import __version__
from shmpipe.commands import COMMANDS, load
from shmpipe.commands.table import replace_unprintable


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``args.run`` is the function of the chosen command."""
    parser = argparse.ArgumentParser(
        prog="shmpipe",
        description="Measurements and tools around a pipe in shared memory.",
    )
    parser.add_argument("--version", action="version", version=f"shmpipe {__version__}")
    subparsers = parser.add_subparsers(metavar="command", required=True)
    for name in COMMANDS:
        command = load(name)
        subparser = subparsers.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process); returns the exit status."""
    replace_unprintable()
    args = make_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
