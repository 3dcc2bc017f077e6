"""Ranges of the numbers and names in the planner's files, wider than anything real and narrow enough to compute with.

Products and quotients of numbers in these ranges stay far from where floating point ends, and no file stands for more
work than a search can look at. `docs/planner-limits.md` lists them; each key's error names key, value and range.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from periplus.config.loading import Words

_LINE = r"[^\s\p{C}]([^\p{C}\p{Zl}\p{Zp}]*[^\s\p{C}])?"
_PLAIN = Words("without control characters or space at its ends")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=f"^{_LINE}$"), _PLAIN]
"""The name of a region, an accelerator, a model, a file: one line that a person can read and type."""

NameOrNone = Annotated[str, Field(max_length=200, pattern=f"^({_LINE})?$"), _PLAIN]
WanBytesPerS = Annotated[float, Field(ge=1, le=1e13)]
"""A byte a second takes months for the smallest model; 80 Tbit/s is a submarine cable with all its fibres."""
DeviceBytesPerS = Annotated[float, Field(ge=1e3, le=1e16)]
"""Rates of memory, of links in a machine, and of networks between machines."""
FlopPerS = Annotated[float, Field(ge=1e6, le=1e19)]
MemoryBytes = Annotated[int, Field(ge=1, le=10**15)]
LatencyS = Annotated[float, Field(ge=0, le=60)]
RoundTripS = Annotated[float, Field(ge=0, le=3600)]
"""Forty minutes to Mars and back."""
Usd = Annotated[float, Field(ge=0, le=1e6)]
"""Price of a device and hour, or of a gigabyte."""
Fraction = Annotated[float, Field(ge=1e-6, le=1)]
"""Share of a datasheet's rate that is reached."""
MAX_TOKENS = 1e7
Tokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
"""Tokens of one prompt or completion."""

MAX_REGIONS = 256
"""Ways between regions are looked at pair by pair, before the first placement: 65,536 pairs take about a second."""
MAX_MACHINES_ENTRIES = 1024
"""Kinds of machines in one fleet, region by region."""
MAX_SAMPLES_PER_STEP = 10_000_000
MAX_PARAMS = 10**14
"""Parameters of one model, fifty times the largest that anybody has trained."""


def some(names: Sequence[str], most: int = 8) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
