"""A reward function of the user's own, called as TRL calls its reward functions.

    score(prompts, completions, completion_ids, trainer_state, **columns) -> list of numbers or None, one a completion

All arguments but `trainer_state` are lists with an entry for each completion. Where the problems are conversations,
prompts are lists of messages and each completion is a list of one message, as in TRL; else both are texts.
`completion_ids` are lists of token ids. `trainer_state.global_step` is the newest policy version that sampled one of
the completions. `answer` and the other columns of the data set come by name. A function without `**` gets only what it
names. It may be asynchronous. None is the value of a completion that the function does not judge.
"""

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

from periplus.environment.rewards.completions import BatchFunction, ScoredText, Settings

MAX_TEXTS = 64
"""Most completions in one call. Chosen by hand: enough that a call of a remote judge can ask for many at once."""

ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "answer")
"""The arguments that a function may ask for whatever the data set."""

METERS = ("log_extra", "log_metric")
"""Arguments of TRL's that there are not: functions with which a reward function logs."""


def build(settings: Settings) -> BatchFunction:
    """Return the function that the path names.

    Raises: whatever its module raises; AttributeError; TypeError if it cannot be called, or if `columns` of the
    settings lists the columns of the data set and it needs an argument that there is not.
    """
    path = settings["path"]
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{path} is {function!r}, which cannot be called")
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    wanted = frozenset(each.name for each in parameters)
    required = frozenset(map(_name, filter(_is_required, parameters)))
    _check(path, required, settings.get("columns"))

    def score(texts: Sequence[ScoredText]) -> Sequence[Any]:
        # A column that some rows of the data set lack may be in none of these.
        columns = {**{name: [None] * len(texts) for name in required}, **_columns(texts)}
        if not takes_any:
            columns = {key: value for key, value in columns.items() if key in wanted}
        values = function(**columns)
        if inspect.isawaitable(values):
            values = asyncio.run(_awaited(values))
        return _listed(values, len(texts), path)

    return BatchFunction(score=score, max_texts=MAX_TEXTS)


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def _name(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise TypeError(f"the parameter {parameter.name} stands before a /, but arguments come by name; remove the /")
    return parameter.name


def _check(path: str, required: frozenset[str], columns: Sequence[str] | None) -> None:
    """Refuse a function that needs what it will never be given."""
    if meters := sorted(required.intersection(METERS)):
        raise TypeError(
            f"{path} needs the argument {meters[0]}, which Periplus does not have; give it the default None, and print "
            "what is to be logged"
        )
    if columns is not None and "answer" in required and "answer" not in columns:
        raise TypeError(
            f"{path} needs the argument answer, and the data set has no answers (it has the columns prompt"
            f"{''.join(f', {each}' for each in columns)}); name their column with data.answer_column, or give the "
            "parameter a default"
        )
    there = ", ".join(each for each in columns or () if each != "answer") or "none beside prompt and answer"
    if columns is not None and (unknown := sorted(required.difference(ALWAYS, columns))):
        raise TypeError(
            f"{path} needs the argument {unknown[0]}, which is no column of the data set (it has {there}), "
            f"nor one of {', '.join(ALWAYS)}; rename the parameter or the column, or give the parameter a default"
        )


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


def _columns(texts: Sequence[ScoredText]) -> Mapping[str, Any]:
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
        "completion_ids": [list(text.token_ids) for text in texts],
        "trainer_state": SimpleNamespace(global_step=max((text.version for text in texts), default=0)),
    }
