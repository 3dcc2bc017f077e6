"""Tasks of the library reasoning-gym as environments.

The reward is the library's own `score_answer`, unshaped: many tasks give partial credit, accuracy counts only the exact
score. reasoning-gym derives item i from `seed + i`, so two seeds share items, and one set may repeat a prompt: disjoint
sets come from `periplus.environment.splits` on the prompts' text, never from different seeds.

The library is imported inside `load`: a process that only plans or relays never pays for it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from periplus.environment.environment import Environment, Item
from periplus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GymEnvironment:
    """A reasoning-gym data set behind the `Environment` protocol."""

    dataset: Any  # reasoning_gym.dataset.ProceduralDataset; the library ships no types
    size: int

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> Item:
        entry = self._entry(index)
        return Item(index=index, prompt=str(entry["question"]), answer=str(entry["answer"]))

    def score(self, index: int, completion: str) -> float:
        score = float(self.dataset.score_answer(completion.strip(), self._entry(index)))
        return min(1.0, max(0.0, score))

    def _entry(self, index: int) -> Mapping[str, Any]:
        if not 0 <= index < self.size:
            raise ValueError(f"item {index} of an environment with {self.size} items")
        entry: Mapping[str, Any] = self.dataset[index]
        return entry


def load(task: str, task_config: Mapping[str, object], seed: int, size: int) -> Environment:
    """The reasoning-gym task `task`, with `size` items drawn from `seed`.

    Raises: ConfigError for a task that the installed library lacks, or a configuration that it refuses.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        close = difflib.get_close_matches(task, sorted(DATASETS), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see reasoning_gym.factory.DATASETS for the names"
        raise ConfigError(f"environment task {task!r} is not in reasoning-gym; {hint}")
    try:
        dataset = reasoning_gym.create_dataset(task, seed=seed, size=size, **task_config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"reasoning-gym refuses the configuration {dict(task_config)!r} of task {task!r}: {error}; "
            "change environment.task_config"
        ) from error
    return GymEnvironment(dataset=dataset, size=size)
