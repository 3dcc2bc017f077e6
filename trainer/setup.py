"""Everything before the first lease: model, problems, warm-up or checkpoint. Runs in a thread, says what it is
doing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.job.job_file import JobFile
from periplus.values.policy import Lineage, Policy
from periplus.values.record import RecordKind
from trainer.checkpointing import checkpoint
from trainer.checkpointing.checkpoint import Manifest
from trainer.checkpointing.export import model_files
from trainer.config import TrainerConfig
from trainer.data.dataset import Dataset, split_prompts, warmup_examples
from trainer.data.model import resolve_model_dir
from trainer.data.pretrained import load_weights
from trainer.learning.learner import Learner
from trainer.learning.warmup import warm_up
from trainer.preflight import checked_inputs
from trainer.publishing import publish
from trainer.publishing.publish import Bundle
from trainer.recipe import build_learner, warmup_settings
from trainer.reporting.progress import Progress

Say = Callable[[RecordKind, str, dict[str, float]], None]
"""Progress to report: kind, text, values."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A trainer ready for its first step: `learner` changes `model` in place; `restored`: what it continues, if
    anything; `model_files`: what transformers needs beside the weights, by name."""

    model: Any
    tokenizer: Any
    model_files: Mapping[str, bytes]
    learner: Learner
    bundle: Bundle
    dataset: Dataset
    policy: Policy
    lineage: Lineage
    restored: Manifest | None
    progress: Progress


def prepare(config: TrainerConfig, say: Say, now: Callable[[], float]) -> Prepared:
    """Load or make the model, deal the problems, warm up or restore. Raises: ConfigError, NotFound."""
    job = config.job
    say(RecordKind.PHASE, "checking model, data and environment", {})
    model_dir = resolve_model_dir(job.model.path, config.cache_dir, job.seed)
    inputs = checked_inputs(job, model_dir)
    dataset = Dataset(environment=inputs.environment, splits=split_prompts(inputs.prompts, job))
    say(RecordKind.PHASE, "loading the model", {})
    model, tokenizer = load_weights(model_dir), inputs.tokenizer
    fork, manifest = config.task.fork, None
    policy, lineage, progress = Policy(fork, 0), Lineage(fork), Progress()
    if config.resume_from is not None:
        say(RecordKind.PHASE, "restoring the checkpoint", {})
        manifest = checkpoint.newest(config.resume_from / "checkpoints")
        policy = Policy(fork, manifest.policy.version)
        lineage = manifest.lineage.restored(fork, manifest.policy)
        progress = Progress.of_mapping(manifest.progress)
    elif job.train.warmup is not None:
        progress = _warm_up(model, tokenizer, dataset, job, say, now)
    # After the warm-up: the KL reference and the critic start from the actor as it is here.
    learner = build_learner(job, model, pad_id=tokenizer.pad_token_id)
    if manifest is not None:
        checkpoint.restore(manifest, model, learner)
    return Prepared(
        model=model,
        tokenizer=tokenizer,
        model_files=model_files(model_dir, model),
        learner=learner,
        dataset=dataset,
        policy=policy,
        lineage=lineage,
        restored=manifest,
        progress=progress,
        bundle=publish.bundle(model_dir, Path(job.data.path) if job.data.path else None),
    )


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
