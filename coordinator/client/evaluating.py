"""The command `periplus eval CHECKPOINT SET...`: it evaluates a model on its own, without training it.

The evaluation is a job of no steps, so that it runs where jobs run, with their engines and reward functions, and keeps
its samples in a run directory. Without a fleet the command runs one on this machine until the job has ended.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from coordinator.client.address import local_fleet
from coordinator.client.code_agreement import agree_to_code, show_code
from coordinator.client.library.client import Client, connect
from coordinator.client.library.starting import up
from coordinator.client.library.submitted_job import SubmittedJob
from periplus.cli.option_types import DIALLED
from periplus.config import finite_json
from periplus.config.local_paths import exists
from periplus.errors import ConfigError, shortened
from periplus.job.job_file import job_of, load_job, recorded_job
from periplus.job.run_directory import RunDirectory
from periplus.view.set_scores_text import scores_text
from periplus.view.terminal.visible import say

KEPT_SECTIONS = ("model", "reward", "sampling", "engine", "network", "failure", "regions", "plan", "seed", "output")
"""Keys of the job of --job that an evaluation has too. What trains is left out."""

OVERRIDE = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)*=")
"""How an argument begins that sets a key of the job and names no set."""


@click.command("eval")
@click.argument("checkpoint")
@click.argument("words", nargs=-1, required=True, metavar="SET... [KEY=VALUE]...")
@click.option(
    "--job",
    "base",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE|RUN",
    help="Job file or run whose reward, sampling, chat template and evaluation sets are used.",
)
@click.option("--samples", type=click.IntRange(min=1), help="Completions of each problem.  [default: 1, or the set's]")
@click.option("--temperature", type=click.FloatRange(0, 4), help="0 is greedy.  [default: 0, or the set's]")
@click.option("--limit", type=click.IntRange(min=1), help="Number of problems of each set, from the start.")
@click.option("--allow-code", is_flag=True, help="Agree to send the job's own code (reward.code) without being asked.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of the result.")
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    type=DIALLED,
    default=None,
    show_default="the local fleet of `periplus up`, else a fleet for this command alone",
    help="Address of the coordinator.",
)
def evaluate(
    checkpoint: str,
    words: tuple[str, ...],
    base: Path | None,
    samples: int | None,
    temperature: float | None,
    limit: int | None,
    allow_code: bool,
    output: str,
    coordinator: str | None,
) -> None:
    """Evaluate CHECKPOINT on evaluation sets, without training: a local directory, a name on the Hub, or a run.

    A SET is a data file or directory, a data set of the Hub, a task of reasoning-gym, or the name of one of the sets of
    --job. KEY=VALUE sets a key of the job, such as sampling.max_new_tokens=512 or eval.sets.NAME.data.split=test.
    """
    overrides = tuple(word for word in words if OVERRIDE.match(word) and not exists(Path(word)))
    names = [word for word in words if word not in overrides]
    sampled = {"samples": samples, "num_prompts": limit, "sampling": temperature}
    tree = evaluation_tree(checkpoint, names, {} if base is None else _tree_of(base), sampled)
    job = job_of(tree, overrides, "the evaluation", base.absolute().parent if base else None)
    show_code(job)
    agree_to_code(job, is_agreed=allow_code)
    with _client(coordinator) as client:
        submitted = client.submit(job, allow_code=True)
        found = _followed(submitted)
        submitted.wait()
        run = submitted.run_dir
    if output == "json":
        click.echo(finite_json.dumps({"run": str(run), "sets": found}))
        return
    for name, values in found.items():
        say(f"{name}: {scores_text(values)}")
    say(f"samples: periplus job samples {run} --set {next(iter(found), 'NAME')}", err=True)


def evaluation_tree(
    checkpoint: str, sets: list[str], base: Mapping[str, Any], sampled: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keys of the job that evaluates a checkpoint on sets.

    `base` has the keys of the job that it is like. `sampled` has `samples`, `num_prompts` and a temperature as
    `sampling`, each None for what the set says. Raises: ConfigError without a set.
    """
    if not sets:
        raise ConfigError("no evaluation set is given; name a data file, a data set, a task, or a set of --job")
    run = RunDirectory(Path(checkpoint))
    known = dict(base.get("eval", {}).get("sets", {}))
    chosen: dict[str, Any] = {}
    for text in sets:
        name = _name(text, chosen)
        each = dict(known[text]) if text in known else _set_of(text)
        temperature = sampled.get("sampling")
        if temperature is not None:
            each["sampling"] = {**each.get("sampling", {}), "temperature": temperature}
        each |= {key: sampled[key] for key in ("samples", "num_prompts") if sampled.get(key) is not None}
        chosen[name] = {key: value for key, value in each.items() if key != "every_steps"}
    tree = {key: base[key] for key in KEPT_SECTIONS if key in base}
    path = str(run.final) if run.final.is_dir() else checkpoint
    model = {key: value for key, value in tree.get("model", {}).items() if key not in ("path", "revision", "lora")}
    return {
        **tree,
        "name": "eval",
        "model": {**model, "path": path},
        "eval": {"sets": chosen},
        "steps": 0,
        "checkpoint": {"every_steps": 0},
    }


def _set_of(text: str) -> dict[str, Any]:
    is_task = not exists(Path(text)) and re.fullmatch(r"[a-z0-9_]+", text) is not None
    return {"environment": {"name": text}} if is_task else {"data": {"path": text}}


def _name(text: str, taken: Mapping[str, Any]) -> str:
    stem = re.sub(r"[^a-z0-9_-]+", "-", Path(text).name.split(".")[0].lower()).strip("-_")[:28] or "set"
    return next(
        name for name in (stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 3))) if name not in taken
    )


def _tree_of(base: Path) -> dict[str, Any]:
    job = recorded_job(RunDirectory(base).config) if base.is_dir() else load_job(base)
    if job.environment is not None and job.environment.has_turns:
        raise ConfigError(f"--job {base} plays episodes of several turns, which an evaluation alone cannot yet")
    return job.model_dump(mode="json")


def _client(coordinator: str | None) -> Client:
    if coordinator is not None or local_fleet() is not None:
        return connect(coordinator)
    say("no fleet runs on this machine: one is started for this evaluation", err=True)
    return up()


def _followed(job: SubmittedJob) -> dict[str, dict[str, Any]]:
    """Show what an evaluation does until it has ended, and return the values of each set by name."""
    found: dict[str, dict[str, Any]] = {}
    for record in job.metrics(follow=True, kinds=("phase", "notice", "eval_set")):
        text = str(record.get("text", ""))
        if record["kind"] == "eval_set":
            found[text] = {key: value for key, value in record.items() if isinstance(value, float)}
        say(f"{record['kind'].replace('_', ' ')}: {shortened(text)}", err=True)
    return found
