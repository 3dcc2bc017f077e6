"""Log-probabilities of given tokens, without the logits of all tokens in memory at once.

The logits of M tokens over a vocabulary of V are often the largest tensor of a training step: 8 sequences of 4096
tokens over 152k entries are 20 GB in float32. Here the projection onto the vocabulary and the softmax run over chunks
of tokens. The backward pass computes the logits of a chunk again, and from them the gradient:

    log p(y) = z_y - log sum_v exp(z_v)          z = (W h + b) / temperature
    d log p(y) / d z = onehot(y) - p
    H = - sum_v p_v log p_v                      the entropy, on request; no gradient passes through it

Nothing but hidden states, weights and one number a token lives from the forward to the backward pass. Chunks change the
result only by the order in which the gradient of W is added up.

Logits are always float32, from hidden states and weights of any float type, as are the softmax and the gradient of the
weights. On a CPU the product itself is in float32. On an accelerator, operands of 16 bits keep their type and the
product is accumulated in float32 where torch can return it (CUDA); elsewhere they are converted first.

Shapes: M tokens, C tokens of a chunk, V vocabulary, H hidden.
"""

from typing import Any, cast

import torch

CHUNK_ELEMENTS = 1 << 25
"""Largest number of logits in one chunk: 128 MiB in float32. Chosen by hand: a chunk of 220 tokens over 152k entries is
large enough for a matrix product, and 128 MiB are small beside the weights of a model with such a vocabulary."""


def token_logprobs(
    hidden_MH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_M: torch.Tensor,
    *,
    temperature: float,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> torch.Tensor:
    """Return the log-probability of each target token in nats, M in float32, differentiable in all but the targets.

    `weight_VH` and `bias_V` project the last hidden states onto the vocabulary; logits are divided by `temperature`.
    """
    chunk = max(1, chunk_elements // weight_VH.shape[0])
    arguments = (hidden_MH, weight_VH, bias_V, targets_M, temperature, chunk, False)
    return cast("torch.Tensor", _ChunkedLogprobs.apply(*arguments)[0])  # type: ignore[no-untyped-call]


def token_logprobs_and_entropies(
    hidden_MH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_M: torch.Tensor,
    *,
    temperature: float,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `token_logprobs` does, and the entropy in nats of the distribution that each target is drawn from.

    Both are M in float32. The entropy comes from the same logits, so that they are computed once. It is a constant:
    no gradient passes through it.
    """
    chunk = max(1, chunk_elements // weight_VH.shape[0])
    arguments = (hidden_MH, weight_VH, bias_V, targets_M, temperature, chunk, True)
    return cast("tuple[torch.Tensor, torch.Tensor]", _ChunkedLogprobs.apply(*arguments))  # type: ignore[no-untyped-call]


def entropies_in_place(logits_CV: torch.Tensor, log_sums_C: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of the distribution of each row of logits, C, and overwrite the logits.

    `log_sums_C` are log sum exp of the rows.
    """
    # z - log sum exp z = log p. A logit of minus infinity has probability 0, and 0 times infinity would be NaN.
    logprobs_CV = logits_CV.sub_(log_sums_C[:, None])
    logprobs_CV.clamp_(min=torch.finfo(logprobs_CV.dtype).min)
    return -(logprobs_CV.exp().mul_(logprobs_CV)).sum(1)


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_M: torch.Tensor,
        temperature: float,
        chunk: int,
        with_entropies: bool,
    ) -> Any:
        logprobs_M = hidden_MH.new_empty(len(hidden_MH), dtype=torch.float32)
        entropies_M = torch.empty_like(logprobs_M) if with_entropies else None
        weight = _operand(weight_VH)
        for start in range(0, len(hidden_MH), chunk):
            part = slice(start, start + chunk)
            logits_CV = _logits(hidden_MH[part], weight, bias_V, temperature)
            chosen_C = logits_CV.gather(1, targets_M[part, None])[:, 0]
            log_sums_C = torch.logsumexp(logits_CV, 1)
            logprobs_M[part] = chosen_C - log_sums_C
            if entropies_M is not None:
                entropies_M[part] = entropies_in_place(logits_CV, log_sums_C)
        ctx.save_for_backward(hidden_MH, weight_VH, bias_V, targets_M, logprobs_M)
        ctx.temperature, ctx.chunk = temperature, chunk
        if entropies_M is not None:
            ctx.mark_non_differentiable(entropies_M)
        return logprobs_M, entropies_M

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient_M, _ = gradients
        hidden_MH, weight_VH, bias_V, targets_M, logprobs_M = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight = _operand(weight_VH)
        hidden_gradient_MH = torch.empty_like(hidden_MH) if needs_hidden else None
        weight_gradient_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        bias_gradient_V = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        for start in range(0, len(hidden_MH), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits_CV = _logits(hidden_MH[part], weight, bias_V, ctx.temperature)
            targets_C1 = targets_M[part, None]
            # log sum exp = z_y - log p(y), so the normaliser need not be computed again. In place: -p g, then + g at y.
            logits_CV -= logits_CV.gather(1, targets_C1) - logprobs_M[part, None]
            scaled_C1 = (gradient_M[part] / ctx.temperature)[:, None]
            delta_CV = logits_CV.exp_().mul_(-scaled_C1)
            delta_CV.scatter_add_(1, targets_C1, scaled_C1)
            if bias_gradient_V is not None:
                bias_gradient_V += delta_CV.sum(0)
            operand_CV = delta_CV.to(weight.dtype)
            if hidden_gradient_MH is not None:
                hidden_gradient_MH[part] = (operand_CV @ weight).to(hidden_MH.dtype)
            if weight_gradient_VH is not None:
                weight_gradient_VH += _product(operand_CV.t(), hidden_MH[part].to(weight.dtype))
        return (
            hidden_gradient_MH,
            None if weight_gradient_VH is None else weight_gradient_VH.to(weight_VH.dtype),
            None if bias_gradient_V is None else bias_gradient_V.to(bias_V.dtype),
            None,
            None,
            None,
            None,
        )


def _operand(weight_VH: torch.Tensor) -> torch.Tensor:
    # The weights in the type in which products are computed; a copy only if that is another type than theirs.
    return weight_VH if weight_VH.is_cuda else weight_VH.float()


def _logits(
    hidden_CH: torch.Tensor, weight: torch.Tensor, bias_V: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    logits_CV = _product(hidden_CH.to(weight.dtype), weight.t())
    if bias_V is not None:
        logits_CV += bias_V
    return logits_CV.div_(temperature)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # A matrix product whose result is float32 whatever the operands are.
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right
