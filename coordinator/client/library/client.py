"""The connection of a script to a fleet: it submits jobs from dicts, objects or files, and finds those of before.

A job is checked as `periplus job submit` checks it, before the coordinator hears of it.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.client.address import VARIABLE, coordinator_address, local_fleet
from coordinator.client.library.calls import BlockingCoordinator, answering
from coordinator.client.library.submitted_job import JobStatus, SubmittedJob, job_status
from coordinator.client.preflight import check_job
from coordinator.client.reward_trial import try_rewards
from coordinator.client.submission import plan_by_hand, submission
from coordinator.members.access import access_of
from periplus.errors import ConfigError, Unreachable
from periplus.job.job_file import SCHEMA, JobFile, job_of, load_job
from periplus.job.resumption import ResumePoint, resumption
from planner.plan import Plan

_REQUEST_ID_BYTES = 16


class Client:
    """A connection to a fleet. Use it as a context manager, or call `close`; the jobs go on without it."""

    def __init__(self, coordinator: BlockingCoordinator) -> None:
        self._coordinator = coordinator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of the coordinator at {self.address}>"

    @property
    def address(self) -> str:
        """The coordinator's host:port, which commands take as --coordinator."""
        return self._coordinator.address

    def submit(
        self,
        job: Mapping[str, Any] | JobFile | str | os.PathLike[str],
        *,
        overrides: Sequence[str] = (),
        allow_code: bool = False,
        plan: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> SubmittedJob:
        """Check a job, submit it, and return it at once. It waits for its regions by itself.

        The job is a mapping with the keys of a job file, a `JobFile`, or the path of a job file. `overrides` such as
        "steps=3" replace keys of it. Relative paths of model and data start at the working directory. A job whose
        reward functions or environment are code of one's own sends it to other machines, and needs `allow_code`.
        `plan` says where its processes run: a mapping with the keys of a plan file, or the path of one.

        Raises: ConfigError for a job that cannot run or a plan that is none, Unreachable.
        """
        by_hand = plan_by_hand(Path(plan)) if isinstance(plan, str | os.PathLike) else None
        if isinstance(plan, Mapping):
            by_hand = Plan.from_tree(_plain(plan), "the plan")
        return self._submit(_job_file(job, overrides), allow_code=allow_code, plan=by_hand)

    def resume(
        self,
        run_dir: str | os.PathLike[str],
        *,
        overrides: Sequence[str] = (),
        allow_code: bool = False,
        allow_other_problems: bool = False,
    ) -> SubmittedJob:
        """Resume a run from its newest checkpoint, and return its job. `overrides` change the run's own job.

        `allow_code` agrees that the job's own code is sent, as for `submit`. `allow_other_problems` lets the run go on
        although its data has changed, so that held-out problems may have been trained on.

        Raises: NotFound if there is no checkpoint, Conflict if the run is being written, ConfigError, Unreachable.
        """
        found = resumption(Path(run_dir), None, overrides, may_change=bool(overrides))
        checkpoint = replace(found.checkpoint, allows_other_problems=allow_other_problems)
        return self._submit(found.job, checkpoint, allow_code=allow_code)

    def _submit(
        self, job: JobFile, checkpoint: ResumePoint | None = None, *, allow_code: bool, plan: Plan | None = None
    ) -> SubmittedJob:
        if job.has_own_code and not allow_code:
            raise ConfigError(
                f"this job sends code of its own to other machines: {', '.join(job.code_digests)}; read it, and agree "
                "with allow_code=True"
            )
        unchecked = check_job(job).left
        try_rewards(job)
        # The id makes a repeated request harmless: the coordinator answers it with the same job.
        request = submission(job, secrets.token_hex(_REQUEST_ID_BYTES), checkpoint, plan)
        return SubmittedJob(self._coordinator, self._coordinator.submit(request).job_id, unchecked)

    def job(self, job_id: str) -> SubmittedJob:
        """Return a job that was submitted before. `job_id` may be the beginning of its id.

        Raises: NotFound, Conflict if several ids begin so.
        """
        return SubmittedJob(self._coordinator, self._coordinator.job(job_id).job_id)

    def jobs(self) -> tuple[JobStatus, ...]:
        """Return how all jobs of the fleet are now, the newest last."""
        return tuple(map(job_status, self._coordinator.jobs()))

    def close(self) -> None:
        """Close the connection. The jobs go on."""
        self._coordinator.close()


def connect(address: str | None = None) -> Client:
    """Connect to the coordinator at `address`, such as "127.0.0.1:7070", and return the connection.

    Without an address it is the one in PERIPLUS_COORDINATOR, else the fleet that `periplus up` runs on this machine,
    else the default address of `periplus coordinator`.

    Raises: Unreachable if no coordinator answers, Conflict if several local fleets run.
    """
    given = address if address is not None else os.environ.get(VARIABLE) or None
    found = coordinator_address(given)
    coordinator = answering(found, access_of(found))
    if coordinator is None:
        nobody = f"no coordinator answers at {found}"
        if given is None and local_fleet() is None:
            nobody = f"no local fleet runs on this machine, and {nobody}"
        raise Unreachable(
            f"{nobody}; start a fleet in a terminal with `periplus up`, or in the script with periplus.up(), or name "
            f"another with connect(ADDRESS) or {VARIABLE}"
        )
    return Client(coordinator)


def _job_file(job: Mapping[str, Any] | JobFile | str | os.PathLike[str], overrides: Sequence[str]) -> JobFile:
    """Return the resolved job. Raises: ConfigError, TypeError for anything that describes no job."""
    if isinstance(job, str | os.PathLike):
        return load_job(Path(job), overrides)
    # A JobFile is checked as a file is: the rules between keys are not those of its class.
    tree = json.loads(job.to_json()) if isinstance(job, JobFile) else _plain(job)
    if "schema" in tree and tree.pop("schema") != SCHEMA:
        raise ConfigError(f"the job: schema must be {SCHEMA}; leave it out, or use the version of Periplus that has it")
    return job_of(tree, overrides)


def _plain(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with JSON values alone: a job may hold paths and tuples. Raises: ConfigError for any other."""
    if not isinstance(job, Mapping):
        raise TypeError(f"a job is a mapping, a JobFile or the path of a job file, not {type(job).__name__}")
    try:
        tree: dict[str, Any] = json.loads(json.dumps(dict(job), default=_value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the job: {error}; give text, numbers, true, false, null, lists and mappings") from error
    return tree


def _value(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which a job file cannot hold")
