"""Everything before the first lease: model, problems, warm-up or checkpoint. Runs in a thread, says what it is
doing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from periplus.environment.of_job import environment_of
from periplus.job import JobFile
from periplus.policy import Policy
from periplus.publication import Publication
from periplus.record import RecordKind
from trainer import checkpoint, publish
from trainer.config import TrainerConfig
from trainer.dataset import Dataset, deal, warmup_examples
from trainer.model import load_model, resolve_model_dir
from trainer.progress import Progress
from trainer.recipe import warmup_settings
from trainer.warmup import warm_up

Say = Callable[[RecordKind, str, dict[str, float]], None]
"""Progress to report: kind, text, values."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A trainer ready for its first step. The optimizer's learning rate is set by each step."""

    model: Any
    tokenizer: Any
    optimizer: torch.optim.Optimizer
    bundle: Publication
    dataset: Dataset
    policy: Policy
    progress: Progress


def prepare(config: TrainerConfig, say: Say, now: Callable[[], float]) -> Prepared:
    """Load or make the model, deal the problems, warm up or restore. Raises: ConfigError, NotFound."""
    job = config.job
    say(RecordKind.PHASE, "loading the model", {})
    model_dir = resolve_model_dir(job.model.path, config.cache_dir, job.seed)
    model, tokenizer = load_model(model_dir)
    say(RecordKind.PHASE, "making the problems", {})
    data_file = Path(job.data.path) if job.data.path else None
    dataset = deal(environment_of(job, data_file), job, tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=job.optimizer.lr, betas=job.optimizer.betas, weight_decay=job.optimizer.weight_decay
    )
    policy, progress = Policy(config.task.fork, 0), Progress()
    if config.resume_from is not None:
        say(RecordKind.PHASE, "restoring the checkpoint", {})
        manifest = checkpoint.newest(config.resume_from / "checkpoints")
        checkpoint.restore(manifest, model, optimizer)
        policy = Policy(config.task.fork, manifest.policy.version)
        progress = Progress.of_mapping(manifest.progress)
    elif job.train.warmup is not None:
        progress = _warm_up(model, tokenizer, dataset, job, say, now)
    return Prepared(
        model=model, tokenizer=tokenizer, optimizer=optimizer, dataset=dataset, policy=policy, progress=progress,
        bundle=publish.bundle(config.task.job_id, policy, model_dir, data_file),
    )  # fmt: skip


def _warm_up(
    model: Any, tokenizer: Any, dataset: Dataset, job: JobFile, say: Say, now: Callable[[], float]
) -> Progress:
    say(RecordKind.PHASE, "supervised warm-up", {})
    examples = warmup_examples(dataset, tokenizer)
    settings = warmup_settings(job)
    started_s = now()
    num_trained = 0
    for done in warm_up(model, examples, tokenizer.pad_token_id, settings):
        num_trained = min(done.step * settings.batch_rows, len(examples))
        if done.step % 10 == 0:
            say(RecordKind.WARMUP, "", {"step": done.step, "steps_total": done.max_steps, "loss": done.loss})
    return Progress(warmup_s=now() - started_s, warmup_examples=num_trained)
