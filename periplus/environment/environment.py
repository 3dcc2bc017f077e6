"""The protocol of an environment: a fixed, indexed set of items (problems), and a verifiable score for a completion.

Items are addressed by index, so that a lease names an item by its index alone. Every process that builds the
environment from the same configuration sees the same items. A score depends only on (index, completion), not on the
worker or the time of scoring. An environment knows neither tokens nor policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

EXACT = 1.0  # the score of a right answer: accuracy counts scores that equal it, the reward may be partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: who says it (`system`, `user`, `assistant` or `tool`), and its text.

    `extra` has what else a chat template may read, such as `tool_calls`, `tool_call_id` and `name`.
    """

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """Return the message as chat templates and reward functions take it."""
        return {"role": self.role, "content": self.content, **self.extra}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One problem: its prompt, and the answer that a reward compares with.

    `messages` is the conversation that the prompt consists of. If it is empty, the text `prompt` is the only message,
    and a user says it. `columns` has all further values of a data set's row by name, as JSON values; rewards may read
    them. `solution` is the text that a supervised warm-up imitates; if it is empty, the answer is. `source` is the
    number of the data set that the problem comes from.
    """

    index: int
    prompt: str
    answer: str
    messages: tuple[Message, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    solution: str = ""
    source: int = 0


class Environment(Protocol):
    """An indexed set of items with a scorer."""

    def __len__(self) -> int: ...

    def item(self, index: int) -> Item:
        """Return the item at `index`, which is the same in every process."""
        ...

    def score(self, index: int, completion: str) -> float:
        """Return the score of a decoded completion, from 0 to 1; `EXACT` means a right answer."""
        ...
