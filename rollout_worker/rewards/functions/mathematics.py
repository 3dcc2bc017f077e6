"""The reward `math`: whether the completion's final answer is mathematically equal to the problem's (math-verify).

The library bounds each parse and each comparison by SIGALRM, which works only in a process's main thread; a reward
process calls functions there. A completion that is not understood in that time is wrong, as it is for the library.
What the alarm cannot stop, such as one long operation on whole numbers, the pool's own time limit ends.

*Deviation:* an answer with `####` in it, as GSM8K has them, is what follows the last of these.
"""

import functools
import importlib
import logging
from typing import Any

from rollout_worker.rewards.functions.completions import ScoredText, Settings, SingleFunction

ANSWERS_KEPT = 1 << 14
"""Number of parsed answers that are kept: a problem is scored once for each sample of its group. Chosen by hand."""

SHARE = 3
"""Parses and comparisons of one call: the answer, the completion, and whether they are equal."""


def build(settings: Settings) -> SingleFunction:
    """Return the function: 1 if the answers are equal, else 0. Raises: ImportError without math-verify."""
    library: Any = importlib.import_module("math_verify")
    # It logs each completion that it does not understand, with a traceback.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    # Together they stay below the pool's limit. The alarm knows whole seconds only.
    limit_s = max(1, int(settings["timeout_s"] / SHARE))

    @functools.lru_cache(maxsize=ANSWERS_KEPT)
    def gold(answer: str) -> Any:
        # In a box it is read as LaTeX as well as a number or a word.
        return library.parse(f"\\boxed{{{answer.rpartition('####')[2].strip()}}}", parsing_timeout=limit_s)

    def math(text: ScoredText) -> float:
        found = library.parse(text.completion, parsing_timeout=limit_s)
        return float(bool(found) and library.verify(gold(text.answer), found, timeout_seconds=limit_s))

    return math
