"""Finds the example job file, which the demo runs when no job is named."""

from pathlib import Path

_HERE = Path(__file__).parent
EXAMPLE = "spelling.yaml"
"""Name of the example job file. A checkout has it in examples/; the wheel has a copy beside this module."""


def example_file() -> Path:
    """Return the job file that the demo runs by default."""
    packed, checkout = _HERE / EXAMPLE, _HERE.parents[1] / "examples" / EXAMPLE
    return packed if packed.exists() else checkout
