"""Checks a job on the machine that submits it, before it is sent to a coordinator.

Model and data files are checked in this process. Checks that need a tokenizer, an environment or the model's class run
in a child process of the trainer's package (`trainer/preflight.py`), whose errors are raised here unchanged. On a
machine without that package's libraries these checks are left to the trainer, which runs them again when it starts.
"""

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from periplus import errors
from periplus.errors import ConfigError, PeriplusError
from periplus.job.inputs import check_inputs
from periplus.job.job_file import BUILTIN_PREFIX, JobFile

DEADLINE_S = 120.0
"""Seconds that the child process may take; chosen by hand.

The child limits its processor time to a sixth of this; a slower check waits for a disk or for other programs.
"""

_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """What the checks of a job found, as texts for a person.

    `left` has warnings, such as that no test covers the model's architecture or that most problems are left out, and a
    sentence for each check that was left to the trainer. `shown` describes what the job applies: the data that was
    read, how many problems are left out, how prompts are framed, and the first prompt with its tokens.
    """

    left: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


def check_job(job: JobFile) -> CheckedJob:
    """Check a job as far as this machine can.

    Raises: ConfigError if the job cannot run, PeriplusError if the child process failed.
    """
    remarks = check_inputs(job)
    # The built-in model needs no torch: only its tokenizer is used.
    needed: tuple[str, ...] = (
        ("tokenizers",) if job.model.path.startswith(BUILTIN_PREFIX) else ("tokenizers", "torch", "transformers")
    )
    needed += ("reasoning_gym",) if job.environment is not None and not job.environment.has_turns else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        lacking = f"{', '.join(missing)} is not installed here"
        return CheckedJob(
            left=(
                *remarks,
                f"prompts and weights are checked when the trainer starts: {lacking}",
            )
        )
    found = _ask_child(job)
    if "reason" in found:
        raise errors.from_reason(str(found["reason"]), str(found["message"]))
    left = [*remarks, *found["remarks"]]
    counts = str(found["counts"])
    # The child stops early on a large data set, so that submitting stays fast.
    if found["prompts"] < found["problems"]:
        checked = f"{found['prompts']} of {found['problems']} prompts were checked"
        left.append(f"{checked}; the trainer checks all at its start")
        counts = f"of the first {found['prompts']} problems: {counts}"
    if found["is_mostly_left_out"]:
        left.append(f"warning: most problems are not used: {counts}")
    return CheckedJob(left=tuple(left), shown=_shown(found, counts))


def _shown(found: Mapping[str, Any], counts: str) -> tuple[str, ...]:
    tokens = " ".join(map(str, found["first_tokens"]))
    return (
        *found["read"],
        counts,
        f"problems: {found['problems']}; prompts are framed by {found['framing']}",
        f"first prompt: {found['first_prompt']!r}",
        f"its tokens: {tokens}",
        f"its answer: {found['first_answer']!r}",
    )


def _ask_child(job: JobFile) -> dict[str, Any]:
    # -P keeps a folder named `trainer` in the current directory from being imported in place of the package.
    command = [sys.executable, "-P", "-m", "trainer.preflight"]
    # The job goes in on standard input, and the answer is the last line of standard output.
    try:
        done = subprocess.run(
            command, input=job.to_json(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"model, data and environment could not be checked within {DEADLINE_S:.0f} s; is the machine busy, or the "
            "disk of model.path or data.path slow?"
        ) from error
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # Without an answer, the exit status tells why: the child limits its own processor time and memory, because settings
    # of an environment may ask for any amount of either.
    except (IndexError, ValueError) as error:
        if done.returncode == -signal.SIGXCPU:
            raise ConfigError(
                "the check of model, data and environment used up its processor time; is a setting in "
                "environment.config so large that one problem takes that long, or is the file of data.path huge?"
            ) from error
        if done.returncode < 0:
            raise ConfigError(
                f"the check of model, data and environment was killed by signal {-done.returncode}; does a setting in "
                "environment.config need more memory than this machine has?"
            ) from error
        last = (done.stderr.splitlines() or ["no output"])[-1][:_SHOWN_CHARACTERS]
        raise PeriplusError(
            f"the check of model, data and environment failed with exit code {done.returncode}: {last}"
        ) from error
    return found
