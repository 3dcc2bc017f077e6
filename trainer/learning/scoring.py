"""Log-probabilities and values of a batch's completions, in the columns that the losses read.

Each function makes one teacher-forced forward pass over the batch's packed sequences. The logits are divided by the
temperature at which the samples were drawn, because the engine's log-probabilities are also those of the sampling
distribution.

Shapes: B rows, T completion columns, U = T + 1 states (before each completion token, and after the last).
"""

from collections.abc import Callable
from typing import Any

import torch

from trainer.learning.batch import Batch
from trainer.learning.forward.packing import PackedSequences

Logprobs = Callable[[PackedSequences, float], torch.Tensor]
"""Type of a scorer: (packed sequences, temperature) -> log-probabilities of all completion tokens, in packed order."""

Values = Callable[[PackedSequences], torch.Tensor]
"""Type of a critic: packed sequences -> values of all states, in packed order."""


def completion_logprobs(scorer: Logprobs, batch: Batch, temperature: float) -> torch.Tensor:
    """Return the log-probability of each completion token in nats, BT; 0 in padding columns."""
    packed = batch.packed()
    return _spread(scorer(packed, temperature), packed.cells_M, (batch.num_rows, batch.num_columns))


def completion_scores(scorer: Any, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy at each completion token in nats, each BT; 0 in padding columns.

    `scorer` is a `PolicyScorer`. Both come from one pass. Only the log-probabilities are differentiable.
    """
    packed = batch.packed()
    logprobs_M, entropies_M = scorer(packed, temperature, with_entropies=True)
    shape = (batch.num_rows, batch.num_columns)
    return _spread(logprobs_M, packed.cells_M, shape), _spread(entropies_M, packed.cells_M, shape)


def state_values(critic: Values, batch: Batch) -> torch.Tensor:
    """Return the value of the state before each completion token and after the last one, BU; 0 in padding columns."""
    packed = batch.packed()
    return _spread(critic(packed), packed.cells_K, (batch.num_rows, batch.num_columns + 1))


def _spread(values: torch.Tensor, cells: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    # Differentiable, also if there are no values.
    return values.new_zeros(shape[0] * shape[1]).index_copy(0, cells, values).view(shape)
