"""Benchmarks of shmpipe beside its peers: ``python -m bench`` from the checkout.

Every figure comes from real processes, and everything that is compared was measured in the same
run, in turns: noise of the machine hits all alike.

``python -m bench.wake_curves`` is about the wake-up of writers alone, see docs/wakeups.md; it is
made of ``python -m bench.seq_wc`` and ``python -m bench.pipe_bench``.
"""

import os
import sys
from pathlib import Path

# The directory that a program here was started from comes first on the path. Last is where it
# belongs: then an installed shmpipe, which may be compiled, goes before the checkout's sources.
_here = str(Path(__file__).resolve().parent.parent)
sys.path[:] = [entry for entry in sys.path if entry not in ("", _here)] + [_here]

# Before anything imports NumPy: its threads must not be there when processes are forked.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
