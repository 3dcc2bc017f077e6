"""Ranges of the numbers and names in the planner's files, as annotations of the values' fields.

A value is checked when a file is read (`periplus.config.loading.validate`), and not when code makes one.

They are wider than any real fleet or workload needs. They are narrow enough that products and quotients of the numbers
neither overflow nor underflow, and that a search can handle every valid file. `docs/planner-limits.md` lists them. The
error of a value outside of its range names the key, the value and the range. All bounds were chosen by hand.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, PlainSerializer

from periplus.config.loading import Words

_LINE = r"[^\s\p{C}]([^\p{C}\p{Zl}\p{Zp}]*[^\s\p{C}])?"
_PLAIN = Words("without control characters or space at its ends")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=f"^{_LINE}$"), _PLAIN]
"""Name of a region, an accelerator, a model or a file: one printable line of at most 200 characters."""

NameOrNone = Annotated[str, Field(max_length=200, pattern=f"^({_LINE})?$"), _PLAIN]
"""A name, or the empty string for none."""
Regions = Annotated[frozenset[Name], Field(max_length=10_000), PlainSerializer(sorted)]
"""Names of regions, in a file a sorted list."""
WanBytesPerS = Annotated[float, Field(ge=1, le=1e13)]
"""Rate of a link between regions. At 1 byte per second the smallest model takes months; 10^13 bytes per second
(80 Tbit/s) is about the rate of a submarine cable with all its fibres."""
DeviceBytesPerS = Annotated[float, Field(ge=1e3, le=1e16)]
"""Rate of a device's memory, of links inside a machine, or of networks between machines."""
FlopPerS = Annotated[float, Field(ge=1e6, le=1e19)]
"""Peak rate of one device, in floating-point operations per second."""
MemoryBytes = Annotated[int, Field(ge=1, le=10**15)]
"""Memory of one device."""
LatencyS = Annotated[float, Field(ge=0, le=60)]
"""Latency inside a region, or fixed seconds of one kernel."""
RoundTripS = Annotated[float, Field(ge=0, le=3600)]
"""Round-trip time between regions. The upper end of one hour is more than a round trip to Mars takes."""
Usd = Annotated[float, Field(ge=0, le=1e6)]
"""Price in dollars of one device for one hour, or of one gigabyte of egress."""
Fraction = Annotated[float, Field(ge=1e-6, le=1)]
"""Fraction of a datasheet's rate that programs reach."""
MAX_STEP_S = 1e7
"""Largest limit on seconds per step: four months. It is longer than any useful step, and still small enough for the
solver's floating-point numbers."""
MAX_USD_PER_HOUR = 1e7
"""Largest limit on dollars per hour."""
MOST_SECONDS = 1e18
"""Largest predicted or simulated seconds. Searches treat steps from `IMPOSSIBLE_STEP_S` as impossible, so sums of times
stay below this."""
Seconds = Annotated[float, Field(ge=-MOST_SECONDS, le=MOST_SECONDS)]
"""Predicted seconds."""
StepSeconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
"""Predicted or simulated seconds per step."""
PerSecond = Annotated[float, Field(ge=0, le=1e18)]
"""Predicted or simulated number per second, or per step."""
UsdPerHour = Annotated[float, Field(ge=0, le=1e18)]
"""Predicted dollars per hour."""
Margin = Annotated[float, Field(ge=0, le=10)]
"""Share by which a prediction stays below a limit."""
Count = Annotated[int, Field(ge=1, le=10**12)]
"""Number of units or workers."""
Degree = Annotated[int, Field(ge=1, le=1024)]
"""Degree of parallelism of one task, or number of devices of one process."""
DegreeLimit = Annotated[int, Field(ge=1, le=2**20)]
"""Largest degree of parallelism; 2**20 for no limit."""
RegionCount = Annotated[int, Field(ge=1, le=10**6)]
"""Least or largest number of regions."""
PoolIndex = Annotated[int, Field(ge=0, le=10_000)]
"""Index of a pool within its group."""
Seed = Annotated[int, Field(ge=0, le=2**63)]
"""Seed of a search or of a simulation."""
MAX_TOKENS = 1e7
"""Largest number of tokens of one prompt or completion."""
Tokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
"""Number of tokens of one prompt or completion, at least 1."""

MAX_REGIONS = 256
"""Largest number of regions of a fleet. Routes are computed for every pair of regions before the first placement, which
takes about a second for the 65,536 pairs."""
MAX_MACHINES_ENTRIES = 1024
"""Largest number of `machines` entries of a fleet, over all regions."""
MAX_SAMPLES_PER_STEP = 10_000_000
"""Largest number of samples that one training step consumes."""
MAX_PARAMS = 10**14
"""Largest number of parameters of one model, well beyond published models."""


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first `most` names as text, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
