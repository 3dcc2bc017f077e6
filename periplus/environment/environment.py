"""What a source of prompts promises: a fixed, indexed set of items, and a verifiable score for a completion.

Items are addressed by index, so that a lease can name one without carrying it, and any process that built the
environment from the same configuration sees the same item. Scoring is a function of (index, completion) alone: which
worker scores, and when, changes nothing. An environment knows neither tokens nor policies.
"""

from dataclasses import dataclass
from typing import Protocol

EXACT = 1.0  # the score of a right answer: accuracy counts scores that equal it, the reward may be partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One prompt with the answer that a warm-up may teach."""

    index: int
    prompt: str
    answer: str


class Environment(Protocol):
    """An indexed set of items with a scorer."""

    def __len__(self) -> int: ...

    def item(self, index: int) -> Item:
        """The item at `index`, the same in every process."""
        ...

    def score(self, index: int, completion: str) -> float:
        """How good the decoded completion is, in [0, 1]; `EXACT` means right."""
        ...
