"""Profiles made of the figures of runs: what the steps of jobs took on the devices that their plans name.

A run's figures are those of its whole processes: of training with the trainer's other threads beside it, of generation
with rewards and streams. So efficiencies that are fitted to them predict jobs of the same kind on the same machines.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, recorded_job
from periplus.job.run_directory import RunDirectory
from periplus.process.telemetry import REGION_GENERATION_S, REGION_TOKENS_PER_S, REGION_WEIGHTS_S
from periplus.values.profile import GenerationRow, HostFigures, Profile, TrainingRow, model_key
from periplus.values.record import RecordKind
from planner.calibration.efficiencies import Calibration, calibrated
from planner.devices.catalogue import CPU, gpu_name, gpu_types
from planner.files.hub_checkpoint import visible_architecture
from planner.jobs.job_workload import tasks_of_job
from planner.plan import Assignment, Plan, TaskKind
from planner.problem.hardware import EMULATED
from planner.problem.workload import Task

FIRST_STEPS = 2
"""Steps at a run's start that do not count: processes begin, and loops are compiled."""
SLOTS = 128
"""Requests at a time of an engine whose job does not say it."""


def calibrated_types(paths: Sequence[Path]) -> tuple[Calibration, ...]:
    """Return the types of the devices that runs had, fitted to these. Raises: as `profiles_of_runs`; ConfigError."""
    job, profiles = profiles_of_runs(paths)
    arch = visible_architecture(job.model.path)
    if arch is None:
        raise ConfigError(f"the model {job.model.path} is not on this machine, so that its shape is not known")
    rank = job.model.lora_rank
    return tuple(
        calibrated(gpu_types()[gpu_name(device)], arch, profile, lora_rank=rank)
        for device, profile in sorted(profiles.items())
        if not device.startswith(EMULATED)
    )


def profiles_of_runs(paths: Sequence[Path]) -> tuple[JobFile, Mapping[str, Profile]]:
    """Return the first run's job, and a profile by type of device; `cpu` for cores.

    Raises: ConfigError if a run has no figures, or is not of the first one's model and engine; NotFound.
    """
    rows: dict[str, list[Profile]] = defaultdict(list)
    jobs = [recorded_job(RunDirectory(path).config) for path in paths]
    first = _key(jobs[0])
    for path, job in zip(paths, jobs, strict=True):
        if _key(job) != first:
            found, wanted = (" with ".join(key) for key in (_key(job), first))
            raise ConfigError(f"{path} is a run of {found}, and {paths[0]} one of {wanted}; give runs of one of them")
        for device, profile in _profiles_of(path, job):
            rows[device].append(profile)
    return jobs[0], {device: _joined(found) for device, found in rows.items()}


def _key(job: JobFile) -> tuple[str, str]:
    return model_key(job.model.path, "", job.model.lora_rank), job.engine.name


def _profiles_of(path: Path, job: JobFile) -> Iterator[tuple[str, Profile]]:
    run = RunDirectory(path)
    steps = [record.values for record in run.records() if record.kind is RecordKind.STEP][FIRST_STEPS:]
    if not steps:
        raise ConfigError(f"{path} has no step after its first {FIRST_STEPS}; give a run that trained for longer")
    plan = Plan.from_json(run.plan.read_text(encoding="utf-8"))
    names = {name for values in steps for name in values}
    means = {name: fmean(values.get(name, 0.0) for values in steps) for name in names}
    model, engine = _key(job)
    empty = Profile(
        model=model,
        engine=engine,
        machine=f"the run {path.name}",
        device="",
        measured_at_s=run.metrics.stat().st_mtime,
        versions={},
    )
    for each in plan.assignments:
        device = each.device or CPU
        if each.task is TaskKind.TRAINER:
            yield device, replace(empty, training=tuple(_training(job, means)), host=_trainer(plan, means))
        elif row := _generation(job, each, means):
            yield device, replace(empty, generation=(row,))


def _training(job: JobFile, means: Mapping[str, float]) -> Iterator[TrainingRow]:
    """Yield the row of a run whose steps train the actor alone, once over the samples; else none."""
    is_plain = set(tasks_of_job(job)) == {Task.GENERATION, Task.ACTOR_TRAINING}
    if is_plain and job.train.epochs == job.train.minibatches == 1 and job.train.devices == 1:
        yield TrainingRow(
            num_groups=max(1, round(means["num_samples"] / job.algorithm.group_size)),
            group_size=job.algorithm.group_size,
            prompt_tokens=job.sampling.prompt_tokens,
            completion_tokens=_completion_tokens(means),
            seconds=means["train_s"],
            spread=0.0,
        )


def _generation(job: JobFile, workers: Assignment, means: Mapping[str, float]) -> GenerationRow | None:
    busy_s = means.get(REGION_GENERATION_S.name(workers.region), 0.0)
    tokens = means.get(REGION_TOKENS_PER_S.name(workers.region), 0.0) * means["step_s"]
    num = round(tokens / _completion_tokens(means) / workers.num_workers)
    if busy_s <= 0.0 or num < 1:
        return None
    return GenerationRow(
        num_samples=num,
        num_slots=job.engine.max_requests or SLOTS,
        prompt_tokens=job.sampling.prompt_tokens,
        completion_tokens=_completion_tokens(means),
        seconds=busy_s,
        spread=0.0,
    )


def _completion_tokens(means: Mapping[str, float]) -> int:
    return max(1, round(means["completion_tokens_mean"]))


def _trainer(plan: Plan, means: Mapping[str, float]) -> HostFigures:
    """Return the seconds of a step beside training and waiting, and those until workers beside the trainer hold it."""
    beside_s = max(0.0, means["step_s"] - means["train_s"] - means["wait_s"])
    held_s = means.get(REGION_WEIGHTS_S.name(plan.trainer_region), means.get("publish_s", 0.0))
    return HostFigures(step_s=beside_s, held_s=held_s)


def _joined(profiles: Sequence[Profile]) -> Profile:
    """Return one profile with the rows of all; figures of hosts are means of those that have them."""
    hosts = [each.host for each in profiles if each.training or each.host.step_s]
    return replace(
        profiles[0],
        machine=", ".join(dict.fromkeys(each.machine for each in profiles))[:200],
        measured_at_s=max(each.measured_at_s for each in profiles),
        generation=tuple(row for each in profiles for row in each.generation),
        training=tuple(row for each in profiles for row in each.training),
        host=HostFigures(step_s=fmean(each.step_s for each in hosts), held_s=fmean(each.held_s for each in hosts))
        if hosts
        else HostFigures(),
    )
