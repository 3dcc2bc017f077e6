"""What a reward function is given, and what it is: a value of one completion, or of several at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from periplus.environment.environment import Item

Settings = Mapping[str, Any]
"""The keys of one entry of `reward.functions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText:
    """One completion to score, and its problem.

    `messages` is the conversation that the prompt consists of, as mappings with `role`, `content` and what else the
    data has; it is empty where the prompt is a text. `columns` are the other values of the data set's row. `num_tokens`
    is the length of the completion in tokens, its end token included; `token_ids` are these tokens, and `version` is
    the newest policy version that sampled one of them.
    """

    prompt: str
    completion: str
    answer: str
    num_tokens: int
    messages: tuple[Mapping[str, Any], ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    token_ids: tuple[int, ...] = ()
    version: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the text as JSON values."""
        return {
            "prompt": self.prompt,
            "completion": self.completion,
            "answer": self.answer,
            "num_tokens": self.num_tokens,
            "messages": [dict(message) for message in self.messages],
            "columns": dict(self.columns),
            "token_ids": list(self.token_ids),
            "version": self.version,
        }

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> "ScoredText":
        """Return the text of JSON values from `to_json`."""
        listed = {"messages": tuple(values["messages"]), "token_ids": tuple(values["token_ids"])}
        return cls(**{**values, **listed})


def scored_text(
    item: Item, completion: str, num_tokens: int, *, token_ids: tuple[int, ...] = (), version: int = 0
) -> ScoredText:
    """Return what reward functions see of a problem and a completion of it."""
    return ScoredText(
        prompt=item.prompt,
        completion=completion,
        answer=item.answer,
        num_tokens=num_tokens,
        messages=tuple(message.to_mapping() for message in item.messages),
        columns=item.columns,
        token_ids=token_ids,
        version=version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFunction:
    """A function that scores at most `max_texts` completions in one call."""

    score: Callable[[Sequence[ScoredText]], Sequence[Any]]
    max_texts: int


SingleFunction = Callable[[ScoredText], float]
"""A function that scores one completion."""
