"""The reward `math`: whether the completion's final answer is mathematically equal to the problem's (math-verify).

Where the completion has thoughts or an answer section in tags, only its final answer is read (final_answer.py). What an
answer section holds is read as a formula too, as the problem's answer is, since it need not stand between dollar signs.

The library bounds each parse and each comparison by SIGALRM, which works only in a process's main thread; a reward
process calls functions there. A completion that is not understood in that time is wrong, as it is for the library.
What the alarm cannot stop, such as one long operation on whole numbers, the pool's own time limit ends.

*Deviation:* an answer with `####` in it, as GSM8K has them, is what follows the last of these.
"""

import functools
import importlib
import logging
import re
from typing import Any

from periplus.environment.final_answer import answer_section, final_answer
from periplus.environment.rewards.completions import ScoredText, Settings, SingleFunction

ANSWERS_KEPT = 1 << 14
"""Number of parsed answers that are kept: a problem is scored once for each sample of its group. Chosen by hand."""

SHARE = 5
"""Parses and comparisons of one call: the answer, and twice the completion and whether they are equal."""

FORMULA = re.compile(r"\\boxed|\\fbox|\$|\\\(|\\\[")
"""What begins a formula that math-verify finds by itself."""


def build(settings: Settings) -> SingleFunction:
    """Return the function: 1 if the answers are equal, else 0. Raises: ImportError without math-verify."""
    library: Any = importlib.import_module("math_verify")
    # It logs each completion that it does not understand, with a traceback.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    # Together they stay below the pool's limit. The alarm knows whole seconds only.
    limit_s = max(1, int(settings["timeout_s"] / SHARE))

    def boxed(answer: str) -> Any:
        # In a box it is read as LaTeX as well as a number or a word.
        return library.parse(f"\\boxed{{{answer.strip()}}}", parsing_timeout=limit_s)

    @functools.lru_cache(maxsize=ANSWERS_KEPT)
    def gold(answer: str) -> Any:
        final = final_answer(answer)
        return boxed((answer if final is None else final).rpartition("####")[2])

    def is_right(answer: str, found: Any) -> bool:
        return bool(found) and library.verify(gold(answer), found, timeout_seconds=limit_s)

    def math(text: ScoredText) -> float:
        final = final_answer(text.completion)
        if final is None:
            return 0.0
        if is_right(text.answer, library.parse(final, parsing_timeout=limit_s)):
            return 1.0
        is_bare = answer_section(text.completion) is not None and not FORMULA.search(final)
        return float(is_bare and is_right(text.answer, boxed(final)))

    return math
