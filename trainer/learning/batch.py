"""Turns samples into one batch of tensors, in an order that does not depend on when they arrived.

Rows are sorted by (group, sample). So the floating-point sums of a step, and with them the weights, are the same
whichever region answered first. What the losses read has one column for each completion token, padded on the right to
the longest completion. Prompts and token ids stay with the samples, as arrays on the host: each forward pass packs
those of its own rows without padding, and equal prompts once (trainer/learning/forward/packing.py).

Each completion token has a mask bit. It is true for tokens that the policy sampled, which are those that the loss sees.
It is false for tokens that were inserted, such as a tool's answer.

Tensors are on the device of the model that is trained. Counts are taken from the host's arrays, so that no count waits
for the device.

Shapes: B rows (samples), T completion columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from periplus.values.trajectory import PolicyRun, StopReason, Trajectory
from trainer.learning.forward.packing import PackedSequences, TokenSequence, pack
from trainer.learning.micro_batches import RowSize

CPU = torch.device("cpu")
"""Device of a batch if none is given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One prompt and its completion, with all that a training step needs to know of it.

    `behaviour_logprobs` are the engine's log-probabilities of the completion tokens, in nats. `policies` are runs of
    completion tokens with the policy that sampled them, oldest first; together they cover the completion.
    """

    group: int
    sample: int
    prompt_ids: npt.NDArray[np.int32]
    completion_ids: npt.NDArray[np.int32]
    behaviour_logprobs: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]  # true for completion tokens that the policy sampled: the loss sees these
    policies: tuple[PolicyRun, ...]
    reward: float | None  # None: no reward function judged it, and a step leaves it out
    stop_reason: StopReason


def sample_of(trajectory: Trajectory, reward: float | None) -> Sample:
    """Convert a trajectory into a sample with the reward `reward`.

    This is the trajectory's own reward, or another sample's: the `shuffled` reward permutes them, as a control
    experiment in which nothing can be learnt.
    """
    return Sample(
        group=trajectory.group,
        sample=trajectory.sample,
        prompt_ids=np.asarray(trajectory.prompt_ids, np.int32),
        completion_ids=np.asarray(trajectory.completion_ids, np.int32),
        behaviour_logprobs=trajectory.logprobs,
        mask=np.asarray(trajectory.mask, np.bool_),
        policies=trajectory.policies,
        reward=reward,
        stop_reason=trajectory.stop_reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of samples on one device.

    - `mask_BT`: true for the completion tokens that the loss sees.
    - `behaviour_logprobs_BT`: the engine's log-probabilities, 0 in padding.
    - `samples`: the sample of each row.
    """

    mask_BT: torch.Tensor
    behaviour_logprobs_BT: torch.Tensor
    samples: tuple[Sample, ...]

    @property
    def device(self) -> torch.device:
        return self.mask_BT.device

    @property
    def num_rows(self) -> int:
        return len(self.samples)

    @property
    def num_columns(self) -> int:
        """Number of completion columns, T."""
        return self.mask_BT.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of completion tokens that the loss sees."""
        return self.num_tokens_of(range(self.num_rows))

    def num_tokens_of(self, rows: Iterable[int]) -> int:
        """Return the number of completion tokens of these rows that the loss sees."""
        return sum(int(np.count_nonzero(self.samples[row].mask)) for row in rows)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Reward of each row. Raises: ValueError if a sample has none."""
        return tuple(reward_of(sample) for sample in self.samples)

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(sample.group for sample in self.samples)

    @property
    def sizes(self) -> tuple[RowSize, ...]:
        """Tokens of each row's prompt and completion, and which rows have the same prompt."""
        numbers: dict[bytes, int] = {}
        return tuple(
            RowSize(
                prompt=numbers.setdefault(sample.prompt_ids.tobytes(), len(numbers)),
                num_prompt=len(sample.prompt_ids),
                num_completion=len(sample.completion_ids),
            )
            for sample in self.samples
        )

    @property
    def lengths_B(self) -> torch.Tensor:
        """Number of completion tokens of each row, including those that the loss does not see."""
        return torch.tensor([len(sample.completion_ids) for sample in self.samples], device=self.device)

    @property
    def truncated_B(self) -> torch.Tensor:
        """True for rows whose completion ended neither with an end token nor with a stop string."""
        truncated = [sample.stop_reason not in (StopReason.EOS, StopReason.STOP) for sample in self.samples]
        return torch.tensor(truncated, dtype=torch.bool, device=self.device)

    def take(self, rows: Sequence[int]) -> "Batch":
        """Return these rows as a batch with the same number of columns; there may be none."""
        index = self.index(rows)
        return Batch(
            mask_BT=self.mask_BT[index],
            behaviour_logprobs_BT=self.behaviour_logprobs_BT[index],
            samples=tuple(self.samples[row] for row in rows),
        )

    def index(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the rows as an index for the batch's tensors, on their device."""
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def packed(self) -> PackedSequences:
        """Pack prompts and completions of all rows for a forward pass on the batch's device."""
        sequences = [TokenSequence(prompt_ids=s.prompt_ids, completion_ids=s.completion_ids) for s in self.samples]
        return pack(sequences, self.num_columns, self.device)


def collate(samples: Sequence[Sample], device: torch.device = CPU) -> Batch:
    """Sort the samples by (group, sample), and pad their completions to the longest one.

    Raises: ValueError if there are no samples, if one is given twice, if a prompt or completion is empty, or if the
    number of log-probabilities or mask bits differs from the number of completion tokens.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample; none was given")
    ordered = tuple(sorted(samples, key=lambda sample: (sample.group, sample.sample)))
    for sample in ordered:
        _check(sample)
    if len({(sample.group, sample.sample) for sample in ordered}) < len(ordered):
        raise ValueError("a sample is in the batch twice; give each (group, sample) once")
    shape = (len(ordered), max(len(sample.completion_ids) for sample in ordered))
    # Filled on the host, then moved in one transfer each.
    behaviour_logprobs_BT, mask_BT = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
    for row, sample in enumerate(ordered):
        behaviour_logprobs_BT[row, : len(sample.completion_ids)] = sample.behaviour_logprobs
        mask_BT[row, : len(sample.completion_ids)] = sample.mask
    return Batch(
        mask_BT=torch.from_numpy(mask_BT).to(device),
        behaviour_logprobs_BT=torch.from_numpy(behaviour_logprobs_BT).to(device),
        samples=ordered,
    )


def _check(sample: Sample) -> None:
    if not len(sample.prompt_ids) or not len(sample.completion_ids):
        raise ValueError(f"group {sample.group} sample {sample.sample} has an empty prompt or completion")
    if not len(sample.completion_ids) == len(sample.behaviour_logprobs) == len(sample.mask):
        raise ValueError(
            f"group {sample.group} sample {sample.sample} has {len(sample.completion_ids)} tokens, "
            f"{len(sample.behaviour_logprobs)} log-probabilities and {len(sample.mask)} mask bits"
        )


def reward_of(sample: Sample) -> float:
    """Return a sample's reward. Raises: ValueError if it has none."""
    if sample.reward is None:
        raise ValueError(f"group {sample.group} sample {sample.sample} has no reward; leave it out of the batch")
    return sample.reward
