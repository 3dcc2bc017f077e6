"""The samples that an agent exports to Prometheus, of what its parts know anyway.

Those parts change on the event loop, so the samples must be made there (`on_loop` in
`periplus/process/metrics_endpoint.py`). Only jobs that have a hub here are exported.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from periplus.process import exported_metrics as names
from periplus.process.exported_metrics import ExportedSample
from periplus.values.machine import Machine
from periplus.values.task import TaskState
from region_agent.control.reconcile import Process
from region_agent.gateway.hub import JobHub


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """The agent's newest session: its epoch, 0 before the first, and its age in seconds, None unless it is open."""

    epoch: int
    age_s: float | None


def agent_samples(
    region: str,
    *,
    version: str,
    session: SessionStatus,
    machine: Machine,
    processes: Mapping[str, Process],
    sent_bytes: Mapping[str, int],
    hubs: Iterable[JobHub],
) -> Iterator[ExportedSample]:
    """Yield the samples of an agent. `sent_bytes` are those of its gateway since its start, by destination region."""
    yield names.BUILD_INFO.of(1, version=version)
    yield names.AGENT_CONNECTED.of(session.age_s is not None, region=region)
    yield names.AGENT_EPOCH.of(session.epoch, region=region)
    if session.age_s is not None:
        yield names.AGENT_SESSION_AGE.of(session.age_s, region=region)
    yield names.AGENT_DEVICES.of(len(machine.devices), region=region)
    yield names.AGENT_DEVICE_PROBLEMS.of(sum(bool(device.problem) for device in machine.devices), region=region)
    counts = Counter(
        (process.task.role, process.outcome.state if process.outcome else TaskState.RUNNING)
        for process in processes.values()
    )
    for (role, state), num_processes in counts.items():
        yield names.AGENT_PROCESSES.of(num_processes, region=region, role=role, state=state)
    for dst, num_bytes in sent_bytes.items():
        yield names.AGENT_SENT_BYTES.of(num_bytes, src=region, dst=dst)
    for hub in hubs:
        yield from _hub_samples(region, hub)


def _hub_samples(region: str, hub: JobHub) -> Iterator[ExportedSample]:
    job = {"job_id": hub.job_id, "region": region}
    yield names.AGENT_SPOOL_BYTES.of(hub.frames.num_bytes, **job)
    yield names.AGENT_SPOOL_LIMIT.of(hub.frames.max_bytes, **job)
    yield names.AGENT_SPOOL_FRAMES.of(len(hub.frames.pending), **job)
    yield names.AGENT_SPOOL_BLOCKED.of(bool(hub.frames.obstacle), **job)
    if (newest := hub.weight_cache.log.newest) is not None:
        yield names.AGENT_WEIGHTS_VERSION.of(newest.version, **job)
