"""A reward function of the user's own, called as TRL calls its reward functions.

    score(prompts, completions, **columns) -> list of numbers, or None for a completion that it does not judge

All arguments are lists with an entry for each completion. Where the problems are conversations, prompts are lists of
messages and each completion is a list of one message, as in TRL; else both are texts. `answer` and the other columns of
the data set come by name. A function without `**` gets only the columns that it names. It may be asynchronous.
"""

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from rollout_worker.rewards.functions.completions import BatchFunction, ScoredText, Settings

MAX_TEXTS = 64
"""Most completions in one call. Chosen by hand: enough that a call of a remote judge can ask for many at once."""


def build(settings: Settings) -> BatchFunction:
    """Return the function that the path names. Raises: whatever its module raises; AttributeError, TypeError."""
    module, _, name = settings["path"].partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{settings['path']} is {function!r}, which cannot be called")
    wanted = _wanted(function)

    def score(texts: Sequence[ScoredText]) -> Sequence[Any]:
        columns = _columns(texts)
        if wanted is not None:
            columns = {key: value for key, value in columns.items() if key in wanted}
        values = function(**columns)
        if inspect.isawaitable(values):
            values = asyncio.run(_awaited(values))
        return _listed(values, len(texts), settings["path"])

    return BatchFunction(score=score, max_texts=MAX_TEXTS)


def _listed(values: Any, num_texts: int, path: str) -> Sequence[Any]:
    # Texts, mappings and sets can be iterated over too, but not for values in the order of the completions.
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise TypeError(f"{path} returned {values!r:.80}, but must return a list with a number for each completion")
    listed = list(itertools.islice(values, num_texts + 1))  # a generator may never end
    if len(listed) != num_texts:
        many = "more" if len(listed) > num_texts else str(len(listed))
        raise ValueError(f"{path} returned {many} values for {num_texts} completions")
    return listed


async def _awaited(values: Any) -> Any:
    return await values


def _wanted(function: Any) -> frozenset[str] | None:
    """Return the names of a function's arguments, or None if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters)


def _columns(texts: Sequence[ScoredText]) -> Mapping[str, list[Any]]:
    """Return the arguments: a row that lacks a column which another row has holds None there."""
    names = sorted({name for text in texts for name in text.columns})
    are_conversations = all(text.messages for text in texts)
    return {
        **{name: [text.columns.get(name) for text in texts] for name in names},
        "answer": [text.answer for text in texts],
        "prompts": [[dict(m) for m in text.messages] if are_conversations else text.prompt for text in texts],
        "completions": [
            [{"role": "assistant", "content": text.completion}] if are_conversations else text.completion
            for text in texts
        ],
    }
