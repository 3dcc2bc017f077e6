"""The reward `exact`: whether the completion's final answer is the problem's answer."""

from periplus.environment.final_answer import is_answer
from periplus.environment.rewards.completions import ScoredText, Settings, SingleFunction


def build(settings: Settings) -> SingleFunction:
    """Return the function: 1 if final answer and answer are equal up to white space around them, else 0."""
    fold = str.casefold if settings["ignore_case"] else str

    def exact(text: ScoredText) -> float:
        return float(is_answer(fold(text.completion), fold(text.answer)))

    return exact
