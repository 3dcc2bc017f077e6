"""Finds how a run is resumed: from its newest checkpoint, with its own job, and with which changes of that job.

A run is resumed with the job that it was started with (`config.yaml` in its directory). A change of the job is listed
key by key and refused unless the user asked for it. Keys in `FIXED` can never be changed, because the run's guarantees
would break or its audit compares them between forks. A *fork* is one life of the run's trainer; each resumption starts
the next fork. This module only reads run directories.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from periplus.audit.journal import is_being_written
from periplus.errors import ConfigError, Conflict, NotFound
from periplus.job.data_section import DataSection
from periplus.job.job_file import JobFile, changed_job, recorded_job
from periplus.job.run_directory import RunDirectory, read_lines
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from periplus.values.task import resume_command

MANIFEST = "manifest.json"
"""File name of a checkpoint's manifest, which only a complete checkpoint has."""

CHECKPOINT_SCHEMA = "periplus.checkpoint/1"
"""Schema of the manifests that this version reads."""

_PROBLEMS = "it decides which problems are trained on and which are held out, so the accuracy would mean nothing"
_AUDITED = "the audit of a run holds all its forks to one"
FIXED: Mapping[str, str] = {
    "staleness": f"{_AUDITED} bound",
    "seed": f"{_AUDITED} seed, from which all randomness and the order of the problems come",
    "algorithm.name": f"{_AUDITED} algorithm, and the optimizer's state in the checkpoint belongs to it",
    "algorithm.group_size": f"{_AUDITED} size of groups",
    "train.groups_per_step": f"{_AUDITED} size of batches",
    "environment": _PROBLEMS,
    **{f"data.{key}": _PROBLEMS for key in DataSection.model_fields if key not in ("path", "revision")},
    "model.chat_template": "the model would see other prompts than those that it was trained on",
    "model.chat_template_kwargs": "the model would see other prompts than those that it was trained on",
    "eval.num_prompts": _PROBLEMS,
    "train.warmup.num_examples": _PROBLEMS,
    "model.lora": "a checkpoint holds the adapters of this rank and these layers, which fit no others",
    "output.dir": "a resumed run writes to its own directory",
}
"""Keys and sections of the job that a resumption may never change, each with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The newest checkpoint of a run directory.

    `policy` is the checkpoint's policy. `highest_fork` is the highest fork of any trainer that wrote records there,
    even if it saved no checkpoint; the next fork must be higher, also from a coordinator that does not know the job.
    `allows_other_problems` lets the trainer go on although its problems are not those of the checkpoint.
    """

    run_dir: Path
    job_id: str
    policy: Policy
    highest_fork: int
    allows_other_problems: bool = False

    @property
    def resume_policy(self) -> Policy:
        """The policy that a request to resume names: the checkpoint's version, and the highest fork so far."""
        return Policy(self.highest_fork, self.policy.version)


@dataclass(frozen=True, slots=True)
class JobChange:
    """A key of the job whose value differs from that of the run; both values are JSON texts."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How a run is resumed: the job, the checkpoint, and the changes from the run's own job.

    `rates` are the learning rates of the last step that was done and of the next one, if the changes give the next one
    another rate than the run's own job would.
    """

    job: JobFile
    checkpoint: ResumePoint
    changes: tuple[JobChange, ...]
    rates: tuple[float | None, float | None] | None = None


def resumption(run_dir: Path, file: Path | None, overrides: Sequence[str], *, may_change: bool) -> Resumption:
    """Return how to resume a run with its own job, changed by the keys that `file` and `overrides` give.

    Changes are allowed only with `may_change`.
    Raises: NotFound if the run, a checkpoint or its job does not exist; Conflict if its trainer still runs; ConfigError
    for a change that is not allowed, or if the run has no steps left.
    """
    checkpoint = newest_checkpoint(run_dir)
    run = RunDirectory(checkpoint.run_dir)
    recorded = recorded_job(run.config)
    job = changed_job(recorded, file, overrides)
    changes = changes_between(recorded, job)
    _check_changes(run_dir, changes, may_change=may_change)
    # A trainer that runs holds a lock on its journal. A second one would write the same fork.
    if is_being_written(run.audit):
        raise Conflict(
            f"{run_dir} is still being written by its trainer; stop that first, with `periplus job cancel "
            f"{checkpoint.job_id}`, or by stopping its agent if no coordinator knows the job any more"
        )
    _check_steps(run_dir, run, checkpoint.policy.version, job.steps)
    if Path(job.output.dir).is_absolute():  # the run may have been moved
        job = in_directory_of(checkpoint, job)
    checkpoint = replace(checkpoint, allows_other_problems=may_change)
    rates = _changed_rates(recorded, job, checkpoint.policy.version)
    return Resumption(job=job, checkpoint=checkpoint, changes=changes, rates=rates)


def _changed_rates(before: JobFile, after: JobFile, version: int) -> tuple[float | None, float | None] | None:
    shapes = [(job.optimizer, job.steps) for job in (before, after)]
    last, planned = (before.learning_rate(step) for step in (version - 1, version))
    if version == 0 or shapes[0] == shapes[1] or planned == (rate := after.learning_rate(version)) is not None:
        return None
    return last, rate


def in_directory_of(checkpoint: ResumePoint, job: JobFile) -> JobFile:
    """Return the job with its output directory set to the absolute path where its run lies."""
    output = job.output.model_copy(update={"dir": str(checkpoint.run_dir.parent)})
    return job.model_copy(update={"output": output})


def newest_checkpoint(run_dir: Path) -> ResumePoint:
    """Return the complete checkpoint of a run with the highest (fork, version).

    Raises: NotFound if the directory or a checkpoint does not exist; ConfigError if a manifest is not readable, or if
    the directory is not named by the job's id.
    """
    if not run_dir.is_dir():
        raise NotFound(f"{run_dir} does not exist; give the directory of a run, such as runs/JOB")
    run = RunDirectory(run_dir.resolve())
    # A checkpoint without a manifest was being written when its trainer died, and does not count.
    manifests = sorted(run.checkpoints.glob(f"*/{MANIFEST}"))
    if not manifests:
        raise NotFound(
            f"{run_dir} holds no checkpoint (checkpoints/FORK.VERSION/{MANIFEST}), so there is nothing to resume from; "
            "is it a run directory? If it is, submit its job again"
        )
    newest = max((_read(run.root, manifest) for manifest in manifests), key=lambda found: found.policy)
    if newest.job_id != run.root.name:
        raise ConfigError(
            f"{run_dir} holds the checkpoints of job {newest.job_id}, and a run's directory must be named by its job's "
            f"id; rename the directory {run.root.name} to {newest.job_id}"
        )
    # A fork may have ended before its first checkpoint; its number is used all the same.
    return replace(newest, highest_fork=max([newest.policy.fork, *_forks_of_records(run)]))


def changes_between(before: JobFile, after: JobFile) -> tuple[JobChange, ...]:
    """Return every key whose value differs between two jobs, in the order of the job file."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    keys = dict.fromkeys((*old, *new))
    return tuple(
        JobChange(key, old.get(key, "nothing"), new.get(key, "nothing")) for key in keys if old.get(key) != new.get(key)
    )


def _check_changes(run_dir: Path, changes: Sequence[JobChange], *, may_change: bool) -> None:
    # Fixed keys first: --change would not help with these.
    refused = [(change, reason) for change in changes if (reason := _fixed(change.key))]
    if refused:
        lines = [f"  {each.key}: {each.before} in the run, {each.after} now: {reason}" for each, reason in refused]
        raise ConfigError(
            "\n".join([f"{run_dir} cannot be resumed with a changed", *lines, "leave these out, or submit a new job"])
        )
    if changes and not may_change:
        lines = [f"  {each.key}: {each.before} in the run, {each.after} now" for each in changes]
        what = f"{run_dir} is resumed with its own job, but this would change it:"
        advice = "add --change if you want that, or leave out the job file and these keys; nothing was submitted"
        raise ConfigError("\n".join([what, *lines, advice]))


def _fixed(key: str) -> str:
    return next((why for fixed, why in FIXED.items() if key == fixed or key.startswith(f"{fixed}.")), "")


def _check_steps(run_dir: Path, run: RunDirectory, version: int, steps: int) -> None:
    advice = f"to train longer, raise steps: `{resume_command(str(run_dir))} steps=N --change`"
    if version > steps:
        raise ConfigError(f"{run_dir} has already done {version} steps, more than steps={steps}; {advice}")
    if version == steps and _is_summed_up(run, steps):
        raise ConfigError(f"{run_dir} has done all its {steps} steps and its model is in {run.final}; {advice}")


def _is_summed_up(run: RunDirectory, steps: int) -> bool:
    """Return whether the final evaluation and the export of the model, which follow the last step, are done too."""
    done = any(
        record.get("kind") == RecordKind.SUMMARY and record.get("version") == steps for record in _raw_records(run)
    )
    return done and any(run.final.glob("*.safetensors"))


def _read(run_dir: Path, manifest: Path) -> ResumePoint:
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        if data.get("schema", CHECKPOINT_SCHEMA) != CHECKPOINT_SCHEMA:
            raise ConfigError(
                f"{manifest} has schema {data['schema']!r}, but this version reads {CHECKPOINT_SCHEMA}; resume with "
                "the version of Periplus that wrote it"
            )
        policy = Policy(int(data["fork"]), int(data["version"]))
        return ResumePoint(run_dir=run_dir, job_id=str(data["job_id"]), policy=policy, highest_fork=policy.fork)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{manifest} is not a checkpoint manifest ({error!r}); remove that checkpoint") from error


def _forks_of_records(run: RunDirectory) -> Iterator[int]:
    for record in _raw_records(run):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the trainer reports bad records when it resumes
            yield int(record["fork"])


def _raw_records(run: RunDirectory) -> Iterator[Mapping[str, Any]]:
    for line in read_lines(run.metrics) if run.metrics.exists() else ():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value)
    return flat
