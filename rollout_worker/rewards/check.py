"""Tries a job's reward functions or environment where it is submitted: the first problem, with its own answer.

The command that submits a job runs this as a child process, `python -m rollout_worker.rewards.check`, since the control
plane runs no environment and no function. The child reads a job as JSON from standard input, and writes one JSON object
to standard output: `tried`, a list with the `label`, `weight` and either the `value` or the `failure` of each function,
or an error (`reason`, `message`) that refuses the job:

- a function or an environment of the user's own that cannot be loaded, raises, or returns what it may not;
- a function that needs a column which the data set does not have, or tests that are none.

Everything runs in processes of its own, as on a worker. Other functions may lack a library or a sandbox here that
workers have, and what takes too long here may not do so there.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from periplus import errors
from periplus.environment.environment import Environment, Item
from periplus.environment.job_environment import TrainerEnvironment, trainer_environment
from periplus.errors import ConfigError, PeriplusError, RewardFailed, RewardTimedOut, explained_error, leaves
from periplus.job.job_file import JobFile
from periplus.job.reward_code import read_code
from periplus.job.reward_functions import CodeReward, OwnReward, WeightedFunction, label_of
from rollout_worker.environments.building import build_source
from rollout_worker.environments.pool import EnvironmentPool
from rollout_worker.episodes.scoring import ScoredSample
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.functions.code import tests_of
from rollout_worker.rewards.scorer import RewardScorer

PROBLEMS_READ = 1024
"""Problems of a data set of which the columns are read. Chosen by hand: mixtures show theirs, and it takes a moment. Of
an environment's problems, which are made when they are asked for and have the same columns, one is read."""


def answer(job_json: str) -> dict[str, Any]:
    """Return the JSON object that the child process prints, for a job given as JSON."""
    try:
        job = JobFile.from_json(job_json)
        problems = trainer_environment(job)
        with tempfile.TemporaryDirectory(prefix="periplus-reward-code-") as folder:
            for name, content in read_code(job.reward, job.environment).items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            return {"tried": asyncio.run(_tried(job, problems, Path(folder)))}
    except PeriplusError as error:
        return {"reason": errors.reason(error), "message": str(error)}


async def _tried(job: JobFile, problems: TrainerEnvironment, folder: Path) -> list[dict[str, Any]]:
    environment, item = problems.environment, problems.first
    if job.environment is not None and job.environment.path is not None:
        return [await _try_environment(job, environment, item, folder)]
    num_read = min(len(environment), PROBLEMS_READ) if job.environment is None else 1
    # A job that evaluates alone has no problems of its own.
    read = [environment.item(index).columns for index in range(num_read)] or [item.columns]
    columns = tuple(sorted({name for each in read for name in each}))
    for entry in job.reward.entries:
        if isinstance(entry, CodeReward):
            _check_tests(entry, read, columns)
    return [await _try(job, environment, item, entry, folder, columns) for entry in job.reward.entries]


def _check_tests(entry: CodeReward, read: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Refuse a column of tests that no problem has, or in which one has something else. Raises: ConfigError."""
    name = entry.tests_column
    if name not in columns:
        raise ConfigError(
            f"the reward function {label_of(entry)} reads tests from the column {name!r}, which the data set does not "
            f"have (it has {', '.join(columns) or 'none beside prompt and answer'}); set tests_column"
        )
    for index, each in enumerate(read):
        # Problems of another data set of a mixture may have no tests.
        if each.get(name) is not None:
            try:
                tests_of(each, name)
            except ValueError as error:
                raise ConfigError(f"problem {index}: {error}; mend the data, or set tests_column") from error


async def _try_environment(job: JobFile, environment: Environment, item: Item, folder: Path) -> dict[str, Any]:
    """Return the reward of one turn in an environment of the user's own. Raises: ConfigError."""
    assert job.environment is not None
    pool = build_source(job.environment, environment, folder, may_stay=True)
    assert isinstance(pool, EnvironmentPool)
    said: dict[str, Any] = {"label": f"environment.path {job.environment.path}", "weight": 1.0}

    async def turn() -> float:
        async with pool.open() as episode:
            await episode.reset(item)
            return (await episode.step(item.answer)).reward

    try:
        return said | {"value": await _beside(pool.run(), turn())}
    except RewardTimedOut as error:
        return said | {"failure": str(error)}
    except RewardFailed as error:
        _refuse(error)


def _refuse(error: RewardFailed) -> NoReturn:
    raise ConfigError(f"on the first problem with its own answer as the completion, {error}; mend it") from error


async def _try(
    job: JobFile, environment: Environment, item: Item, entry: WeightedFunction, folder: Path, columns: tuple[str, ...]
) -> dict[str, Any]:
    """Return what one function says. Raises: ConfigError if a function of the user's own is refused."""
    said: dict[str, Any] = {"label": label_of(entry), "weight": entry.weight}
    section = job.reward.model_copy(update={"name": None, "functions": (entry,), "on_failure": "fail", "processes": 1})
    # Where the kernel here refuses a sandbox, another machine's may not: the functions' own region decides.
    # An answer that is in the data is never empty.
    place = RewardPlace(
        code_folder=folder,
        columns=(*columns, "answer") if item.answer else columns,
        may_run_unsandboxed=isinstance(entry, OwnReward),  # here it is the user's own machine
    )
    scorer = build_scorer(section, environment, asyncio.Lock(), place)
    # The completion's tokens are not known here, since no tokenizer is loaded: its bytes stand in for them.
    sample = ScoredSample(token_ids=tuple(item.answer.encode()))
    scoring = scorer.score(item, item.answer, num_tokens=len(item.answer), sample=sample)
    try:
        if not isinstance(scorer, RewardScorer):
            return said | {"value": (await scoring).reward}
        score = await _beside(scorer.run(), scoring)
        return said | {"value": score.parts.get(label_of(entry))}
    except ConfigError as error:
        if isinstance(entry, OwnReward):
            raise
        return said | {"failure": str(error)}
    except RewardFailed as error:
        if isinstance(entry, OwnReward) and not isinstance(error, RewardTimedOut):
            _refuse(error)
        return said | {"failure": str(error)}
    except PeriplusError as error:
        return said | {"failure": str(error)}


async def _beside(processes: Any, scoring: Any) -> Any:
    """Run processes until they have scored once. Raises: PeriplusError."""
    running, scored = asyncio.ensure_future(processes), asyncio.ensure_future(scoring)
    try:
        await asyncio.wait({running, scored}, return_when=asyncio.FIRST_COMPLETED)
        if scored.done():
            return scored.result()
        running.result()  # it ends only by an error
    except ExceptionGroup as group:
        error = leaves(group)[0]
        raise error if isinstance(error, PeriplusError) else PeriplusError(explained_error(error)) from group
    finally:
        running.cancel()
        scored.cancel()
        await asyncio.gather(running, scored, return_exceptions=True)


def main() -> None:
    """Read a job from standard input and print the answer."""
    sys.stdout.write(json.dumps(answer(sys.stdin.read())) + "\n")


if __name__ == "__main__":
    main()
