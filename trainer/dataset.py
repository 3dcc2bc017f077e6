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
from periplus.job import JobFile
from trainer.warmup import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The environment, dealt."""

    environment: Environment
    splits: Splits


def deal(environment: Environment, job: JobFile, tokenizer: Any) -> Dataset:
    """Split the environment's problems. Raises: ConfigError if there are too few, or a prompt is too long."""
    prompts = [environment.item(index).prompt for index in range(len(environment))]
    num_warmup = job.train.warmup.num_examples if job.train.warmup else 0
    splits = split(prompts, num_warmup, job.eval.num_prompts, job.seed)
    _check_widths(prompts, job.sampling.prompt_tokens, tokenizer)
    return Dataset(environment=environment, splits=splits)


def _check_widths(prompts: Sequence[str], prompt_tokens: int, tokenizer: Any) -> None:
    num_tokens, longest = max((len(encode_prompt(tokenizer, prompt)), prompt) for prompt in prompts)
    if num_tokens > prompt_tokens:
        raise ConfigError(
            f"the prompt {longest[:60]!r} has {num_tokens} tokens, more than sampling.prompt_tokens ({prompt_tokens}); "
            f"set sampling.prompt_tokens to {num_tokens} or more"
        )


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
