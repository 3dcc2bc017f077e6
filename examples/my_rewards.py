"""Reward functions of one's own, which examples/my_rewards.yaml names by import path."""

import re
from collections.abc import Sequence
from typing import Any


def score(prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """Return 1 for each completion whose last number is the answer, 0.1 for another number, and 0 for none."""
    del prompts
    return [_score(text, wanted) for text, wanted in zip(completions, answer, strict=True)]


def _score(completion: str, answer: str) -> float:
    numbers = re.findall(r"-?\d+", completion.replace(",", ""))
    if not numbers:
        return 0.0
    return 1.0 if numbers[-1] == answer.replace(",", "") else 0.1
