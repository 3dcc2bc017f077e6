"""A run directory with samples, written by the trainer's own store and recorder, for those who read it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame, pack
from periplus.job.run_directory import RunDirectory
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Trajectory, read_only, token_ids
from tests.periplus.values.test_trajectory import GOOD
from trainer.data.characters import character_tokenizer
from trainer.disk_wait import DiskWait
from trainer.intake.committed import kept
from trainer.learning.sample_figures import SampleFigures
from trainer.reporting.sample_recorder import SampleRecorder

REGIONS = {"w-eu": "eu-west", "w-us": "us-east"}
"""Regions of the workers that the samples come from."""


def trajectory_of(
    group: int,
    number: int,
    *,
    prompt: str = "1+1",
    completion: Sequence[tuple[str, int | None]] = (("2", 0),),
    reward: float = 1.0,
    worker: str = "w-eu",
    metadata: str = "",
) -> Trajectory:
    """Return a trajectory. `completion` is a list of (text, version that sampled it, or None for context)."""
    encode = character_tokenizer().encode
    pieces = [(encode(text, add_special_tokens=False).ids, version) for text, version in completion]
    ids = [each for piece, _ in pieces for each in piece]
    mask = [version is not None for piece, version in pieces for _ in piece]
    # Context counts to the run before it.
    runs: list[PolicyRun] = []
    for piece, version in pieces:
        policy = runs[-1].policy if version is None and runs else Policy(0, version or 0)
        if runs and runs[-1].policy == policy:
            runs[-1] = PolicyRun(policy, runs[-1].num_tokens + len(piece))
        else:
            runs.append(PolicyRun(policy, len(piece)))
    return replace(
        GOOD,
        group=group,
        sample=number,
        prompt_ids=token_ids(encode(prompt).ids),
        completion_ids=token_ids(ids),
        logprobs=read_only([-0.5 if sampled else 0.0 for sampled in mask], np.float32),
        mask=read_only(mask, np.bool_),
        policies=tuple(runs),
        reward=reward,
        worker_id=worker,
        metadata=metadata,
    )


class SampleWriter:
    """Writes steps into a run directory as a trainer does. Each step's trajectories are one frame."""

    def __init__(self, root: Path, *, with_tokenizer: bool = True) -> None:
        self.run = RunDirectory(root)
        self.run.create()
        self.store = Spool.open(self.run.trajectories, durability=Durability.PROCESS, max_bytes=1 << 30)
        tokenizer = character_tokenizer().to_str().encode() if with_tokenizer else None
        disk = DiskWait(asyncio.Event(), lambda phase: None)
        self.recorder = SampleRecorder(self.run.samples, REGIONS, tokenizer, disk)

    def step(self, policy: Policy, trajectories: Sequence[Trajectory], **figures: Any) -> None:
        """Store the trajectories as one frame, and write the block of the step that made `policy` from them."""
        frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode(trajectories))
        position = self.store.append(pack(frame))
        found = {"advantage": 0.5, "difference_mean": 0.25, "difference_max": 1.5} | figures
        self.recorder.step(
            policy,
            kept(position, tuple(trajectories)),
            [SampleFigures(group=t.group, sample=t.sample, reward=t.reward, **found) for t in trajectories],
        )


def written_run(root: Path) -> RunDirectory:
    """Return a run of three steps with two samples each; rewards rise with the step, and samples alternate regions."""
    writer = SampleWriter(root)
    for version in (1, 2, 3):
        rewards = (version / 10, version / 10 + 0.05)
        writer.step(
            Policy(0, version),
            [
                trajectory_of(version * 10, number, reward=reward, worker=worker)
                for number, (reward, worker) in enumerate(zip(rewards, REGIONS, strict=True))
            ],
        )
    writer.store.close()
    return writer.run
