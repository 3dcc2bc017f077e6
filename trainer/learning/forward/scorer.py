"""Scores packed sequences with a causal language model: one module call from token ids to log-probabilities.

`PolicyScorer` holds the model and does all that needs its weights within its own `forward`: embedding, layers, the
projection onto the vocabulary. FSDP2 gathers and frees weights around calls of a model. `PolicyScorer.around` is such a
call around all of it (trainer/distributed/sharding.py).

There are two paths.
- *Packed*: the backbone runs on the real tokens only (trainer/learning/forward/attention.py says which models allow
  it), and logits are computed for the tokens before completion tokens only, in chunks.
- *Padded*: any other causal language model. Sequences become rows that are padded on the right. Under causality a token
  never sees what follows it, so no mask is passed, and the model makes those that it needs, such as sliding windows.
  The model's own code computes the logits, including scaling and caps of its family. They are whole in memory.

Shapes: N packed tokens, R rows, S columns, M completion tokens, K states, V vocabulary, H hidden.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from trainer.learning.forward.attention import takes_packed
from trainer.learning.forward.chunked_logprobs import (
    CHUNK_ELEMENTS,
    entropies_in_place,
    token_logprobs,
    token_logprobs_and_entropies,
)
from trainer.learning.forward.packing import PackedSequences
from trainer.learning.forward.precision import call_rounded


class TokenScores(NamedTuple):
    """Log-probability of each completion token, and the entropy of the distribution that it is drawn from, in nats.

    Both are M in float32. The entropies are constants: no gradient passes through them.
    """

    logprobs_M: torch.Tensor
    entropies_M: torch.Tensor


class Surprisals(NamedTuple):
    """What a distribution says of the tokens that were drawn from it, each M in float32 (`below_M` in float64).

    Log-probability of each token in nats; mean (the entropy, in nats) and variance (in nats squared) of the surprisal
    -log p of a token that is drawn from the same distribution; and the probability of all tokens with smaller ids.
    """

    logprobs_M: torch.Tensor
    entropies_M: torch.Tensor
    variances_M: torch.Tensor
    below_M: torch.Tensor


def call_directly(run: Callable[[], Any]) -> Any:
    """Return what a function returns, for a model that is whole on its device."""
    return run()


class PolicyScorer(torch.nn.Module):
    """Log-probabilities of completions under a causal language model, on the device of its weights.

    `compute_dtype` is the dtype to which weights are rounded for a pass; None leaves them as they are. The parameters
    are the model's own. `around` calls a function of no arguments where all weights outside of layers are gathered.
    """

    def __init__(self, model: Any, *, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype
        self.around: Callable[[Callable[[], Any]], Any] = call_directly

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(
        self, packed: PackedSequences, temperature: float, *, with_entropies: bool = False
    ) -> torch.Tensor | TokenScores:
        """Return the log-probability of each completion token in nats, M in float32, at a sampling temperature.

        `with_entropies`: return the entropy at each token too, from the same logits.
        """
        found: torch.Tensor | TokenScores = self.around(lambda: self._scores(packed, temperature, with_entropies))
        return found

    def _scores(self, packed: PackedSequences, temperature: float, with_entropies: bool) -> torch.Tensor | TokenScores:
        if not takes_packed(self.model):
            logits_MV = self._padded_logits(packed)
            logprobs_M = _logprobs_of_logits(logits_MV, packed.targets_M, temperature)
            return TokenScores(logprobs_M, _entropies(logits_MV, temperature)) if with_entropies else logprobs_M
        states_NH = last_states(self.model.base_model, packed, self.compute_dtype)
        head = self.model.get_output_embeddings()
        inputs = (states_NH.index_select(0, packed.before_M), head.weight, head.bias, packed.targets_M)
        if with_entropies:
            return TokenScores(*token_logprobs_and_entropies(*inputs, temperature=temperature))
        return token_logprobs(*inputs, temperature=temperature)

    @torch.no_grad()
    def surprisals(self, packed: PackedSequences, temperature: float) -> Surprisals:
        """Return what the distributions say of each completion token.

        Logits are rounded to `compute_dtype`, as inference engines round them.
        """
        if takes_packed(self.model):
            head = self.model.get_output_embeddings()
            weight_VH, bias_V = head.weight.float(), head.bias
            rows_MX = last_states(self.model.base_model, packed, self.compute_dtype).index_select(0, packed.before_M)
        else:
            weight_VH, bias_V = None, None
            rows_MX = self._padded_logits(packed)
        num_logits = rows_MX.shape[1] if weight_VH is None else len(weight_VH)
        step, found = max(1, CHUNK_ELEMENTS // num_logits), []
        for start in range(0, len(rows_MX), step):
            logits_CV = rows_MX[start : start + step].float()
            if weight_VH is not None:
                logits_CV = torch.nn.functional.linear(logits_CV, weight_VH, bias_V)
            if self.compute_dtype is not None:
                logits_CV = logits_CV.to(self.compute_dtype).float()
            found.append(_surprisals(logits_CV / temperature, packed.targets_M[start : start + step]))
        return Surprisals(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _padded_logits(self, packed: PackedSequences) -> torch.Tensor:
        # The logits before each completion token, MV.
        ids_RS, cell_of_token = _padded(packed)
        options = {"input_ids": ids_RS, "use_cache": False}
        first = 0
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters and len(packed.before_M):
            # No logits for the columns that only hold prompts. Their positions were computed on the host.
            first = packed.first_state
            options["logits_to_keep"] = packed.longest - first
        logits_RSV = call_rounded(self.model, self.compute_dtype, options).logits
        cells_M = cell_of_token[packed.before_M]
        rows_M, columns_M = cells_M // packed.longest, cells_M % packed.longest
        return cast("torch.Tensor", logits_RSV[rows_M, columns_M - first])


def last_states(backbone: Any, packed: PackedSequences, dtype: torch.dtype | None) -> torch.Tensor:
    """Return the backbone's last hidden state of each packed token, NH, in the dtype that it computes in."""
    if not takes_packed(backbone):
        ids_RS, cell_of_token = _padded(packed)
        output = call_rounded(backbone, dtype, {"input_ids": ids_RS, "use_cache": False})
        return cast("torch.Tensor", output.last_hidden_state.flatten(0, 1).index_select(0, cell_of_token))
    options = {
        "input_ids": packed.ids_1N,
        "position_ids": packed.positions_1N,
        # A mask of four dimensions is taken as it is. Our attention ignores it; without it, transformers would find out
        # from the positions that sequences are packed, and make a mask of N x N.
        "attention_mask": torch.ones((1, 1, 1, 1), dtype=torch.bool, device=packed.ids_1N.device),
        "use_cache": False,
        "packed": packed,
    }
    return cast("torch.Tensor", call_rounded(backbone, dtype, options).last_hidden_state[0])


def _padded(packed: PackedSequences) -> tuple[torch.Tensor, torch.Tensor]:
    # The token ids as rows that are padded on the right with id 0, RS, and the cell of each token among R * S, N. Each
    # row has its prompt. The cells of a prompt that rows share are those of the first.
    starts, ids_L, positions_L, shared = packed.starts.long(), packed.ids_1N[0], packed.positions_1N[0], packed.shared
    if shared is not None:
        ids_L, positions_L = ids_L[shared.token_of_place], positions_L[shared.token_of_place]
    lengths_R = starts.diff()
    rows_R = torch.arange(len(lengths_R), device=starts.device)
    cells_L = torch.repeat_interleave(rows_R, lengths_R, output_size=len(ids_L)) * packed.longest + positions_L
    ids = ids_L.new_zeros(len(lengths_R) * packed.longest).index_copy(0, cells_L, ids_L)
    cell_of_token = cells_L if shared is None else cells_L[shared.place_of_token]
    return ids.view(len(lengths_R), packed.longest), cell_of_token


def _logprobs_of_logits(logits_MV: torch.Tensor, targets_M: torch.Tensor, temperature: float) -> torch.Tensor:
    return -torch.nn.functional.cross_entropy(logits_MV.float() / temperature, targets_M, reduction="none")


def _surprisals(logits_CV: torch.Tensor, targets_C: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logprobs_CV = torch.log_softmax(logits_CV, 1).clamp(min=torch.finfo(torch.float32).min)
    probabilities_CV = logprobs_CV.exp()
    means_C = -(probabilities_CV * logprobs_CV).sum(1)
    variances_C = (probabilities_CV * (logprobs_CV + means_C[:, None]).square()).sum(1)
    ids_V = torch.arange(logits_CV.shape[1], device=logits_CV.device)
    below_C = probabilities_CV.masked_fill(ids_V >= targets_C[:, None], 0.0).sum(1, dtype=torch.float64)
    return logprobs_CV.gather(1, targets_C[:, None])[:, 0], means_C, variances_C, below_C


@torch.no_grad()
def _entropies(logits_MV: torch.Tensor, temperature: float) -> torch.Tensor:
    # In chunks of tokens, since each of them needs its logits twice more.
    chunk = max(1, CHUNK_ELEMENTS // logits_MV.shape[1])
    scaled = (part.float().div(temperature) for part in torch.split(logits_MV, chunk))
    return torch.cat([entropies_in_place(part_CV, torch.logsumexp(part_CV, 1)) for part_CV in scaled])
