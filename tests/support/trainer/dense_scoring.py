"""Scores completions the plain way: padded rows, a dense mask, and all logits at once. It is the oracle of packing.

Prompts are padded on the left and completions on the right, so that all completions start in the same column.

Shapes: B rows, P prompt columns, T completion columns, S = P + T, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch

from trainer.learning.batch import Sample


def dense_inputs(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the arguments of a transformers model for these rows; padding has the token id 0."""
    width_P = max(len(sample.prompt_ids) for sample in samples)
    width_T = max(len(sample.completion_ids) for sample in samples)
    ids_BS = torch.zeros((len(samples), width_P + width_T), dtype=torch.long)
    real_BS = torch.zeros((len(samples), width_P + width_T), dtype=torch.bool)
    for row, sample in enumerate(samples):
        ids = [*sample.prompt_ids.tolist(), *sample.completion_ids.tolist()]
        start = width_P - len(sample.prompt_ids)
        ids_BS[row, start : start + len(ids)] = torch.tensor(ids)
        real_BS[row, start : start + len(ids)] = True
    causal_SS = torch.ones((ids_BS.shape[1], ids_BS.shape[1]), dtype=torch.bool).tril()
    itself_SS = torch.eye(ids_BS.shape[1], dtype=torch.bool)  # a softmax over no key would be NaN
    return {
        "input_ids": ids_BS,
        "attention_mask": (real_BS[:, None, None, :] & causal_SS) | itself_SS,
        "position_ids": (real_BS.long().cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }


def dense_logprobs(model: Any, samples: Sequence[Sample], temperature: float) -> torch.Tensor:
    """Return the log-probability of each completion token, BT; padding columns hold values without meaning."""
    inputs = dense_inputs(samples)
    width_T = max(len(sample.completion_ids) for sample in samples)
    logits_BTV = model(**inputs).logits[:, -width_T - 1 : -1].float() / temperature
    logprobs_BTV = torch.log_softmax(logits_BTV, -1)
    return logprobs_BTV.gather(2, inputs["input_ids"][:, -width_T:, None])[..., 0]


def dense_states(backbone: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """Return the last hidden states before each completion token and after the last column, BUH."""
    width_U = max(len(sample.completion_ids) for sample in samples) + 1
    states_BSH: torch.Tensor = backbone(**dense_inputs(samples)).last_hidden_state
    return states_BSH[:, -width_U:]
