"""Decides what the policy of a region's owner leaves of what the region has, and which tasks it refuses.

A refusal names the key, the file and the value, since a person must find in the job's notice who forbids what.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from periplus.values.machine import Inventory
from periplus.values.task import FailureCause, Role, TaskReport, TaskState
from region_agent.control.reconcile import LocalTask
from region_agent.owner.egress import DayOfEgress
from region_agent.owner.policy_file import AgentPolicy

GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class OwnerRefusal:
    """Why the owner of a region refuses a task. `cause` decides what the next plan leaves out."""

    why: str
    cause: FailureCause = FailureCause.OWNER

    def reported(self, report: TaskReport) -> TaskReport:
        """Return the report of a refused task: it has failed once it has ended, unless it had succeeded."""
        if report.state is TaskState.SUCCEEDED:
            return report
        if report.state in (TaskState.FAILED, TaskState.STOPPED):
            return replace(report, state=TaskState.FAILED, message=self.why, cause=self.cause)
        return replace(report, message=self.why)

    def unstarted(self, task: LocalTask) -> TaskReport:
        """Return the report of a refused task of which no process was started."""
        return TaskReport(
            task_id=task.task_id,
            job_id=task.job_id,
            state=TaskState.FAILED,
            message=self.why,
            restarts=0,
            fork=task.fork,
            cause=self.cause,
        )


class _Objection(NamedTuple):
    key: str
    value: object
    what: str
    cause: FailureCause = FailureCause.OWNER


def refusal(policy: AgentPolicy, file: str, task: LocalTask, day: DayOfEgress) -> OwnerRefusal | None:
    """Return why the policy in `file` refuses a task, or None. `day` counts what was sent today."""
    found = _objection(policy, task, day)
    if found is None:
        return None
    why = f"the owner of the region refuses {task.task_id}: {found.what} ({found.key} in {file} is {found.value})"
    return OwnerRefusal(why, found.cause)


def _objection(policy: AgentPolicy, task: LocalTask, day: DayOfEgress) -> _Objection | None:
    if policy.operators is not None and task.operator not in policy.operators:
        who = f"the operator {task.operator} may run nothing here" if task.operator else "the fleet has no identities"
        return _Objection("operators", _listed(policy.operators), who)
    if policy.devices is not None and (forbidden := sorted({*task.devices} - {*policy.devices})):
        what = f"it is planned on device {_listed(forbidden)}, which jobs may not use"
        return _Objection("devices", _listed(policy.devices), what, FailureCause.DEVICE)
    if policy.engines is not None and task.role is Role.ROLLOUT and task.engine not in policy.engines:
        what = f"it wants the engine {task.engine}"
        return _Objection("engines", _listed(policy.engines), what, FailureCause.ENGINE)
    if not policy.own_code and task.has_own_code and task.role is Role.ROLLOUT:
        return _Objection("own_code", "false", "the job has code of its user's own")
    if missing := sorted({name for _, name in task.secrets} - policy.secrets.keys()):
        known = _listed(sorted(policy.secrets))
        return _Objection("secrets", known, f"the region has no secret {_listed(missing)}, which the job names")
    limit = policy.egress_gb_per_day
    if limit is not None and day.sent_bytes >= limit * GB:
        what = f"its gateway has sent {day.sent_bytes / GB:.3g} GB today, and opens again at {day.ends_at}"
        return _Objection("egress_gb_per_day", f"{limit:g}", what)
    return None


def offered_by_owner(policy: AgentPolicy, found: Inventory) -> Inventory:
    """Return what the agent tells of what it found: without the devices and engines that jobs may not use."""
    own = found.own
    if policy.devices is not None:
        own = replace(own, devices=tuple(each for each in own.devices if each.index in policy.devices))
    if policy.engines is not None:
        own = replace(own, engines=tuple(each for each in own.engines if each.name in policy.engines))
    allows_own_code = found.allows_own_code and policy.own_code
    return replace(found, machines=(own, *found.machines[1:]), allows_own_code=allows_own_code)


def _listed(values: object) -> str:
    assert isinstance(values, list | tuple)
    return ", ".join(map(str, values)) or "none"
