"""How many generated inputs a property gets: few in the quick tier, all of them in `make test-properties`."""

import os

PERCENT = int(os.environ.get("PERIPLUS_EXAMPLES", "30"))
"""Examples of a property that states no number, and percentage of those that state one.

`make test-properties` takes 100. The quick tier's 30 find each of the bugs that docs/design/0009-layout.md lists.
"""


def examples(number: int) -> int:
    """Return how many of `number` examples this run takes."""
    return max(1, number * PERCENT // 100)
