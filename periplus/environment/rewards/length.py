"""The reward `length`: a penalty that grows along a line from the target to the maximum."""

from periplus.environment.rewards.completions import ScoredText, Settings, SingleFunction


def build(settings: Settings) -> SingleFunction:
    """Return the function: 0 up to the target, -1 from the maximum on."""
    target, most, in_tokens = settings["target"], settings["max"], settings["unit"] == "tokens"

    def length(text: ScoredText) -> float:
        size = text.num_tokens if in_tokens else len(text.completion)
        return 0.0 - float(min(1.0, max(0.0, (size - target) / (most - target))))

    return length
