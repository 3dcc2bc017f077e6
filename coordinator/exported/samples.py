"""The samples that a coordinator exports to Prometheus, as a function of its state.

A state is immutable, so that a scrape reads it in a thread of its own while the writer goes on. Only values that the
state has anyway are exported: nothing is measured for them. Jobs that have ended count in `periplus_jobs` alone.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator

from coordinator.state import Job, JobState, State, live_jobs
from periplus.process import exported_metrics as names
from periplus.process.exported_metrics import ExportedMetric, ExportedSample
from periplus.process.telemetry import (
    REGION_GENERATION_S,
    REGION_TOKENS_PER_S,
    REGION_WEIGHTS_S,
    MetricFamily,
)
from periplus.view.terms import STEP, terms_of

_MEASURED = {
    "step_s": names.JOB_STEP,
    "train_s": names.JOB_TRAINING,
    "wait_s": names.JOB_WAITING,
    "publish_s": names.JOB_PUBLICATION,
}
"""Exported metric of each mean that the state keeps of a job's steps."""

_MEASURED_REGION: tuple[tuple[MetricFamily, ExportedMetric], ...] = (
    (REGION_GENERATION_S, names.JOB_REGION_GENERATION),
    (REGION_WEIGHTS_S, names.JOB_REGION_WEIGHTS),
    (REGION_TOKENS_PER_S, names.JOB_REGION_TOKENS),
)
"""Exported metric of each family of means, of which there is one for each region."""


def coordinator_samples(state: State, now_s: float, version: str) -> Iterator[ExportedSample]:
    """Yield the samples of a state at a time. `version` is that of the coordinator's program."""
    yield names.BUILD_INFO.of(1, version=version)
    yield names.PLANNING.of(state.planning is not None)
    yield from _region_samples(state, now_s)
    yield from _link_samples(state)
    counts = Counter(job.state for job in state.jobs.values())
    for each in JobState:
        yield names.JOBS.of(counts[each], state=each)
    for job in live_jobs(state):
        yield from _job_samples(state, job, now_s)
    yield from _task_samples(state)


def _region_samples(state: State, now_s: float) -> Iterator[ExportedSample]:
    for name, region in state.regions.items():
        devices = [device for machine in region.hello.inventory.machines for device in machine.devices]
        yield names.REGION_CONNECTED.of(region.connected, region=name)
        yield names.REGION_MODE.of(1, region=name, mode=region.mode)
        yield names.REGION_SILENCE.of(max(0.0, now_s - region.last_seen_s), region=name)
        yield names.REGION_SESSIONS.of(region.epoch, region=name)
        yield names.REGION_DEVICES.of(len(devices), region=name)
        yield names.REGION_DEVICE_PROBLEMS.of(sum(bool(device.problem) for device in devices), region=name)
        for dst, num_bytes in region.sent_bytes.items():
            yield names.REGION_SENT_BYTES.of(num_bytes, src=name, dst=dst)


def _link_samples(state: State) -> Iterator[ExportedSample]:
    for (src, dst), link in state.links.items():
        yield names.LINK_RTT.of(link.rtt_s, src=src, dst=dst)
        yield names.LINK_THROUGHPUT.of(link.throughput_bits_per_s / 8, src=src, dst=dst)
    for src, dst in state.links.keys() | state.failed_links.keys():
        yield names.LINK_FAILED.of((src, dst) in state.failed_links, src=src, dst=dst)


def _job_samples(state: State, job: Job, now_s: float) -> Iterator[ExportedSample]:
    job_id = job.job_id
    yield names.JOB_STATE.of(1, job_id=job_id, state=job.state)
    yield names.JOB_FORK.of(job.fork, job_id=job_id)
    if job.state is JobState.PENDING:
        yield names.JOB_PENDING.of(max(0.0, now_s - job.submitted_at_s), job_id=job_id)
    if job.policy is not None:
        yield names.JOB_VERSION.of(job.policy.version, job_id=job_id)
    if job_id in state.heard_at_s:
        yield names.JOB_SILENCE.of(max(0.0, now_s - state.heard_at_s[job_id]), job_id=job_id)
    if (planned_s := planned_step_s(job.plan_json)) is not None:
        yield names.JOB_PLANNED_STEP.of(planned_s, job_id=job_id)
    for name, value in job.measured.items():
        if name in _MEASURED:
            yield _MEASURED[name].of(value, job_id=job_id)
        for family, metric in _MEASURED_REGION:
            if (region := family.thing_of(name)) is not None:
                yield metric.of(value, job_id=job_id, region=region)
    for (src, dst), num_bytes in job.sent_bytes.items():
        yield names.JOB_SENT_BYTES.of(num_bytes, job_id=job_id, src=src, dst=dst)


def _task_samples(state: State) -> Iterator[ExportedSample]:
    tasks = [status for job in live_jobs(state) for status in job.tasks.values()]
    counts = Counter(
        (status.region, status.role, status.report.state if status.report else "assigned") for status in tasks
    )
    for (region, role, task_state), num_tasks in counts.items():
        yield names.TASKS.of(num_tasks, region=region, role=role, state=task_state)


@functools.lru_cache(maxsize=64)
def planned_step_s(plan_json: str) -> float | None:
    """Return the seconds of a step that a plan predicts; None without a plan or a prediction.

    The answers for the last 64 plans are kept, since each scrape asks for all of them and a plan may have a megabyte.
    """
    terms = terms_of(json.loads(plan_json), {}) if plan_json else ()
    return next((term.predicted for term in terms if term.name == STEP), None)
