"""The subcommands of ``python -m shmpipe``: one module each, named in the table below.

Such a module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(args)``, which returns
the exit status. All of them are imported to build the parser, whichever is then called, so what
is slow to import (NumPy) is imported inside ``run``.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

COMMANDS = {
    "seqwc": "shmpipe.commands.seqwc",
    "bench": "shmpipe.commands.bench",
    "top": "shmpipe.commands.top",
    "doctor": "shmpipe.commands.doctor",
}


class Command(Protocol):
    """What each module in the table provides."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def load(name: str) -> Command:
    """The module of the subcommand `name`."""
    return cast(Command, importlib.import_module(COMMANDS[name]))
