"""The owner of a region, as the agent asks: reads the policy file again, counts the day's egress, and refuses tasks.

A refusal stays until the coordinator no longer wants the task, so that its report does not change when a limit opens.
A task that runs while the policy begins to refuse it is asked to stop, and then reported as failed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from periplus.errors import Denied, PeriplusError
from periplus.job.run_directory import write_atomically
from periplus.net.join_token import TOKEN_VARIABLE
from periplus.process.telemetry import event
from periplus.values.machine import Inventory
from periplus.values.task import TaskReport
from region_agent.control.reconcile import LocalTask
from region_agent.owner.egress import DayOfEgress, kept_day
from region_agent.owner.policy_file import AgentPolicy, read_policy
from region_agent.owner.refusals import GB, OwnerRefusal, offered_by_owner, refusal

log = logging.getLogger(__name__)

KEPT_EVERY_S = 5.0
"""Seconds between two writes of the day's egress: an agent that is killed forgets what it sent in them. Chosen by
hand."""


class RegionOwner:
    """The policy of a region, and the tasks that it refuses. Without a `file`, the owner allows everything."""

    def __init__(
        self,
        file: Path | None = None,
        policy: AgentPolicy = AgentPolicy(),  # noqa: B008  # frozen
        day_file: Path | None = None,
        day: DayOfEgress = DayOfEgress(),  # noqa: B008  # frozen
    ) -> None:
        self._file = file
        self.policy = policy
        self._day_file = day_file
        self._day = day
        self._kept, self._kept_at_s = day, 0.0
        self._woken, self._has_new_day = asyncio.Event(), False
        self._refused: dict[tuple[str, int], OwnerRefusal] = {}  # by (task id, fork)

    @classmethod
    def of_file(cls, file: Path | None, day_file: Path, now_unix_s: float) -> "RegionOwner":
        """Return the owner who wrote a policy file. Raises: ConfigError if it is none."""
        if file is None:
            return cls()
        policy = read_policy(file)
        event(log, logging.INFO, "owner_policy", file=file, **policy.model_dump(mode="json"))
        return cls(file, policy, day_file, kept_day(day_file).counted(0, now_unix_s))

    def wake(self) -> None:
        """Let `changed` return now, as when a person has changed the file and says so."""
        self._woken.set()

    async def changed(self, limit_s: float) -> bool:
        """Wait for `wake` or so many seconds, and return whether the coordinator may plan here again what was refused.

        It may if the policy has changed, or a day with new egress has begun.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._woken.wait()
        self._woken.clear()
        has_new_day, self._has_new_day = self._has_new_day, False
        return await asyncio.to_thread(self.reread) or has_new_day

    def reread(self) -> bool:
        """Read the policy file again, and return whether it has changed. One that is broken changes nothing."""
        if self._file is None:
            return False
        try:
            policy = read_policy(self._file)
        except PeriplusError as error:
            event(log, logging.ERROR, "owner_policy_broken", why=error, kept="the policy that was read before")
            return False
        if policy == self.policy:
            return False
        self.policy = policy
        event(log, logging.INFO, "owner_policy", file=self._file, **policy.model_dump(mode="json"))
        return True

    async def count(self, sent_bytes: int, now_unix_s: float) -> None:
        """Take note of the gateway's counter of sent bytes, and keep the day's count now and then."""
        if self._day_file is None:  # there is no policy
            return
        before, self._day = self._day, self._day.counted(sent_bytes, now_unix_s)
        if before.day != self._day.day:
            self._has_new_day = True
            self.wake()
        if abs(now_unix_s - self._kept_at_s) >= KEPT_EVERY_S:
            self._kept_at_s = now_unix_s
            await asyncio.to_thread(self.keep)

    def keep(self) -> None:
        """Keep the day's count for the next agent. An error is logged."""
        if self._day_file is None or self._day == self._kept:
            return
        try:
            self._day_file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._day_file, self._day.to_json())
            self._kept = self._day
        except (OSError, PeriplusError) as error:
            event(log, logging.WARNING, "egress_not_kept", why=error)

    def offered(self, found: Inventory) -> Inventory:
        """Return what the agent tells of what it found."""
        return offered_by_owner(self.policy, replace(found, relays=found.relays and not self.spent()))

    def spent(self) -> str:
        """Return why the gateway may relay no more bytes today; empty if it may."""
        limit = self.policy.egress_gb_per_day
        if limit is None or self._day.sent_bytes < limit * GB:
            return ""
        return f"the owner of the region lets it send {limit:g} GB a day; it relays again at {self._day.ends_at}"

    def admitted(self, wanted: Mapping[str, LocalTask], started: Collection[str]) -> dict[str, LocalTask]:
        """Return the tasks that may run, by id. One that is refused and `started` is among them, as one to stop."""
        keys = {(task_id, task.fork) for task_id, task in wanted.items()}
        self._refused = {key: why for key, why in self._refused.items() if key in keys or key[0] in started}
        found = {}
        for task_id, task in wanted.items():
            if not self._refuses(task, is_started=task_id in started):
                found[task_id] = task
            elif task_id in started:
                found[task_id] = replace(task, stopping=True)
        return found

    def reported(self, wanted: Mapping[str, LocalTask], reports: Mapping[str, TaskReport]) -> dict[str, TaskReport]:
        """Return the reports of all tasks, with the refusals among those that are `wanted`."""
        found = dict(reports)
        for (task_id, fork), refused in self._refused.items():
            if task_id in found:
                found[task_id] = self.said(found[task_id])
            elif task_id in wanted and wanted[task_id].fork == fork:
                found[task_id] = refused.unstarted(wanted[task_id])
        return found

    def said(self, report: TaskReport) -> TaskReport:
        """Return the report of a task, as one of a refused task if it is."""
        refused = self._refused.get((report.task_id, report.fork))
        return refused.reported(report) if refused else report

    def variables(self, task: LocalTask) -> dict[str, str]:
        """Return the secrets of a task's process by environment variable. Raises: Denied if one cannot be read."""
        found = {}
        for variable, name in task.secrets:
            source = self.policy.secrets.get(name)
            if source is None:
                raise Denied(f"the region has no secret {name}, which {task.task_id} names (secrets in {self._file})")
            try:
                found[variable] = source.value()
            except Denied as error:
                raise Denied(f"the secret {name} of {task.task_id}: {error} (secrets in {self._file})") from None
        return found

    def visible(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the agent's environment as all processes of jobs may see it: without secrets and the join token."""
        hidden = {source.env for source in self.policy.secrets.values()} | {TOKEN_VARIABLE}
        return {name: value for name, value in environment.items() if name not in hidden}

    def _refuses(self, task: LocalTask, *, is_started: bool) -> bool:
        key = task.task_id, task.fork
        if task.stopping:
            return key in self._refused
        if key not in self._refused:
            why = refusal(self.policy, str(self._file or "a --policy file that is not there"), task, self._day)
            if why is None and not is_started:
                why = self._lacking(task)
            if why is None:
                return False
            self._refused[key] = why
            event(log, logging.WARNING, "task_refused", task=task.task_id, operator=task.operator, why=why.why)
        return True

    def _lacking(self, task: LocalTask) -> OwnerRefusal | None:
        try:
            self.variables(task)
        except Denied as error:
            return OwnerRefusal(str(error))
        return None
