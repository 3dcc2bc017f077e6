"""The problems of a job: which ones it warms up on, trains on and is evaluated on, and the order for training.

The three sets are disjoint by the text of the prompt. `periplus/environment/splits.py` asserts this once, when the
trainer starts. A *group* is a set of samples of one problem. The problem of a training group is a function of (seed,
group number), with a new permutation of the problems in each epoch. So a restored trainer needs only the number of its
next group to continue in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from periplus.environment.environment import Environment
from periplus.environment.job_environment import encode_prompt
from periplus.environment.splits import Splits, split
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a prompt and of the completion to imitate, including the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The environment of a job, and its problems divided into warm-up, training and held-out sets."""

    environment: Environment
    splits: Splits


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The text of a problem's prompt, and its length in the model's tokens."""

    text: str
    num_tokens: int


def read_prompts(
    environment: Environment, job: JobFile, tokenizer: Any, is_time_up: Callable[[], bool] = lambda: False
) -> list[Prompt]:
    """Encode the prompts of the environment in their order, and check their lengths.

    This stops early, after at least one prompt, once `is_time_up` returns true. Raises: ConfigError if a prompt is
    empty or longer than sampling.prompt_tokens.
    """
    prompts: list[Prompt] = []
    for index in range(len(environment)):
        item = environment.item(index)
        prompts.append(Prompt(text=item.prompt, num_tokens=len(encode_prompt(tokenizer, item))))
        if prompts[-1].num_tokens == 0:
            raise ConfigError(
                f"problem {index} has an empty prompt: the tokenizer makes no token of {item.prompt[:60]!r}"
            )
        # Only after a prompt was checked, so that there is always one.
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
    """Divide all prompts into warm-up, training and held-out sets. Raises: ConfigError if there are too few."""
    num_warmup = job.train.warmup.num_examples if job.train.warmup else 0
    return split([prompt.text for prompt in prompts], num_warmup, job.eval.num_prompts, job.seed)


def item_order(train: Sequence[int], seed: int) -> Callable[[int], int]:
    """Return a function from the number of a training group to its problem.

    Each epoch goes through all problems in `train` once, in a permutation that is keyed by (seed, epoch).
    """
    permutations: dict[int, Sequence[int]] = {}

    def item_of(group: int) -> int:
        # A group's problem depends on its number only, so a restored run continues the order.
        epoch, position = divmod(group, len(train))
        if epoch not in permutations:  # only the permutation that was used last is kept
            permutations.clear()
            permutations[epoch] = np.random.default_rng((seed, epoch)).permutation(len(train)).tolist()
        return train[permutations[epoch][position]]

    return item_of


def warmup_examples(dataset: Dataset, tokenizer: Any) -> tuple[Example, ...]:
    """Return the problems of the warm-up set as token ids. Each completion is the answer and the end token."""
    examples = []
    for index in dataset.splits.warmup:
        item = dataset.environment.item(index)
        answer = tokenizer(item.answer, add_special_tokens=False)["input_ids"]
        examples.append(
            Example(
                prompt_ids=encode_prompt(tokenizer, item),
                completion_ids=(*(int(token) for token in answer), int(tokenizer.eos_token_id)),
            )
        )
    return tuple(examples)
