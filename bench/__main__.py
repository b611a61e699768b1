"""``python -m bench``: see ``--help``."""

import sys

from .main import main

sys.exit(main())
