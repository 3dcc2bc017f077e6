"""Finds the job that a command line submits: the job of a file, or the job of a run that it resumes."""

from collections.abc import Sequence
from pathlib import Path

import click

from periplus.job.job_file import JobFile, load_job
from periplus.job.resumption import ResumePoint, resumption
from periplus.view.terminal.visible import say


def job_to_submit(
    file: Path | None, overrides: Sequence[str], resume: Path | None, *, may_change: bool
) -> tuple[JobFile, ResumePoint | None]:
    """Return the job to submit, and the checkpoint from which it resumes a run, or None for a new job.

    For a resumed run, print the checkpoint and each change of the run's job to standard error.
    Raises: click.UsageError if the arguments do not fit together; NotFound, Conflict or ConfigError from `resumption`.
    """
    if file is not None and "=" in file.name and not file.exists():  # FILE was left out: this is the first KEY=VALUE
        file, overrides = None, (str(file), *overrides)
    if resume is not None:
        return _resumed(resume, file, overrides, may_change=may_change)
    if may_change:
        raise click.UsageError("--change is only for --resume RUN: a new job is made of its file and the overrides")
    if file is None:
        raise click.UsageError("give the job's FILE, or --resume RUN to resume a run")
    return load_job(file, overrides), None


def _resumed(
    run_dir: Path, file: Path | None, overrides: Sequence[str], *, may_change: bool
) -> tuple[JobFile, ResumePoint]:
    found = resumption(run_dir, file, overrides, may_change=may_change)
    say(f"resumes {found.checkpoint.job_id} from its checkpoint {found.checkpoint.policy}", err=True)
    for change in found.changes:
        say(f"  changes {change.key} from {change.before} to {change.after}", err=True)
    if found.rates is not None:
        was, goes_on = found.rates
        step = found.checkpoint.policy.version
        shown = ["a rate by its schedule" if rate is None else f"{rate:.3g}" for rate in (was, goes_on)]
        say(f"  the learning rate at step {step} was {shown[0]} and goes on with {shown[1]}", err=True)
    return found.job, found.checkpoint
