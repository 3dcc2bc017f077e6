"""`python -m region_agent` runs the command `periplus agent`."""

import sys

from periplus.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["agent", *sys.argv[1:]]))
