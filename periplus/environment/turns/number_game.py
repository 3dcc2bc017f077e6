"""The environment `number_game`: model and opponent add numbers to a total in turn, and who reaches the target wins.

A turn of the model is its number, from 1 to the largest that is allowed; the first whole number in the turn counts. The
opponent answers with its own number and the new total, in a message of the role `user`. The turn that wins has reward
1. Every other turn has reward 0, and a number that is not allowed loses the game.

The opponent knows the game: whenever it can leave a total from which the model cannot win, it does so with the chance
`skill_percent`, and otherwise it plays a random number. Its moves depend only on the seed, the problem and the total,
so that the samples of a group meet the same opponent.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from periplus.environment.environment import EXACT, Item, Message
from periplus.environment.turns.protocol import TurnOutcome
from periplus.environment.turns.settings import read_settings

WON, LOST = TurnOutcome(reward=EXACT, is_done=True), TurnOutcome(reward=0.0, is_done=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberGameTasks:
    """`size` games, each made from `seed` and its index: the distance to the target is 1 to `distance`, and a player
    adds 1 to `most`."""

    size: int
    seed: int
    distance: int
    most: int
    skill_percent: int

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> Item:
        """Return the game at `index`. Its answer is a number that wins or, if there is none, 1."""
        if not 0 <= index < self.size:
            raise ValueError(f"item {index} of an environment with {self.size} items")
        drawn = random.Random(f"number game {self.seed} {index}")
        total = drawn.randint(0, 999)
        left = drawn.randint(1, self.distance)
        return Item(
            index=index,
            prompt=f"{total} to {total + left}, add 1-{self.most}: ",
            answer=str(left % (self.most + 1) or 1),
            columns={"total": total, "target": total + left},
        )

    def score(self, index: int, completion: str) -> float:
        """Return EXACT if a text's first number is the move that leaves the opponent without a way to win, else 0."""
        return EXACT if _first_number(completion) == int(self.item(index).answer) else 0.0

    def episode(self) -> "NumberGameEpisode":
        """Return the opponent of one game."""
        return NumberGameEpisode(self)


class NumberGameEpisode:
    """One game against the opponent."""

    def __init__(self, tasks: NumberGameTasks) -> None:
        self._tasks = tasks
        self._index, self._total, self._target = 0, 0, 0

    async def reset(self, item: Item) -> Sequence[Message]:
        """Begin with the problem's own prompt."""
        self._index, self._total, self._target = item.index, item.columns["total"], item.columns["target"]
        return ()

    async def step(self, completion: str) -> TurnOutcome:
        """Return the opponent's move, or the end of the game."""
        added = _first_number(completion)
        if added is None or not 1 <= added <= self._tasks.most:
            return LOST
        self._total += added
        if self._total >= self._target:
            return WON if self._total == self._target else LOST
        answered = self._move()
        self._total += answered
        if self._total >= self._target:
            return LOST
        return TurnOutcome(reward=0.0, messages=(Message(role="user", content=f"+{answered}={self._total}: "),))

    def _move(self) -> int:
        drawn = random.Random(f"move {self._tasks.seed} {self._index} {self._total}")
        left = self._target - self._total
        best = left % (self._tasks.most + 1)
        if best and drawn.randrange(100) < self._tasks.skill_percent:
            return best
        return drawn.randint(1, min(left, self._tasks.most))


def _first_number(text: str) -> int | None:
    found = re.search(r"[0-9]{1,9}", text)
    return int(found.group()) if found else None


def load(config: Mapping[str, Any], *, seed: int, size: int) -> NumberGameTasks:
    """Return the games for the settings of a job. Raises: ConfigError for a setting that does not exist."""
    known = {"distance": (9, range(1, 1001)), "most": (3, range(2, 10)), "skill_percent": (50, range(101))}
    return NumberGameTasks(size=size, seed=seed, **read_settings("number_game", config, known))
