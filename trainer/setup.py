"""Prepares a trainer before its first lease: check the inputs, load the model, split the problems, warm up or restore.

A new run gets a supervised warm-up if its job has one. A resumed run is restored from the newest checkpoint instead,
in a new fork. It takes seconds to minutes and blocks, so it runs in a thread and reports its progress through a
callback. Nothing here knows of the gateway or the ledger.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from periplus.environment.prompts import PromptEncoder
from periplus.job.inputs import check_planned_config, model_folder
from periplus.job.job_file import BUILTIN_PREFIX, JobFile
from periplus.job.model_section import NO_TEMPLATE
from periplus.job.reward_code import read_code
from periplus.process.telemetry import event
from periplus.values.policy import Lineage, Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.record import RecordKind
from trainer.checkpointing import checkpoint
from trainer.checkpointing.export import model_files
from trainer.checkpointing.manifest import Manifest
from trainer.config import TrainerConfig
from trainer.data.counts import ProblemCounts
from trainer.data.dataset import Dataset, counted, evaluation_sets, excluded_by_sets, split_prompts, warmup_examples
from trainer.data.model import resolve_model_dir
from trainer.data.pretrained import load_weights
from trainer.data.problem_digests import CountedDigest, check_same_problems, problem_digests
from trainer.distributed.leader import Leader
from trainer.distributed.process_group import device_of_rank
from trainer.learning.forward.precision import has_bfloat16_units
from trainer.learning.warmup import warm_up
from trainer.preflight import checked_inputs, framing_remarks
from trainer.publishing import publish
from trainer.publishing.publish import Bundle
from trainer.publishing.reference_logprobs import relative_rounding
from trainer.recipe import policy_scorer, warmup_settings
from trainer.reporting.progress import Progress

log = logging.getLogger(__name__)

Say = Callable[[RecordKind, str, dict[str, float]], None]
"""Callback that reports progress: kind of the record, text for a person, values by metric name. It may raise, to stop
the preparation."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A trainer that is ready for its first step.

    `leader` has all ranks change the weights of `model` in place, publish and save them. `restored` is the manifest of
    the checkpoint that the run continues, or None. `encoder` turns problems into token ids. `model_files` maps names to
    contents of the files that transformers needs beside the weights. `bundle` is what workers need beside the weights.
    `counts` says how many problems are left out. `problems` are the digests of all problems, and `has_other_problems`
    says that a restored run goes on with other ones than it had.
    """

    model: Any
    tokenizer: Any
    encoder: PromptEncoder
    model_files: Mapping[str, bytes]
    leader: Leader
    bundle: Bundle
    dataset: Dataset
    counts: ProblemCounts
    problems: tuple[CountedDigest, ...]
    has_other_problems: bool
    policy: Policy
    lineage: Lineage
    restored: Manifest | None
    progress: Progress


def prepare(config: TrainerConfig, say: Say, now: Callable[[], float], leader: Leader | None = None) -> Prepared:
    """Load or make the model, split the problems into sets, warm up or restore, and divide the models among the ranks.

    `leader` has one rank for each of the job's `train.devices`. The caller closes it, also after an error. It may be
    left out if there is one device.

    Raises: ConfigError if the inputs do not fit the job; NotFound if there is no checkpoint to restore.
    """
    job, leader = config.job, leader or Leader()
    # The other ranks import what they need meanwhile.
    leader.start()
    if (pace := config.task.pace) is not None:
        event(log, logging.INFO, "emulated_device", **asdict(pace))
        say(RecordKind.NOTICE, f"emulated device: training takes {pace.training_s:g} s a token at least", {})
    say(RecordKind.PHASE, "checking model, data and environment", {})
    place = job.model.path if job.model.path.startswith(BUILTIN_PREFIX) else str(model_folder(job))
    model_dir = resolve_model_dir(place, config.cache_dir / "models", job.seed)
    # Cheap checks first: a job that does not fit is refused before weights are read.
    if config.task.model_config:
        check_planned_config(model_dir, config.task.model_config)
    inputs = checked_inputs(job, model_dir)
    for remark in framing_remarks(job, inputs.encoder):
        event(log, logging.WARNING, "completions_may_not_end", why=remark)
    dataset = Dataset(
        environment=inputs.problems.environment,
        splits=split_prompts(inputs.prompts, job, excluded_by_sets(inputs.problems)),
        sets=evaluation_sets(inputs.problems, job),
    )
    counts = counted(inputs.prompts, inputs.problems, job)
    if not job.evaluates_alone:
        say(RecordKind.PHASE, counts.sentence(job.sampling.prompt_tokens), counts.values())
    problems = problem_digests(job, inputs.problems, inputs.prompts, dataset.splits)
    manifest = None if config.resume_from is None else checkpoint.newest(config.resume_from / "checkpoints")
    has_other_problems = manifest is not None and _has_other_problems(manifest, problems, config, say)
    say(RecordKind.PHASE, "loading the model", {})
    model, tokenizer = load_weights(model_dir), inputs.encoder.tokenizer
    if job.train.devices == 1:
        # Several devices get their shares of the weights from the host's memory.
        model.to(device_of_rank(0, 1))
    _say_dtype(job, device_of_rank(0, 1), say)
    # Before warm-up and checkpoint, which change it within the engines' limits: each fork makes the same bundle.
    rounding = relative_rounding(model, probe_prompts(job.seed, model.config.get_text_config().vocab_size))
    fork = config.task.fork
    policy, lineage, progress = Policy(fork, 0), Lineage(fork), Progress()
    if manifest is not None:
        say(RecordKind.PHASE, "restoring the checkpoint", {})
        # The version goes on where the checkpoint was, in a fork of its own.
        policy = Policy(fork, manifest.policy.version)
        lineage = manifest.lineage.restored(fork, manifest.policy)
        progress = Progress.of_mapping(manifest.progress).resumed(with_other_problems=has_other_problems)
    elif job.train.warmup is not None:
        progress = _warm_up(model, inputs.encoder, dataset, job, say, now)
    # After the warm-up: the KL reference and the critic start from the actor as it is here.
    framing = job.model.chat_template
    files = model_files(model_dir, model, None if framing == NO_TEMPLATE else framing)
    leader.build(job, model, config.planned_sharding)
    if manifest is not None:
        leader.restore(manifest)
    return Prepared(
        model=model,
        tokenizer=tokenizer,
        encoder=inputs.encoder,
        model_files=files,
        leader=leader,
        dataset=dataset,
        counts=counts,
        problems=problems,
        has_other_problems=has_other_problems,
        policy=policy,
        lineage=lineage,
        restored=manifest,
        progress=progress,
        bundle=publish.bundle(
            model_dir,
            inputs.problems.file,
            read_code(job.reward, job.environment),
            inputs.problems.set_files,
            relative_rounding=rounding,
        ),
    )


def _say_dtype(job: JobFile, device: torch.device, say: Say) -> None:
    if device.type == "cuda" and job.train.dtype == "auto" and not has_bfloat16_units(device):
        text = f"{torch.cuda.get_device_name(device)} has no units for bfloat16: the trainer computes in float32"
        event(log, logging.WARNING, "no_bfloat16", why=text)
        say(RecordKind.NOTICE, text, {})


def _has_other_problems(manifest: Manifest, problems: Sequence[CountedDigest], config: TrainerConfig, say: Say) -> bool:
    """Return whether the run goes on with other problems, and say so. Raises: ConfigError if it must not."""
    differences = check_same_problems(manifest.problems, problems, may_differ=config.task.allows_other_problems)
    if differences:
        why = "; ".join(differences)
        event(log, logging.WARNING, "other_problems", why=f"held-out problems may have been trained on: {why}")
        say(RecordKind.PHASE, f"held-out problems may have been trained on: {why}", {})
    return bool(differences)


def _warm_up(
    model: Any, encoder: PromptEncoder, dataset: Dataset, job: JobFile, say: Say, now: Callable[[], float]
) -> Progress:
    say(RecordKind.PHASE, "supervised warm-up", {})
    examples = warmup_examples(dataset, encoder)
    settings = warmup_settings(job, model)
    started_s = now()
    num_trained = 0
    for done in warm_up(policy_scorer(job, model), examples, settings):
        num_trained = min(done.step * settings.batch_rows, len(examples))
        if done.step % 10 == 0:
            say(RecordKind.WARMUP, "", {"step": done.step, "steps_total": done.max_steps, "loss": done.loss})
    return Progress(warmup_s=now() - started_s, warmup_examples=num_trained)
