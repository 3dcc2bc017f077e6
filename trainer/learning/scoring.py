"""Log-probabilities of given completions under a model, and the hidden states from which a critic computes values.

Each function makes one teacher-forced forward pass. The logits are divided by the temperature at which the samples were
drawn, because the engine's log-probabilities are also those of the sampling distribution. Vocabulary logits are
computed for the completion's columns only, which saves memory for long prompts.

Shapes: B rows, T completion columns, U = T + 1 states, S prompt and completion columns, V vocabulary, H hidden.
"""

from typing import Any

import torch

from trainer.learning.batch import Batch


def completion_logprobs(model: Any, batch: Batch, temperature: float) -> torch.Tensor:
    """Return the log-probability of each completion token in nats, BT. Padding columns hold values without meaning."""
    width_T = batch.mask_BT.shape[1]
    # The logits before each completion token and after the last one, of which the latter predict nothing that is given.
    output = model(**_inputs(batch), logits_to_keep=width_T + 1)
    logits_BTV = output.logits[:, :-1].float() / temperature
    targets_BT = batch.input_ids_BS[:, -width_T:]
    logprobs_BT: torch.Tensor = -torch.nn.functional.cross_entropy(
        logits_BTV.transpose(1, 2), targets_BT, reduction="none"
    )
    return logprobs_BT


def last_states(backbone: Any, batch: Batch) -> torch.Tensor:
    """Return the backbone's last hidden states before each completion token and after the last column, BUH."""
    width_U = batch.mask_BT.shape[1] + 1
    states_BUH: torch.Tensor = backbone(**_inputs(batch)).last_hidden_state[:, -width_U:]
    return states_BUH


def _inputs(batch: Batch) -> dict[str, Any]:
    # Positions count the tokens that are not padding, so left padding does not shift a prompt.
    positions_BS = (batch.real_BS.long().cumsum(dim=1) - 1).clamp(min=0)
    return {
        "input_ids": batch.input_ids_BS,
        "attention_mask": _attend(batch.real_BS),
        "position_ids": positions_BS,
        "use_cache": False,
    }


def _attend(real_BS: torch.Tensor) -> torch.Tensor:
    # [B, 1, S, S], true where the query in row i may attend to the key in column j. Padding is never a key.
    width_S = real_BS.shape[1]
    causal_SS = torch.ones((width_S, width_S), dtype=torch.bool).tril()
    # Each query may attend to itself, padding included: a softmax over no key would be NaN.
    itself_SS = torch.eye(width_S, dtype=torch.bool)
    return (real_BS[:, None, None, :] & causal_SS) | itself_SS
