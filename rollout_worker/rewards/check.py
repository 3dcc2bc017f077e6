"""Tries the reward functions of a job where it is submitted: the first problem, with its own answer as completion.

The command that submits a job runs this as a child process, `python -m rollout_worker.rewards.check`, since the control
plane runs no environment and no function. The child reads a job as JSON from standard input, and writes one JSON object
to standard output: `tried`, a list with the `label`, `weight` and either the `value` or the `failure` of each function,
or an error (`reason`, `message`) if a function of the user's own cannot be loaded. Functions run in processes of their
own, as on a worker.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from periplus import errors
from periplus.environment.environment import Environment, Item
from periplus.environment.job_environment import trainer_environment
from periplus.errors import ConfigError, PeriplusError, explained_error, leaves
from periplus.job.job_file import JobFile
from periplus.job.reward_code import read_code
from periplus.job.reward_functions import OwnReward, WeightedFunction, label_of
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.scorer import RewardScorer


def answer(job_json: str) -> dict[str, Any]:
    """Return the JSON object that the child process prints, for a job given as JSON."""
    try:
        job = JobFile.from_json(job_json)
        environment = trainer_environment(job).environment
        with tempfile.TemporaryDirectory(prefix="periplus-reward-code-") as folder:
            for name, content in read_code(job.reward, job.environment).items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            return {"tried": asyncio.run(_tried(job, environment, Path(folder)))}
    except PeriplusError as error:
        return {"reason": errors.reason(error), "message": str(error)}


async def _tried(job: JobFile, environment: Environment, folder: Path) -> list[dict[str, Any]]:
    item = environment.item(0)
    return [await _try(job, environment, item, entry, folder) for entry in job.reward.entries]


async def _try(
    job: JobFile, environment: Environment, item: Item, entry: WeightedFunction, folder: Path
) -> dict[str, Any]:
    """Return what one function says. Raises: ConfigError if a function of the user's own cannot be loaded."""
    said: dict[str, Any] = {"label": label_of(entry), "weight": entry.weight}
    section = job.reward.model_copy(update={"name": None, "functions": (entry,), "on_failure": "fail", "processes": 1})
    # Where the kernel here refuses a sandbox, another machine's may not: the functions' own region decides.
    scorer = build_scorer(section, environment, asyncio.Lock(), RewardPlace(code_folder=folder))
    # The completion's length in tokens is not known here: no tokenizer is loaded.
    scoring = scorer.score(item, item.answer, num_tokens=len(item.answer))
    try:
        if not isinstance(scorer, RewardScorer):
            return said | {"value": (await scoring).reward}
        score = await _first(scorer, scoring)
        return said | {"value": score.parts.get(label_of(entry))}
    except ConfigError as error:
        if isinstance(entry, OwnReward):
            raise
        return said | {"failure": str(error)}
    except PeriplusError as error:
        return said | {"failure": str(error)}


async def _first(scorer: RewardScorer, scoring: Any) -> Any:
    """Run a scorer's processes until it has scored once. Raises: PeriplusError."""
    running, scored = asyncio.ensure_future(scorer.run()), asyncio.ensure_future(scoring)
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
