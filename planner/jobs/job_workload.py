"""Problem of a job: its workload and the operator's rules as values of the planner.

A job states neither the lengths of its completions nor how much of the weights changes per step. Until these are
measured, every completion has its maximum length and every version costs a full copy. A plan that is valid under these
assumptions remains valid.
"""

from periplus.job.job_file import JobFile, SamplingSection
from planner.files.workload_file import CRITIC_ALGORITHMS, FULL_COPY_BYTES
from planner.problem import lengths
from planner.problem.architecture import Architecture
from planner.problem.goal import Rules
from planner.problem.workload import TASKS, Lengths, Task, WeightTransfer, Workload

UNMEASURED_WEIGHTS = WeightTransfer(bytes_per_param=FULL_COPY_BYTES, is_delta=True)
"""Weight transfer of jobs without measurements. Versions travel as lossless deltas, which exceed a full copy by no more
than their framing."""
GRADIENT_BYTES = 4.0
"""The trainer's processes sum gradients in float32, whatever they compute in."""
ON_TRAINER = tuple(task for task in TASKS if task not in (Task.GENERATION, Task.REWARD))
"""Tasks that the trainer's process runs."""


def tasks_of_job(job: JobFile) -> tuple[Task, ...]:
    """Return the job's tasks.

    Rewards are rules and run next to generation. A reference is needed if the job has a KL penalty.
    """
    used = {Task.GENERATION, Task.ACTOR_TRAINING}
    if job.algorithm.kl_coefficient > 0:
        used.add(Task.REFERENCE)
    if job.algorithm.name in CRITIC_ALGORITHMS:
        used |= {Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING}
    return tuple(task for task in TASKS if task in used)


def workload_of_job(
    job: JobFile,
    architecture: Architecture,
    *,
    weights: WeightTransfer = UNMEASURED_WEIGHTS,
) -> Workload:
    """Return the workload of a resolved job. All its roles have the actor's `architecture`."""
    return Workload(
        algorithm=job.algorithm.name,
        models=dict.fromkeys(tasks_of_job(job), architecture),
        eta=job.staleness,
        prompts_per_step=job.train.groups_per_step,
        group_size=job.algorithm.group_size,
        prompt_tokens=lengths.constant(job.sampling.prompt_tokens),
        completion_tokens=_completion_tokens(job.sampling),
        epochs_per_step=job.train.epochs,
        minibatches_per_step=job.train.minibatches,
        weights=weights,
        gradient_bytes_per_param=GRADIENT_BYTES,
        lora_rank=job.model.lora_rank,
    )


def _completion_tokens(sampling: SamplingSection) -> Lengths:
    if sampling.expected_tokens is None:
        return lengths.constant(sampling.max_new_tokens)
    return lengths.of_mean(sampling.expected_tokens, sampling.max_new_tokens)


def rules_of_job(job: JobFile) -> Rules:
    """Return the job's pins of regions. Every region named for rollouts must generate, and no other may."""
    pins: list[tuple[Task, frozenset[str]]] = []
    rollout = frozenset(job.regions.rollout or ())
    if rollout:
        pins.append((Task.GENERATION, rollout))
    if job.regions.trainer is not None:
        # All tasks of the trainer's process are where it is.
        pins += [(task, frozenset({job.regions.trainer})) for task in tasks_of_job(job) if task in ON_TRAINER]
    return Rules(pins=tuple(pins), generating=rollout, min_regions=job.regions.min)
