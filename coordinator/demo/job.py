"""Which job the demo runs when nobody names one: the example file."""

from pathlib import Path

_HERE = Path(__file__).parent
EXAMPLE = "spelling.yaml"
"""Lies in examples/ of a checkout; the wheel packs a copy beside this module."""


def example_file() -> Path:
    """Return the job file that the demo runs by default."""
    packed, checkout = _HERE / EXAMPLE, _HERE.parents[1] / "examples" / EXAMPLE
    return packed if packed.exists() else checkout
