"""Make `python -m coordinator ARGUMENTS` the same as `periplus coordinator ARGUMENTS`."""

import sys

from periplus.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["coordinator", *sys.argv[1:]]))
