"""``python -m bench``: see ``--help``."""

import os
import sys
from pathlib import Path

# The directory this was started from comes first on the path. Last is where it belongs: then an
# installed shmpipe, which may be compiled, goes before the sources of the checkout.
_here = str(Path(__file__).resolve().parent.parent)
sys.path[:] = [entry for entry in sys.path if entry not in ("", _here)] + [_here]

# Before anything imports NumPy: its threads must not be there when processes are forked.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from .main import main  # noqa: E402

sys.exit(main())
