"""Samples become one padded batch, in an order that does not depend on when they arrived.

Rows are sorted by (group, sample), so that the sums of a step, and with them the weights, are the same whichever region
answered first. Prompts are padded on the left and completions on the right: all completions start in the same column.

Shapes: B rows, P prompt columns, T completion columns, S = P + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion as the trainer sees it."""

    group: int
    sample: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    mask: tuple[int, ...]  # 1: the loss sees the completion token
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A padded batch; `real_BS` marks tokens that are no padding, `mask_BT` those that the loss sees."""

    input_ids_BS: torch.Tensor
    real_BS: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_logprobs_BT: torch.Tensor
    rewards: tuple[float, ...]
    groups: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return len(self.groups)

    @property
    def num_tokens(self) -> int:
        """Completion tokens that the loss sees: what it averages over."""
        return int(self.mask_BT.sum())

    def rows(self, start: int, stop: int) -> "Batch":
        """The rows `start` to `stop` as a batch of the same widths."""
        return Batch(
            input_ids_BS=self.input_ids_BS[start:stop],
            real_BS=self.real_BS[start:stop],
            mask_BT=self.mask_BT[start:stop],
            behaviour_logprobs_BT=self.behaviour_logprobs_BT[start:stop],
            rewards=self.rewards[start:stop],
            groups=self.groups[start:stop],
        )


def collate(samples: Sequence[Sample], pad_id: int) -> Batch:
    """The samples, sorted by (group, sample), padded to the longest prompt and completion among them.

    Raises: ValueError for no samples, an empty prompt or completion, or log-probabilities or a mask
    that do not match the tokens.
    """
    if not samples:
        raise ValueError("a batch of no samples")
    ordered = sorted(samples, key=lambda sample: (sample.group, sample.sample))
    for sample in ordered:
        _check(sample)
    width_P = max(len(sample.prompt_ids) for sample in ordered)
    width_T = max(len(sample.completion_ids) for sample in ordered)
    input_ids_BS = torch.full((len(ordered), width_P + width_T), pad_id, dtype=torch.long)
    real_BS = torch.zeros((len(ordered), width_P + width_T), dtype=torch.bool)
    behaviour_logprobs_BT = torch.zeros((len(ordered), width_T), dtype=torch.float32)
    mask_BT = torch.zeros((len(ordered), width_T), dtype=torch.bool)
    for row, sample in enumerate(ordered):
        start, stop = width_P - len(sample.prompt_ids), width_P + len(sample.completion_ids)
        input_ids_BS[row, start:stop] = torch.tensor(sample.prompt_ids + sample.completion_ids)
        real_BS[row, start:stop] = True
        behaviour_logprobs_BT[row, : stop - width_P] = torch.tensor(sample.behaviour_logprobs)
        mask_BT[row, : stop - width_P] = torch.tensor(sample.mask, dtype=torch.bool)
    return Batch(
        input_ids_BS=input_ids_BS,
        real_BS=real_BS,
        mask_BT=mask_BT,
        behaviour_logprobs_BT=behaviour_logprobs_BT,
        rewards=tuple(sample.reward for sample in ordered),
        groups=tuple(sample.group for sample in ordered),
    )


def _check(sample: Sample) -> None:
    if not sample.prompt_ids or not sample.completion_ids:
        raise ValueError(f"group {sample.group} sample {sample.sample} has an empty prompt or completion")
    if not len(sample.completion_ids) == len(sample.behaviour_logprobs) == len(sample.mask):
        raise ValueError(
            f"group {sample.group} sample {sample.sample} has {len(sample.completion_ids)} tokens, "
            f"{len(sample.behaviour_logprobs)} log-probabilities and {len(sample.mask)} mask bits"
        )
