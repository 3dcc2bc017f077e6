"""The protocol of an environment that answers a model turn by turn, such as a tool, a game or a user.

    reset(item)        -> the messages that the episode begins with
    step(completion)   -> new messages for the model, or the end; and the reward of the turn

An object plays one episode. Its calls are awaited one after another, and many episodes are played at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from periplus.environment.environment import Environment, Item, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """What an environment says to one turn of the model.

    `messages` are what the model reads before its next turn; there is at least one unless the episode `is_done`.
    """

    reward: float
    messages: tuple[Message, ...] = ()
    is_done: bool = False


class TurnEnvironment(Protocol):
    """One episode of several turns. What `reset` and `step` raise costs this episode alone."""

    async def reset(self, item: Item) -> Sequence[Message]:
        """Begin the episode of a problem. Returns its first messages; none keep the problem's own prompt."""
        ...

    async def step(self, completion: str) -> TurnOutcome:
        """Return what follows a turn of the model, given as text without special tokens."""
        ...


class TurnTasks(Environment, Protocol):
    """A set of problems with an environment that plays their episodes."""

    def episode(self) -> TurnEnvironment:
        """Return an environment for one new episode."""
        ...
