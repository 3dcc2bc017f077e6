"""`python -m coordinator` is `periplus coordinator`."""

import sys

from periplus.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["coordinator", *sys.argv[1:]]))
