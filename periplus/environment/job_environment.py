"""Builds the environment of a job and the encoder of its prompts, identically in the trainer and in each worker.

The trainer reads the job's data sets, and sends the problems to the workers as one file of the bundle. A task of
reasoning-gym, or an environment of several turns, makes the same problems everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from periplus.environment import gym_tasks
from periplus.environment.completions import end_token_ids
from periplus.environment.datasets.listed import ListedProblems, problem_file, read_problem_file
from periplus.environment.datasets.problems import read_problems, read_set
from periplus.environment.environment import Environment, Item
from periplus.environment.problem_sets import ProblemSets, item_of
from periplus.environment.prompts import PromptEncoder
from periplus.environment.turns.registry import load_turn_tasks
from periplus.job.data_section import makes_problems
from periplus.job.eval_section import DEFAULT_SET_PROMPTS, EvalSet
from periplus.job.job_file import JobFile

DATA_FILE = "problems.jsonl"
"""Name of the file with the job's problems in the bundle of files that workers receive."""


SET_SEED = 1 << 31
"""What is added to the job's seed for an environment of an evaluation set. reasoning-gym derives problem i from seed +
i, so that the problems are far from those for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnvironment:
    """What the trainer has of a job's environment: the file for workers, and sentences on what was read.

    `file` is None if workers can make the problems themselves. `num_filtered` counts the rows of the job's own data
    that its filters left out. `sets` are the evaluation sets in the order of the job, `main` for one without problems
    of its own, and `set_files` their files for workers by name. `environment` knows the problems of all of them.
    """

    environment: Environment
    file: bytes | None
    main: Environment
    num_filtered: int = 0
    read: tuple[str, ...] = ()
    sets: tuple[Environment, ...] = ()
    set_files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def first(self) -> Item:
        """The first problem: of the job's own ones, or of its first evaluation set if it has none."""
        return self.environment.item(0 if len(self.main) else item_of(1, 0))


def trainer_environment(job: JobFile) -> TrainerEnvironment:
    """Return the environment of a resolved job where its data sets are. Raises: ConfigError if it cannot be built."""
    if makes_problems(job.environment):
        return _with_sets(job, _made(job), None, ())
    # The warm-up imitates the answers of data sets that name no solutions.
    imitates_answers = job.train.warmup is not None and any(not each.solution_column for each in job.data.datasets)
    read = read_problems(job.data, needs_answers=imitates_answers or _scoring_reads_answers(job))
    items = tuple(item for dataset in read for item in dataset.items)
    made = _with_sets(job, ListedProblems(items=items), problem_file(items), tuple(each.summary for each in read))
    return replace(made, num_filtered=sum(each.num_filtered for each in read))


def _with_sets(job: JobFile, main: Environment, file: bytes | None, read: tuple[str, ...]) -> TrainerEnvironment:
    sets: list[Environment] = []
    files: dict[str, bytes] = {}
    for name, each in job.eval.sets.items():
        if each.data is not None:
            found = read_set(
                each.data,
                f"eval.sets.{name}.data.path",
                job.data.system_prompt,
                needs_answers=_scoring_reads_answers(job),
            )
            items = found.items[: each.num_prompts]
            sets.append(ListedProblems(items=items))
            files[set_file(name)] = problem_file(items)
            read = (*read, f"evaluation set {name}: {len(items)} problems of {found.summary}")
        else:
            sets.append(_generated_set(job, each, main))
    environment = ProblemSets(main=main, sets=tuple(sets)) if sets else main
    return TrainerEnvironment(
        environment=environment, main=main, file=file, read=read, sets=tuple(sets), set_files=files
    )


def _scoring_reads_answers(job: JobFile) -> bool:
    # An environment of the user's own scores its episodes itself.
    is_scored_by_own_environment = job.environment is not None and job.environment.path is not None
    return job.reward.reads_answers and not is_scored_by_own_environment


def set_file(name: str) -> str:
    """Return the name of the file with the problems of an evaluation set in the bundle."""
    return f"problems-{name}.jsonl"


def _generated_set(job: JobFile, each: EvalSet, main: Environment) -> Environment:
    if each.environment is None:
        return main
    seed, size = (job.seed + SET_SEED) % (1 << 32), each.num_prompts or DEFAULT_SET_PROMPTS
    assert each.environment.name is not None, "eval_disagreements refuses any other"
    return gym_tasks.load(each.environment.name, each.environment.config, seed, size)


def worker_environment(job: JobFile, folder: Path) -> Environment:
    """Return the environment of a resolved job from the files of its bundle. Raises: ConfigError."""
    main = _made(job) if makes_problems(job.environment) else read_problem_file(folder / DATA_FILE)
    if not job.eval.sets:
        return main
    sets = tuple(
        _generated_set(job, each, main) if each.data is None else read_problem_file(folder / set_file(name))
        for name, each in job.eval.sets.items()
    )
    return ProblemSets(main=main, sets=sets)


def prompt_encoder(job: JobFile, tokenizer: Any, folder: Path | None) -> PromptEncoder:
    """Return the encoder of a job's prompts, given the tokenizer and the folder of its model.

    `folder` is None for a built-in model that has not been made yet.
    """
    model = job.model
    return PromptEncoder(
        tokenizer=tokenizer,
        template=model.chat_template,
        arguments=model.chat_template_kwargs,
        end_ids=end_token_ids(folder, tokenizer),
    )


def _made(job: JobFile) -> Environment:
    section, size = job.environment, job.data.size
    assert section is not None
    assert section.name is not None
    assert size is not None, "resolve() fills it in"
    if section.has_turns:
        return load_turn_tasks(section.name, section.config, seed=job.seed, size=size)
    return gym_tasks.load(section.name, section.config, job.seed, size)
