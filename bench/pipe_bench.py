"""``python -m bench.pipe_bench``: the command ``shmpipe bench``, from the checkout."""

import sys

from shmpipe.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
