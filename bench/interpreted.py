"""shmpipe with the engine for machines without a C compiler, beside the compiled one.

A process has one engine, so this contender has an interpreter of its own, and that one forks the
sender and the receiver.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict

import shmpipe

from .model import Contender, Sample
from .peers.shm import ShmPipe
from .processes import run_program
from .rounds import Plan
from .streams import runner

NAME = "shmpipe, engine pure"
SIZES = (8, 1 << 20)
PROGRAM = """\
import sys
sys.path[:] = filter(None, sys.path)
from bench.interpreted import measure
measure(*map(int, sys.argv[1:3]), float(sys.argv[3]))
"""


def contenders(size: int, plan: Plan) -> list[Contender]:
    """The one, or none where the other engine is not compiled either."""
    return [] if shmpipe.engine == "pure" else [Contender(NAME, _runner(size, plan))]


def _runner(size: int, plan: Plan) -> Callable[[int], Sample]:
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "SHMPIPE_ENGINE": "pure"}

    def run(count: int) -> Sample:
        arguments = [str(size), str(count), str(plan.timeout)]
        output, _ = run_program(
            [sys.executable, "-c", PROGRAM, *arguments], environment, plan.timeout
        )
        return Sample(**json.loads(output))

    return run


def measure(size: int, count: int, timeout: float) -> None:
    """In the other interpreter: print what a run of ``count`` messages took."""
    from .streaming import plain_flow

    assert shmpipe.engine == "pure"
    run = runner(ShmPipe(), plain_flow(size), Plan(timeout=timeout))
    print(json.dumps(asdict(run(count))))
