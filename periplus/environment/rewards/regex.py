"""The reward `regex`: whether a regular expression matches, or captures the problem's answer."""

import re

from periplus.environment.rewards.completions import ScoredText, Settings, SingleFunction


def build(settings: Settings) -> SingleFunction:
    """Return the function. Raises: re.error for what is no regular expression, ValueError for a group that it lacks."""
    pattern, where, group = re.compile(settings["pattern"], re.DOTALL), settings["where"], settings["group"]
    if group is not None and group > pattern.groups:
        raise ValueError(f"group is {group}, but {settings['pattern']!r} captures {pattern.groups} groups")

    def found(completion: str) -> re.Match[str] | None:
        match where:
            case "whole":
                return pattern.fullmatch(completion)
            case "last":
                return max(pattern.finditer(completion), key=re.Match.start, default=None)
            case _:
                return pattern.search(completion)

    def regex(text: ScoredText) -> float:
        match = found(text.completion)
        if match is None or group is None:
            return float(match is not None)
        return float((match[group] or "").strip() == text.answer.strip())

    return regex
