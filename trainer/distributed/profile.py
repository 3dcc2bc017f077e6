"""Measures what a model's work takes with a trainer on this machine: `python -m trainer.distributed.profile FILE`.

It makes the model from its configuration with random weights, and the learner as the job says, in one process: speed
does not depend on the values of weights, and the checkpoint need not be on this machine. It trains on samples of random
tokens. It prints the lines that `periplus.process.measuring` describes, with these keys:

    num_rows                rows that a whole measurement has
    trainer_start_s         seconds from the start of this process until it can train
    versions                versions of the software by name
    training                one row, as `TrainingRow`
    step_s                  seconds of a step beside the learner: digests of the samples, snapshot of the weights, probe
    publish_s               seconds to encode the change of a version after a step
    delta_bytes_per_param   bytes of that change over the parameters of the model
    trainer_memory_bytes    most memory of the device, or of the host without one
    all_reduce_s            seconds of an all-reduce of a few bytes between two processes
    all_reduce_bytes_per_s  rate of an all-reduce of the model's gradients, of at most ALL_REDUCE_BYTES

The last two are missing where two processes have no device each.
"""

import logging
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from periplus import clock
from periplus.audit import records as audit
from periplus.codec.weights.encoder import Encoder
from periplus.config.loading import tree_of
from periplus.errors import explained_error
from periplus.job.architectures import attention_function
from periplus.job.job_file import JobFile
from periplus.process.measuring import (
    ProfileRequest,
    Say,
    host_peak_bytes,
    is_enough,
    measuring_command,
    process_age_s,
    repeated,
    spread_of,
    versions_of,
)
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.profile import TrainingRow
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    content_digest,
    read_only,
    token_ids,
)
from trainer.distributed.all_reduce import all_reduce_times, can_all_reduce
from trainer.distributed.process_group import device_of_rank
from trainer.distributed.rank import TrainingRank
from trainer.learning.batch import sample_of
from trainer.learning.forward.compiled import keep_compiled_code
from trainer.publishing.publish import compile_codec

log = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "accelerate")

ALL_REDUCE_BYTES = 256 << 20
"""Most bytes of an all-reduce that is timed. Chosen by hand: beyond some MiB the rate does not depend on the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """Groups of one step, and the lengths in tokens of each sample."""

    num_groups: int
    prompt_tokens: int
    completion_tokens: int


def training_shapes(job: JobFile) -> tuple[TrainingShape, ...]:
    """Return the rows of a job in their fixed order."""
    groups, sampling = job.train.groups_per_step, job.sampling
    prompt, completion = sampling.prompt_tokens, sampling.max_new_tokens
    sizes = [(groups, completion), (max(1, groups // 4), completion), (groups, max(1, completion // 4))]
    return tuple(
        TrainingShape(num_groups=number, prompt_tokens=prompt, completion_tokens=length)
        for number, length in dict.fromkeys(sizes)
    )


def measured_job(job: JobFile) -> JobFile:
    """Return a job for one device, whose reference policy is a copy of the actor: no other checkpoint is read."""
    changes = {
        "train": job.train.model_copy(update={"devices": 1}),
        "algorithm": job.algorithm.model_copy(update={"kl_reference": None}),
    }
    return job.model_copy(update=changes)


def random_model(model_config: str, folder: Path, seed: int) -> Any:
    """Return a causal language model in float32 with random weights, whose configuration is written into `folder`."""
    (folder / "config.json").write_text(model_config, encoding="utf-8")
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention_function(config)
    ).eval()


def random_trajectories(job: JobFile, shape: TrainingShape, vocab_size: int) -> list[Trajectory]:
    """Return whole groups of samples. Rewards differ within a group, and log-probabilities are near a uniform policy's.

    The samples of a group have the same prompt.
    """
    rng, size = np.random.default_rng(job.seed), job.algorithm.group_size
    made = []
    for group in range(shape.num_groups):
        prompt = token_ids(rng.integers(0, vocab_size, shape.prompt_tokens).tolist())
        for sample in range(size):
            length = shape.completion_tokens
            logprobs = -np.log(vocab_size) + rng.uniform(-0.01, 0.0, length)
            made.append(
                Trajectory(
                    lease_id=group * size + sample,
                    group=group,
                    sample=sample,
                    item=group,
                    purpose=Purpose.TRAIN,
                    prompt_ids=prompt,
                    completion_ids=token_ids(rng.integers(0, vocab_size, length).tolist()),
                    logprobs=read_only(logprobs, np.float32),
                    mask=read_only([True] * length, np.bool_),
                    policies=(PolicyRun(Policy(0, 0), length),),
                    reward=float(sample % 2),
                    stop_reason=StopReason.EOS,
                    sampling=SamplingParams(temperature=job.sampling.temperature),
                    worker_id="profile",
                    generation_s=0.0,
                )
            )
    return made


class TrainerBench:
    """Times one trainer's rank around a model, for a job."""

    def __init__(self, job: JobFile, model: Any, num_threads: int) -> None:
        self._job, self._model, self._num_threads = job, model, num_threads
        self._rank = TrainingRank(job, model)
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._versions = count()

    def row(self, shape: TrainingShape) -> TrainingRow:
        """Measure one row, after a step of the same samples that is not counted."""
        trajectories = random_trajectories(self._job, shape, self._vocab_size)
        self._step(trajectories)
        seconds = repeated(lambda: self._step(trajectories))
        return TrainingRow(
            num_groups=shape.num_groups,
            group_size=self._job.algorithm.group_size,
            prompt_tokens=shape.prompt_tokens,
            completion_tokens=shape.completion_tokens,
            seconds=statistics.median(seconds),
            spread=spread_of(seconds),
        )

    def beside(self, whole: TrainingShape, trained: TrainingShape) -> tuple[float, float, float]:
        """Return the seconds of a step beside the learner, those to encode its version, and its bytes a parameter.

        Digests are of the samples of `whole`. The steps between versions are of `trained`, which is smaller.
        """
        trajectories = random_trajectories(self._job, whole, self._vocab_size)
        few = random_trajectories(self._job, trained, self._vocab_size)
        prompts_RP = probe_prompts(self._job.seed, self._vocab_size)
        compile_codec()
        weights = self._rank.weights
        base = weights.first()
        weights.probe(prompts_RP)
        steps_s, publish_s, trained_s, deltas = list[float](), list[float](), list[float](), list[float]()
        while not is_enough(trained_s):
            trained_s.append(self._step(few))
            began_s = clock.monotonic_s()
            audit.batch_root([content_digest(trajectory) for trajectory in trajectories])
            complete = weights.take()
            weights.probe(prompts_RP)
            steps_s.append(clock.monotonic_s() - began_s)
            began_s = clock.monotonic_s()
            taken = complete(base)
            encoder = Encoder(base, taken.state, num_threads=self._num_threads, changes=taken.changes)
            for _ in encoder.parts():
                pass
            deltas.append(encoder.stats.payload_bytes / max(1, encoder.stats.num_elements))
            publish_s.append(clock.monotonic_s() - began_s)
            base = taken.state
        return statistics.median(steps_s), statistics.median(publish_s), statistics.median(deltas)

    def _step(self, trajectories: Sequence[Trajectory]) -> float:
        samples = [sample_of(each, each.reward) for each in trajectories]
        began_s = clock.monotonic_s()
        report = self._rank.learner.step(
            samples, consumer=Policy(0, next(self._versions)), learning_rate=self._job.optimizer.lr
        )
        if self._model.device.type == "cuda":
            torch.cuda.synchronize()
        assert report is not None, "the loss sees tokens"
        return clock.monotonic_s() - began_s


def measure(request: ProfileRequest, say: Say) -> None:
    """Measure what the request asks for, and say each result."""
    torch.set_num_threads(request.num_threads)
    job = measured_job(request.job)
    shapes = training_shapes(job)
    with tempfile.TemporaryDirectory(prefix="periplus-profile-") as folder:
        if job.train.compile:
            keep_compiled_code(Path(folder) / "compiled")
        model = random_model(request.model_config, Path(folder), job.seed).to(device_of_rank(0, 1))
        gradient_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
        bench = TrainerBench(job, model, request.num_threads)
        start_s = process_age_s()
        say("num_rows", len(shapes))
        say("trainer_start_s", start_s)
        say("versions", versions_of(PACKAGES))
        for shape in shapes[request.num_skipped :]:
            say("training", tree_of(bench.row(shape)))
        step_s, publish_s, delta_bytes_per_param = bench.beside(
            shapes[0], min(shapes, key=lambda shape: shape.num_groups)
        )
        say("step_s", step_s)
        say("publish_s", publish_s)
        say("delta_bytes_per_param", delta_bytes_per_param)
        say("trainer_memory_bytes", _memory_bytes(model.device))
    if can_all_reduce():
        _all_reduce(min(gradient_bytes, ALL_REDUCE_BYTES), say)


def _memory_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else host_peak_bytes()


def _all_reduce(num_bytes: int, say: Say) -> None:
    try:
        few_s, many_s = all_reduce_times(num_bytes // 4)
    except RuntimeError as error:  # torch has no class of its own for processes that do not find each other
        event(log, logging.WARNING, "no_all_reduce", why=explained_error(error))
        return
    say("all_reduce_s", few_s)
    say("all_reduce_bytes_per_s", num_bytes / many_s)


if __name__ == "__main__":
    measuring_command(measure)()
