"""The reward `exact`: whether the whole completion is the problem's answer."""

from rollout_worker.rewards.functions.completions import ScoredText, Settings, SingleFunction


def build(settings: Settings) -> SingleFunction:
    """Return the function: 1 if completion and answer are equal up to white space around them, else 0."""
    fold = str.casefold if settings["ignore_case"] else str

    def exact(text: ScoredText) -> float:
        return float(fold(text.completion.strip()) == fold(text.answer.strip()))

    return exact
