"""Problems that are listed in memory, and the file in which they travel to workers.

The file has one JSON object a line for each problem, with the fields of `Item`, whatever data set the problem came
from. So a worker needs neither the data set nor what reads its format. A completion scores 1 if its final answer
(final_answer.py) equals the answer after white space is stripped from both ends, else 0.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.environment.environment import EXACT, Item, Message
from periplus.environment.final_answer import is_answer
from periplus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProblems:
    """An environment whose problems are held in memory."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> Item:
        """Return the item at `index`. Raises: ValueError if there is no such item."""
        if not 0 <= index < len(self.items):
            raise ValueError(f"item {index} of an environment with {len(self.items)} items")
        return self.items[index]

    def score(self, index: int, completion: str) -> float:
        """Return EXACT if the completion's final answer is the answer up to surrounding white space, else 0."""
        return EXACT if is_answer(completion, self.item(index).answer) else 0.0


def problem_file(items: Sequence[Item]) -> bytes:
    """Return the content of the file with these problems; their index is their place in the file."""
    return "".join(f"{json.dumps(_fields(item), ensure_ascii=False)}\n" for item in items).encode()


def read_problem_file(path: Path) -> ListedProblems:
    """Return the problems of a file that `problem_file` made. Raises: ConfigError if it is another file."""
    try:
        lines = path.read_bytes().split(b"\n")
        items = tuple(_item(index, json.loads(line)) for index, line in enumerate(filter(None, lines)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a file of problems: {error}; are trainer and worker of one version?"
        ) from error
    return ListedProblems(items=items)


def _fields(item: Item) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt": item.prompt, "answer": item.answer}
    if item.messages:
        fields["messages"] = [message.to_mapping() for message in item.messages]
    if item.columns:
        fields["columns"] = dict(item.columns)
    if item.solution:
        fields["solution"] = item.solution
    if item.source:
        fields["source"] = item.source
    return fields


def _item(index: int, fields: dict[str, Any]) -> Item:
    return Item(
        index=index,
        prompt=fields["prompt"],
        answer=fields["answer"],
        messages=tuple(map(_message, fields.get("messages", ()))),
        columns=fields.get("columns", {}),
        solution=fields.get("solution", ""),
        source=fields.get("source", 0),
    )


def _message(fields: dict[str, Any]) -> Message:
    extra = {name: value for name, value in fields.items() if name not in ("role", "content")}
    return Message(role=fields["role"], content=fields["content"], extra=extra)
