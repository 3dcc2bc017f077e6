"""From a job's keys to the plain values that the mathematics takes: the one place that knows which is which."""

from periplus.job import JobFile
from trainer.losses.grpo import GrpoSettings
from trainer.schedule import Decay, learning_rate
from trainer.step import StepSettings
from trainer.warmup import WarmupSettings

WARMUP_LOSS_WINDOW = 5
"""Steps over which the warm-up's loss is averaged before it is compared with the target."""


def warmup_settings(job: JobFile) -> WarmupSettings:
    """Of a job that has a warm-up."""
    warmup = job.train.warmup
    assert warmup is not None
    return WarmupSettings(
        max_steps=warmup.max_steps, batch_rows=warmup.batch_size, peak_learning_rate=warmup.lr,
        ramp_steps=warmup.ramp_steps, max_grad_norm=job.optimizer.max_grad_norm, weight_decay=warmup.weight_decay,
        target_loss=warmup.target_loss, loss_window=WARMUP_LOSS_WINDOW, seed=job.seed,
    )  # fmt: skip


def step_settings(job: JobFile) -> StepSettings:
    """The same for each step."""
    algorithm = job.algorithm
    decoupled = algorithm.importance_correction == "truncated"
    return StepSettings(
        loss=GrpoSettings(
            clip_low=algorithm.clip_low, clip_high=algorithm.clip_high,
            importance_cap=algorithm.importance_cap if decoupled else None,
        ),
        decoupled=decoupled, temperature=job.sampling.temperature, max_grad_norm=job.optimizer.max_grad_norm,
        micro_batch_rows=job.train.micro_batch_samples,
    )  # fmt: skip


def learning_rate_of(job: JobFile, step: int) -> float:
    """Of step `step`, counted from 0."""
    optimizer = job.optimizer
    return learning_rate(
        step, num_steps=job.steps, peak=optimizer.lr, ramp_steps=optimizer.warmup_steps,
        decay=Decay(optimizer.schedule), floor=optimizer.floor,
    )  # fmt: skip
