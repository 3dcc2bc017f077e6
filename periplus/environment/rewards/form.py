"""The reward `format`: whether the completion has the form that was asked for, whatever it says."""

import re

from periplus.environment.rewards.completions import Settings, SingleFunction


def build(settings: Settings) -> SingleFunction:
    """Return the function: 1 if the whole completion has the form, else 0. Raises: re.error."""
    if settings["pattern"] is not None:
        pattern = re.compile(settings["pattern"], re.DOTALL)
        return lambda text: float(pattern.fullmatch(text.completion) is not None)
    tags = tuple(settings["tags"])
    return lambda text: float(_has_sections(text.completion, tags))


def _has_sections(completion: str, tags: tuple[str, ...]) -> bool:
    """Return whether the text is `<tag>...</tag>` for each tag in turn, with only white space between."""
    if any(completion.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return False
    rest = completion.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if not rest.startswith(opening) or closing not in rest:
            return False
        rest = rest.partition(closing)[2].lstrip()
    return not rest
