"""A sample with all that is shown of it, from its row, its trajectory and its text; and the JSON of it.

A completion is shown in *pieces*: runs of tokens that one policy sampled, or of context tokens that no policy did, such
as a tool's answer. A sample whose trajectory cannot be read is shown with its row alone, and the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from periplus.errors import PeriplusError
from periplus.job.samples.reward_parts import reward_parts_of
from periplus.job.samples.selection import ChosenSample
from periplus.job.samples.step_blocks import StepBlock
from periplus.job.samples.texts import DecodedText, TokensToDecode
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory, reward_of_wire

Tree = dict[str, object]
"""JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPiece:
    """Consecutive tokens of a completion, from `begin` to before `end`.

    They were sampled by `policy`, or are context that the environment put there while this policy was current.
    `staleness` is the policy's age at the step, in versions. `kept_kv`: the engine kept keys and values of older
    policies for them. `text` is None without a tokenizer.
    """

    begin: int
    end: int
    policy: Policy
    staleness: int
    is_context: bool
    kept_kv: bool
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample of a step, with the figures of its row.

    `step` is the version that the step made, or at which the `evaluation` of this name began; `fork` is the fork that
    took it. `reward` is the one that was trained on, or None if no function judged the sample, which is then not
    trained on. `difference_mean` and `difference_max` are of |log pi_trainer - log pi_engine| in nats. `trajectory` is
    None if it cannot be read, and `problem` then says why. `doubt` says why the worker's samples are in doubt; it is
    empty if they are not.
    """

    step: int
    evaluation: str
    fork: int
    group: int
    sample: int
    region: str
    reward: float | None
    advantage: float
    difference_mean: float
    difference_max: float
    staleness: int
    num_tokens: int
    reward_parts: dict[str, float]
    trajectory: Trajectory | None
    problem: str
    doubt: str
    prompt: str | None
    pieces: tuple[ShownPiece, ...]


def tokens_to_decode(trajectory: Trajectory) -> TokensToDecode:
    """Return the ids of a trajectory, with the ends of the pieces in which its completion is shown."""
    return TokensToDecode(
        prompt_ids=trajectory.prompt_ids.tolist(),
        completion_ids=trajectory.completion_ids.tolist(),
        cuts=_places(trajectory)[1:],
    )


def shown_sample(
    chosen: ChosenSample, trajectory: Trajectory | PeriplusError, doubt: str, text: DecodedText | None
) -> ShownSample:
    """Return a sample as it is shown. `text` is None without a tokenizer or without a trajectory."""
    block, row = chosen.block, chosen.block.rows[chosen.row]
    found = None if isinstance(trajectory, PeriplusError) else trajectory
    return ShownSample(
        step=block.policy.version,
        evaluation=block.evaluation,
        fork=block.policy.fork,
        group=int(row["group"]),
        sample=int(row["sample"]),
        region=block.region_of(chosen.row),
        reward=reward_of_wire(float(row["reward"])),
        advantage=float(row["advantage"]),
        difference_mean=float(row["difference_mean"]),
        difference_max=float(row["difference_max"]),
        staleness=int(row["staleness"]),
        num_tokens=int(row["tokens"]),
        reward_parts=reward_parts_of(found.metadata) if found else {},
        trajectory=found,
        problem=str(trajectory) if isinstance(trajectory, PeriplusError) else "",
        doubt=doubt,
        prompt=text.prompt if text else None,
        pieces=_pieces(found, text, _consumer_version(block)) if found else (),
    )


def sample_tree(sample: ShownSample) -> Tree:
    """Return the JSON of a sample, without the fields of a trajectory that could not be read."""
    tree: Tree = {
        "step": sample.step,
        "evaluation": sample.evaluation,
        "fork": sample.fork,
        "group": sample.group,
        "sample": sample.sample,
        "region": sample.region,
        "reward": sample.reward,
        "reward_parts": sample.reward_parts,
        "advantage": sample.advantage,
        "logprob_difference_mean": sample.difference_mean,
        "logprob_difference_max": sample.difference_max,
        "staleness_max": sample.staleness,
        "completion_tokens": sample.num_tokens,
    }
    trajectory = sample.trajectory
    if trajectory is None:
        return tree | {"problem": sample.problem}
    return tree | {
        "item": trajectory.item,
        "worker": trajectory.worker_id,
        "doubt": sample.doubt,
        "stop_reason": trajectory.stop_reason.value,
        "temperature": trajectory.sampling.temperature,
        "generation_s": trajectory.generation_s,
        "reward_scored": trajectory.reward,
        "metadata": trajectory.metadata,
        "prompt": sample.prompt,
        "prompt_ids": trajectory.prompt_ids.tolist(),
        "completion": [_piece_tree(piece, trajectory) for piece in sample.pieces],
    }


def _piece_tree(piece: ShownPiece, trajectory: Trajectory) -> Tree:
    part = slice(piece.begin, piece.end)
    # Seven digits are what a float32 holds.
    logprobs = [float(f"{value:.7g}") for value in trajectory.logprobs[part].tolist()]
    return {
        "policy": str(piece.policy),
        "staleness": piece.staleness,
        "context": piece.is_context,
        "kept_kv": piece.kept_kv,
        "text": piece.text,
        "ids": trajectory.completion_ids[part].tolist(),
        "logprobs": None if piece.is_context else logprobs,
    }


def _consumer_version(block: StepBlock) -> int:
    """Return the version from which staleness counts: the one before a step, or the one that was evaluated."""
    return block.policy.version - (not block.evaluation)


def _places(trajectory: Trajectory) -> list[int]:
    """Return where the pieces of a completion begin, and its end."""
    ends = np.cumsum([0, *(run.num_tokens for run in trajectory.policies)]).tolist()
    changes = (np.flatnonzero(trajectory.mask[1:] != trajectory.mask[:-1]) + 1).tolist()
    return sorted({*ends, *changes, len(trajectory.completion_ids)})


def _pieces(trajectory: Trajectory, text: DecodedText | None, consumer_version: int) -> tuple[ShownPiece, ...]:
    places = _places(trajectory)
    texts: Sequence[str | None] = text.pieces if text else [None] * (len(places) - 1)
    run_ends = np.cumsum([run.num_tokens for run in trajectory.policies])
    pieces = []
    for (begin, end), words in zip(pairwise(places), texts, strict=True):
        run = trajectory.policies[int(np.searchsorted(run_ends, begin, side="right"))]
        pieces.append(
            ShownPiece(
                begin=begin,
                end=end,
                policy=run.policy,
                staleness=consumer_version - run.policy.version,
                is_context=not bool(trajectory.mask[begin]),
                kept_kv=run.kept_kv,
                text=words,
            )
        )
    return tuple(pieces)
