"""Turns samples into one padded batch of tensors, in an order that does not depend on when they arrived.

Rows are sorted by (group, sample). So the floating-point sums of a step, and with them the weights, are the same
whichever region answered first. Prompts are padded on the left and completions on the right, so that all completions
start in the same column:

    | padding | prompt | completion | padding |
    <------- P -------> <--------- T --------->

Each completion token has a mask bit. It is true for tokens that the policy sampled, which are those that the loss sees.
It is false for tokens that were inserted, such as a tool's answer.

Shapes: B rows (samples), P prompt columns, T completion columns, S = P + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from periplus.values.trajectory import PolicyRun, StopReason, Trajectory


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
    reward: float
    stop_reason: StopReason


def sample_of(trajectory: Trajectory, reward: float) -> Sample:
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
    """A padded batch of samples.

    - `input_ids_BS`: token ids of prompt and completion. `real_BS`: true where a token is not padding.
    - `mask_BT`: true for the completion tokens that the loss sees.
    - `behaviour_logprobs_BT`: the engine's log-probabilities, 0 in padding.
    - `samples`: the sample of each row.
    """

    input_ids_BS: torch.Tensor
    real_BS: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_logprobs_BT: torch.Tensor
    samples: tuple[Sample, ...]

    @property
    def num_rows(self) -> int:
        return len(self.samples)

    @property
    def num_tokens(self) -> int:
        """Number of completion tokens that the loss sees."""
        return int(self.mask_BT.sum())

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(sample.reward for sample in self.samples)

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(sample.group for sample in self.samples)

    @property
    def lengths_B(self) -> torch.Tensor:
        """Number of completion tokens of each row, including those that the loss does not see."""
        return torch.tensor([len(sample.completion_ids) for sample in self.samples])

    @property
    def truncated_B(self) -> torch.Tensor:
        """True for rows whose completion did not end with an end token."""
        return torch.tensor([sample.stop_reason is not StopReason.EOS for sample in self.samples])

    def take(self, rows: Sequence[int]) -> "Batch":
        """Return these rows as a batch with the same number of columns."""
        return Batch(
            input_ids_BS=self.input_ids_BS[rows],
            real_BS=self.real_BS[rows],
            mask_BT=self.mask_BT[rows],
            behaviour_logprobs_BT=self.behaviour_logprobs_BT[rows],
            samples=tuple(self.samples[row] for row in rows),
        )

    def hidden_row(self) -> "Batch":
        """Return the first row as a batch with the same number of columns, of which the loss sees no token."""
        row = self.take([0])
        return replace(row, mask_BT=torch.zeros_like(row.mask_BT))


def collate(samples: Sequence[Sample], pad_id: int) -> Batch:
    """Sort the samples by (group, sample), and pad them to the longest prompt and completion among them.

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
    width_P = max(len(sample.prompt_ids) for sample in ordered)
    width_T = max(len(sample.completion_ids) for sample in ordered)
    # Fill each row around the column where completions start: the prompt ends there.
    input_ids_BS = torch.full((len(ordered), width_P + width_T), pad_id, dtype=torch.long)
    real_BS = torch.zeros((len(ordered), width_P + width_T), dtype=torch.bool)
    behaviour_logprobs_BT = torch.zeros((len(ordered), width_T), dtype=torch.float32)
    mask_BT = torch.zeros((len(ordered), width_T), dtype=torch.bool)
    for row, sample in enumerate(ordered):
        start, stop = width_P - len(sample.prompt_ids), width_P + len(sample.completion_ids)
        ids = np.concatenate([sample.prompt_ids, sample.completion_ids])
        input_ids_BS[row, start:stop] = torch.from_numpy(ids.astype(np.int64))
        real_BS[row, start:stop] = True
        behaviour_logprobs_BT[row, : stop - width_P] = torch.tensor(sample.behaviour_logprobs)
        mask_BT[row, : stop - width_P] = torch.tensor(sample.mask)
    return Batch(
        input_ids_BS=input_ids_BS,
        real_BS=real_BS,
        mask_BT=mask_BT,
        behaviour_logprobs_BT=behaviour_logprobs_BT,
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
