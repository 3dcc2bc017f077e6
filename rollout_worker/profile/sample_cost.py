"""Measures the worker's own part of a sample: everything from a lease to a frame, except generation."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from periplus import clock
from periplus.codec.registry import trajectory_decoder
from periplus.environment.completions import end_token_ids
from periplus.environment.environment import Environment, Item
from periplus.environment.job_environment import worker_environment
from periplus.environment.prompts import PromptEncoder
from periplus.errors import PeriplusError
from periplus.job.data_section import makes_problems
from periplus.job.job_file import JobFile
from periplus.job.model_section import NO_TEMPLATE
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose, TrajectoryLimits
from periplus.values.transport_keys import KeyedFrame
from rollout_worker.engines.engine import Completion, Engine, SampleRequest
from rollout_worker.engines.engine_around import EngineAround
from rollout_worker.episodes.episode import DrawSettings, EpisodeDesk, EpisodeSettings, FailedLease
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.episodes.sampler import Sampler
from rollout_worker.episodes.scoring import EnvironmentScorer
from rollout_worker.messages import WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.serving import Serving

SAMPLES_AT_ONCE = 256
"""Samples over which the processor time of the worker is averaged. Chosen by hand: milliseconds each at most."""

TOKENS_AT_ONCE = 1 << 20
"""Most tokens of these samples. Chosen by hand."""

_FIRST = Policy(0, 0)


class _Answering(EngineAround):
    """Answers each request at once with a completion that was generated before."""

    def __init__(self, engine: Engine, completions: Sequence[Completion]) -> None:
        super().__init__(engine)
        self._completions = cycle(completions)

    async def submit(self, request: SampleRequest) -> Completion:
        answer = next(self._completions)
        return replace(answer, runs=tuple(replace(run, policy=_FIRST) for run in answer.runs))


class _Problems:
    """Problems with prompts of one length in the stand-in's words, which `scores` judges; None judges nothing."""

    def __init__(self, scores: Environment | None, vocab_size: int, prompt_tokens: int) -> None:
        self._scores, self._vocab_size, self._prompt_tokens = scores, vocab_size, prompt_tokens

    def __len__(self) -> int:
        return SAMPLES_AT_ONCE

    def item(self, index: int) -> Item:
        tokens = np.random.default_rng(index).integers(0, self._vocab_size, self._prompt_tokens)
        return Item(index=index, prompt=" ".join(f"t{token}" for token in tokens), answer="")

    def score(self, index: int, completion: str) -> float:
        return 0.0 if self._scores is None else self._scores.score(index % len(self._scores), completion)


async def sample_cpu_s(
    engine: Engine, job: JobFile, folder: Path, tokenizer: Any, completions: Sequence[Completion]
) -> float:
    """Return the processor seconds of a worker for one sample: lease, prompt, trajectory and frame.

    The worker's own sampler runs with an engine that answers at once. The reward counts if the job has one of a task
    that needs no data; otherwise every reward is 0, and reward functions of the job are left out.
    """
    job = job.model_copy(update={"eval": job.eval.model_copy(update={"sets": {}})})
    own = job.environment if makes_problems(job.environment) and not job.reward.functions else None
    scores = worker_environment(job, folder) if own is not None and not own.has_turns else None
    prompt, completion = job.sampling.prompt_tokens, job.sampling.max_new_tokens
    problems = _Problems(scores, engine.vocab_size, prompt)
    draws = DrawSettings(temperature=job.sampling.temperature, max_new_tokens=completion)
    settings = EpisodeSettings(
        seed=job.seed,
        training=draws,
        evaluation=draws,
        worker_id="profile",
        limits=TrajectoryLimits(
            vocab_size=engine.vocab_size, max_prompt_tokens=prompt, max_completion_tokens=completion
        ),
    )
    ends = end_token_ids(folder, tokenizer)
    encoder = PromptEncoder(tokenizer=tokenizer, template=NO_TEMPLATE, end_ids=ends)
    desk, lock = EpisodeDesk(encoder, problems, settings), asyncio.Lock()
    queue, serving, outbox = LeaseQueue(), Serving(), Outbox[WorkerMessage]("profile", 1)
    scorer, answering = EnvironmentScorer(problems, lock), _Answering(engine, completions)
    sampler = Sampler(answering, desk, scorer, lock, queue, serving, outbox, zstd_level=job.network.zstd_level)
    serving.sound(_FIRST)
    size = job.algorithm.group_size
    number = max(1, min(SAMPLES_AT_ONCE, TOKENS_AT_ONCE // (prompt + completion)))
    running, used_s = asyncio.ensure_future(sampler.run()), 0.0
    try:
        for first in (0, number):  # the second time all is warm
            began_s = clock.process_s()
            for lease in range(first, first + number):
                queue.add(_lease(lease, lease // size, lease % size))
            sampler.wake()
            used_s = await _sent_cpu_s(outbox, number) - began_s
    finally:
        running.cancel()
    return used_s / number


def _lease(lease_id: int, group: int, sample: int) -> QueuedLease:
    item = group % SAMPLES_AT_ONCE
    start: dict[str, Any] = {"start_at": _FIRST, "consume_by_version": 1, "purpose": Purpose.TRAIN}
    return QueuedLease(lease_id=lease_id, group=group, sample=sample, item=item, **start)


async def _sent_cpu_s(outbox: Outbox[WorkerMessage], num_samples: int) -> float:
    """Wait for frames with so many samples; return the processor time then, without that of decoding them here."""
    num_sent, decoding_s = 0, 0.0
    while True:
        match await outbox.next():
            case KeyedFrame(key, frame):
                at_s = clock.process_s()
                outbox.acknowledge(key.epoch, [key.sequence])
                num_sent += len(trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=1 << 30))
                if num_sent >= num_samples:
                    return at_s - decoding_s
                decoding_s += clock.process_s() - at_s
            case FailedLease(why=why):
                raise PeriplusError(f"a sample could not be made from a completion: {why}")
