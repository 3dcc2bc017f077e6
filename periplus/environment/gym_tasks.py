"""Tasks of the library reasoning-gym as environments.

The score is that of the library's own `score_answer`, clamped to 0 to 1. Many tasks give partial credit; accuracy
counts only the exact score. reasoning-gym derives item i from `seed + i`, so that two seeds share items, and one data
set may repeat a prompt. So disjoint sets are made by `periplus.environment.splits` from the prompts' text, never by
different seeds. The library is imported inside `load`, so that processes without environments do not import it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from periplus.environment.environment import Environment, Item
from periplus.errors import ConfigError, one_line

DECIDED_BY_THE_JOB = ("seed", "size")
"""Settings of every task that the job's own keys set: seed and data.size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymEnvironment:
    """A reasoning-gym data set behind the `Environment` protocol."""

    dataset: Any  # reasoning_gym.dataset.ProceduralDataset; the library ships no types
    size: int
    task: str

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> Item:
        """Return the item at `index`. Raises: ConfigError if the task cannot make it with the job's settings."""
        self._check(index)
        try:
            entry = self.dataset[index]
        except Exception as error:  # the library may find a wrong setting only here, and raise anything
            raise ConfigError(
                f"the task {self.task!r} of reasoning-gym cannot make its problem {index}: {one_line(error)}; change "
                "environment.config"
            ) from error
        return Item(index=index, prompt=str(entry["question"]), answer=str(entry["answer"]))

    def score(self, index: int, completion: str) -> float:
        """Return the library's score of a completion for the item at `index`, clamped to 0 to 1."""
        self._check(index)
        score = float(self.dataset.score_answer(completion.strip(), self.dataset[index]))
        return min(1.0, max(0.0, score))

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise ValueError(f"item {index} of an environment with {self.size} items")


def load(task: str, task_config: Mapping[str, object], seed: int, size: int) -> Environment:
    """Return the reasoning-gym task `task` as an environment, with `size` items generated from `seed`.

    Raises: ConfigError if the library is not installed, for a task that it lacks, or a configuration that it refuses.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"environment.name={task} needs {error.name}, which is not installed here; pip install 'periplus[rollout]'"
        ) from error

    if task not in DATASETS:
        close = difflib.get_close_matches(task, sorted(DATASETS), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(sorted(DATASETS))}"
        raise ConfigError(f"environment.name is {task!r}, which is not a task of reasoning-gym; {hint}")
    # Unknown keys are refused here, so that the error can name the right one.
    _refuse_unknown(task, task_config, DATASETS[task][1])
    try:
        dataset = reasoning_gym.create_dataset(task, seed=seed, size=size, **task_config)
    except Exception as error:  # a setting of a wrong type may raise anything anywhere in the library
        raise ConfigError(
            f"reasoning-gym refuses environment.config {dict(task_config)!r} for the task {task!r}: {one_line(error)}; "
            "change environment.config"
        ) from error
    return GymEnvironment(dataset=dataset, size=size, task=task)


def _refuse_unknown(task: str, task_config: Mapping[str, object], config_class: Any) -> None:
    known = [field.name for field in fields(config_class) if field.name not in DECIDED_BY_THE_JOB]
    for key in task_config:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean environment.config.{close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"environment.config.{key} is not a setting of the task {task!r}; {hint}")
