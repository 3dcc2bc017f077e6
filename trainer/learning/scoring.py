"""Log-probabilities and values of given completions under a model: one teacher-forced forward pass.

The logits are divided by the temperature that the samples were drawn with, because the behaviour log-probabilities are
those of the sampling distribution. Vocabulary logits are computed for the completion's columns only.

Shapes: B rows, T completion columns, U = T + 1 states, S prompt and completion columns, V vocabulary, H hidden.
"""

from typing import Any

import torch

from trainer.learning.batch import Batch


def completion_logprobs(model: Any, batch: Batch, temperature: float) -> torch.Tensor:
    """Log-probability of each completion token, BT; columns outside the mask hold values without meaning."""
    width_T = batch.mask_BT.shape[1]
    output = model(**_inputs(batch), logits_to_keep=width_T + 1)
    logits_BTV = output.logits[:, :-1].float() / temperature
    targets_BT = batch.input_ids_BS[:, -width_T:]
    logprobs_BT: torch.Tensor = -torch.nn.functional.cross_entropy(
        logits_BTV.transpose(1, 2), targets_BT, reduction="none"
    )
    return logprobs_BT


def last_states(backbone: Any, batch: Batch) -> torch.Tensor:
    """The hidden state before each completion token and after the last column, BUH, of a model without its head."""
    width_U = batch.mask_BT.shape[1] + 1
    states_BUH: torch.Tensor = backbone(**_inputs(batch)).last_hidden_state[:, -width_U:]
    return states_BUH


def _inputs(batch: Batch) -> dict[str, Any]:
    positions_BS = (batch.real_BS.long().cumsum(dim=1) - 1).clamp(min=0)
    return {
        "input_ids": batch.input_ids_BS,
        "attention_mask": _attend(batch.real_BS),
        "position_ids": positions_BS,
        "use_cache": False,
    }


def _attend(real_BS: torch.Tensor) -> torch.Tensor:
    width_S = real_BS.shape[1]
    causal_SS = torch.ones((width_S, width_S), dtype=torch.bool).tril()
    # A padding query attends itself: a softmax over nothing would be NaN.
    itself_SS = torch.eye(width_S, dtype=torch.bool)
    return (real_BS[:, None, None, :] & causal_SS) | itself_SS
