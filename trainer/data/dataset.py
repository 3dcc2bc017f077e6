"""The problems of a job: which ones it warms up on, trains on and is evaluated on.

Problems of an evaluation set (`eval.sets`) are left out of all others. The other three sets are disjoint by the text of
the prompt. `periplus/environment/splits.py` asserts this once, when the trainer starts. The order for training is in
`mixture`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from periplus.environment.environment import Environment
from periplus.environment.job_environment import TrainerEnvironment
from periplus.environment.problem_sets import excluded_texts, item_of
from periplus.environment.prompts import PromptEncoder
from periplus.environment.splits import Splits, split
from periplus.errors import ConfigError
from periplus.job.eval_section import EvalSet
from periplus.job.job_file import JobFile
from trainer.data.counts import ProblemCounts
from trainer.data.mixture import TrainingSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a prompt and of the completion to imitate, including the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The environment of a job, its problems divided into warm-up, training and held-out sets, and evaluation sets."""

    environment: Environment
    splits: Splits
    sets: tuple["NamedSet", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """An evaluation set of a job: its name, its settings, and the numbers of its problems in the environment.

    `is_held_out`: it has the job's held-out problems, and `items` is empty.
    """

    name: str
    settings: EvalSet
    number: int
    items: tuple[int, ...]
    is_held_out: bool

    def items_of(self, splits: Splits) -> tuple[int, ...]:
        """Return the numbers of its problems, given how the job's own problems are divided."""
        if not self.is_held_out:
            return self.items
        return tuple(item_of(self.number, index) for index in splits.held_out[: self.settings.num_prompts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The text of a problem's prompt, and its length in the model's tokens."""

    text: str
    num_tokens: int


def read_prompts(
    environment: Environment, job: JobFile, encoder: PromptEncoder, is_time_up: Callable[[], bool] = lambda: False
) -> list[Prompt]:
    """Encode the prompts of the environment in their order, and check their lengths.

    This stops early, after at least one prompt, once `is_time_up` returns true. Raises: ConfigError if a prompt is
    empty or longer than sampling.prompt_tokens.
    """
    prompts: list[Prompt] = []
    for index in range(len(environment)):
        item = environment.item(index)
        prompts.append(Prompt(text=item.prompt, num_tokens=len(encoder.encode(item))))
        if prompts[-1].num_tokens == 0:
            raise ConfigError(
                f"problem {index} has an empty prompt: the tokenizer makes no token of {item.prompt[:60]!r}"
            )
        # Only after a prompt was checked, so that there is always one.
        if is_time_up():
            break
    if not prompts:
        return prompts
    longest, width = max(prompts, key=lambda prompt: prompt.num_tokens), job.sampling.prompt_tokens
    if job.data.drop_long_prompts and any(prompt.num_tokens <= width for prompt in prompts):
        return prompts
    if longest.num_tokens > width:
        num_longer = sum(prompt.num_tokens > width for prompt in prompts)
        raise ConfigError(
            f"sampling.prompt_tokens is {width}, but {num_longer} of {len(prompts)} prompts have more tokens, up to "
            f"{longest.num_tokens}: {longest.text[:60]!r}; set sampling.prompt_tokens={longest.num_tokens} or more, or "
            "data.drop_long_prompts=true"
        )
    return prompts


def evaluation_sets(problems: TrainerEnvironment, job: JobFile) -> tuple[NamedSet, ...]:
    """Return the evaluation sets of a job in its order."""
    return tuple(
        NamedSet(
            name=name,
            settings=settings,
            number=number,
            items=() if own is problems.main else tuple(item_of(number, index) for index in range(len(own))),
            is_held_out=own is problems.main,
        )
        for number, ((name, settings), own) in enumerate(zip(job.eval.sets.items(), problems.sets, strict=True), 1)
    )


def check_set_prompts(problems: TrainerEnvironment, job: JobFile, encoder: PromptEncoder) -> None:
    """Check that each prompt of the evaluation sets has a token and fits. Raises: ConfigError if one does not."""
    width = job.sampling.prompt_tokens
    for each in evaluation_sets(problems, job):
        for item in each.items:
            problem = problems.environment.item(item)
            num_tokens = len(encoder.encode(problem))
            if not 0 < num_tokens <= width:
                raise ConfigError(
                    f"eval.sets.{each.name} has a prompt of {num_tokens} tokens, {problem.prompt[:60]!r}, but prompts "
                    f"have 1 to {width}; raise sampling.prompt_tokens, or leave the problem out with a filter"
                )


def excluded_by_sets(problems: TrainerEnvironment) -> frozenset[str]:
    """Return the prompts of evaluation sets, without letter case, which must not be trained on."""
    return excluded_texts(problems.sets, problems.main)


def counted(prompts: Sequence[Prompt], problems: TrainerEnvironment, job: JobFile) -> ProblemCounts:
    """Return how many problems of the prompts that were read are left out, and why, and what the others are for."""
    excluded = excluded_by_sets(problems)
    fitting = [prompt for prompt in prompts if prompt.num_tokens <= job.sampling.prompt_tokens]
    allowed = [text for prompt in fitting if (text := prompt.text.casefold()) not in excluded]
    return ProblemCounts(
        total=len(prompts),
        filtered=problems.num_filtered,
        long=len(prompts) - len(fitting),
        evaluated=len(fitting) - len(allowed),
        repeated=len(allowed) - len(set(allowed)),
        warmup=job.train.warmup.num_examples if job.train.warmup else 0,
        held_out=0 if job.evaluates_alone else job.eval.num_prompts,
    )


def split_prompts(prompts: Sequence[Prompt], job: JobFile, excluded: frozenset[str] = frozenset()) -> Splits:
    """Divide all prompts into warm-up, training and held-out sets, without those that are too long or `excluded`.

    Raises: ConfigError if there are too few.
    """
    if job.evaluates_alone:
        return Splits(warmup=(), train=(), held_out=())
    num_warmup = job.train.warmup.num_examples if job.train.warmup else 0
    usable = [
        index
        for index, prompt in enumerate(prompts)
        if prompt.num_tokens <= job.sampling.prompt_tokens and prompt.text.casefold() not in excluded
    ]
    try:
        of_usable = split([prompts[index].text for index in usable], num_warmup, job.eval.num_prompts, job.seed)
    except ConfigError as error:
        num_before = len(prompts) - len(usable)
        more = f"; {num_before} more prompts are too long or in an evaluation set" if num_before else ""
        raise ConfigError(f"{error}{more}") from error
    return of_usable.renumbered(usable)


def training_sources(dataset: Dataset, job: JobFile) -> tuple[TrainingSource, ...]:
    """Return the problems that are trained on, by data set; there is one if an environment makes the problems."""
    weights = [source.weight for source in job.data.datasets] or [1.0]
    problems: list[list[int]] = [[] for _ in weights]
    for index in dataset.splits.train:
        # One data set has no need to look at each problem, which an environment would have to make.
        problems[dataset.environment.item(index).source if len(weights) > 1 else 0].append(index)
    return tuple(
        TrainingSource(problems=tuple(each), weight=weight) for each, weight in zip(problems, weights, strict=True)
    )


def warmup_examples(dataset: Dataset, encoder: PromptEncoder) -> tuple[Example, ...]:
    """Return the problems of the warm-up set as token ids.

    Each completion is the solution, or the answer if there is none, and the end token.
    """
    tokenizer = encoder.tokenizer
    examples = []
    for index in dataset.splits.warmup:
        item = dataset.environment.item(index)
        answer = tokenizer(item.solution or item.answer, add_special_tokens=False)["input_ids"]
        examples.append(
            Example(
                prompt_ids=encoder.encode(item),
                completion_ids=(*(int(token) for token in answer), encoder.end_of_answers),
            )
        )
    return tuple(examples)
