"""Tries a job's reward functions or environment where it is submitted, in a child process of the worker's package.

What a function says of the first problem's own answer is shown: a right answer that gets no reward is the commonest
mistake. A function or an environment of the user's own that cannot be loaded, raises, or returns no value refuses the
job. Other functions may lack a library or a sandbox here that workers have, so that their failures are only told.
"""

import json
import subprocess
import sys
from typing import Any

from periplus import errors
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile

DEADLINE_S = 180.0
"""Seconds that the child process may take. Loading math-verify takes a second, a reward model as long as its disk is
slow. Chosen by hand."""


def try_rewards(job: JobFile) -> tuple[str, ...]:
    """Return sentences on what the job's reward functions say of the first problem's own answer.

    There are none where an environment of the runtime's alone scores. Raises: ConfigError if one of the user's own is
    refused; PeriplusError.
    """
    if job.reward.is_verifier_alone and (job.environment is None or job.environment.path is None):
        return ()
    found = _ask_child(job)
    if "unknown" in found:
        return (f"the reward functions were not tried here: {found['unknown']}",)
    if "reason" in found:
        raise errors.from_reason(str(found["reason"]), str(found["message"]))
    return ("rewards of the first problem's own answer:", *(f"  {_said(each)}" for each in found["tried"]))


def _ask_child(job: JobFile) -> dict[str, Any]:
    """Return what `rollout_worker.rewards.check` answers, or as `unknown` the last that it said without an answer."""
    # -P keeps a folder named `rollout_worker` in the current directory from being imported in place of the package.
    command = [sys.executable, "-P", "-m", "rollout_worker.rewards.check"]
    try:
        done = subprocess.run(
            command, input=job.to_json(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the reward functions could not be tried within {DEADLINE_S:.0f} s; does one of them load something "
            "large, or wait for another machine?"
        ) from error
    except (IndexError, ValueError):
        last = (done.stderr.splitlines() or ["no output"])[-1][: errors.LINE_CHARACTERS]
        return {"unknown": last}
    return found


def _said(tried: dict[str, Any]) -> str:
    if "failure" in tried:
        return f"{tried['label']}: not known here: {tried['failure']}"
    value = "does not judge it" if tried["value"] is None else f"{tried['value']:g}"
    return f"{tried['label']}: {value}, weight {tried['weight']:g}"
