"""Which problems a job warms up on, trains on and is judged by, and the order in which groups meet them.

The three sets are disjoint by the text of the prompt; `splits.py` asserts it, once, when the trainer starts. The
problem of a training group is a function of (seed, group): epoch by epoch a fresh permutation, so a restored trainer
needs no position but its version.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from periplus.environment.environment import Environment
from periplus.environment.of_job import encode_prompt
from periplus.environment.splits import Splits, split
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt and the completion to imitate, end token included."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The environment, dealt."""

    environment: Environment
    splits: Splits


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A problem's text, and its length as the model reads it."""

    text: str
    num_tokens: int


def deal(environment: Environment, job: JobFile, tokenizer: Any) -> Dataset:
    """Split the environment's problems. Raises: ConfigError as `read_prompts` and `split_prompts` do."""
    return Dataset(environment=environment, splits=split_prompts(read_prompts(environment, job, tokenizer), job))


def read_prompts(
    environment: Environment, job: JobFile, tokenizer: Any, is_time_up: Callable[[], bool] = lambda: False
) -> list[Prompt]:
    """Encode the prompts in their order: all of them, or as many as there is time for, but at least one.

    Raises: ConfigError if a prompt is empty or longer than sampling.prompt_tokens.
    """
    prompts: list[Prompt] = []
    for index in range(len(environment)):
        text = environment.item(index).prompt
        prompts.append(Prompt(text=text, num_tokens=len(encode_prompt(tokenizer, text))))
        if prompts[-1].num_tokens == 0:
            raise ConfigError(f"problem {index} has an empty prompt: the tokenizer makes no token of {text[:60]!r}")
        if is_time_up():
            break
    longest, width = max(prompts, key=lambda prompt: prompt.num_tokens), job.sampling.prompt_tokens
    if longest.num_tokens > width:
        num_longer = sum(prompt.num_tokens > width for prompt in prompts)
        raise ConfigError(
            f"sampling.prompt_tokens is {width}, but {num_longer} of {len(prompts)} prompts have more tokens, up to "
            f"{longest.num_tokens}: {longest.text[:60]!r}; set sampling.prompt_tokens={longest.num_tokens} or more"
        )
    return prompts


def split_prompts(prompts: Sequence[Prompt], job: JobFile) -> Splits:
    """Who may see which of all prompts. Raises: ConfigError if there are too few."""
    num_warmup = job.train.warmup.num_examples if job.train.warmup else 0
    return split([prompt.text for prompt in prompts], num_warmup, job.eval.num_prompts, job.seed)


def item_order(train: Sequence[int], seed: int) -> Callable[[int], int]:
    """The problem of each training group: each epoch a permutation of `train` of its own."""
    permutations: dict[int, Sequence[int]] = {}

    def item_of(group: int) -> int:
        epoch, position = divmod(group, len(train))
        if epoch not in permutations:
            permutations.clear()
            permutations[epoch] = np.random.default_rng((seed, epoch)).permutation(len(train)).tolist()
        return train[permutations[epoch][position]]

    return item_of


def warmup_examples(dataset: Dataset, tokenizer: Any) -> tuple[Example, ...]:
    """Solved problems as the warm-up imitates them: the answer, then the end token."""
    examples = []
    for index in dataset.splits.warmup:
        item = dataset.environment.item(index)
        answer = tokenizer(item.answer, add_special_tokens=False)["input_ids"]
        examples.append(
            Example(
                prompt_ids=encode_prompt(tokenizer, item.prompt),
                completion_ids=(*(int(token) for token in answer), int(tokenizer.eos_token_id)),
            )
        )
    return tuple(examples)
