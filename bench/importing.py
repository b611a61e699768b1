"""How long a new interpreter takes to import each package, timed inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .model import Contender, Sample, Workload
from .peers import Peer
from .processes import Usage, run_program
from .rounds import Plan

GROUP = "import"
# The directory it is started in must not come first on the path, see __main__.
PROGRAM = """\
import sys
from time import perf_counter
sys.path[:] = filter(None, sys.path)
start = perf_counter()
import {module}
end = perf_counter()
sys.stdout.write(repr(end - start))
sys.stdout.flush()
"""


def _runner(module: str, plan: Plan) -> Callable[[int], Sample]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(count: int) -> Sample:
        seconds, total = 0.0, Usage()
        for _ in range(count):
            program = [sys.executable, "-c", PROGRAM.format(module=module)]
            output, usage = run_program(program, environment, plan.timeout)
            # A package may print while it is imported.
            seconds += float(output.split()[-1])
            total += usage
        return Sample(count, seconds, total.cpu, total.switches)

    return run


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    modules = ["shmpipe", "multiprocessing.connection", "multiprocessing.queues", "numpy"]
    modules += [peer.requires[0] for peer in peers if peer.requires]
    return [
        Workload(
            name="import",
            group=GROUP,
            title="Importing (CPU and switches: of the whole interpreter)",
            contenders=[Contender(module, _runner(module, plan)) for module in modules],
            unit="import",
            per="one",
            max_count=5,
        )
    ]
