"""How many tokens fit into one forward and backward pass, and whether layers must recompute their activations.

A pass keeps, for each token and layer, what the backward pass reads: inputs of norms and matrix products, queries, keys
and values, the products of the gated MLP, and float32 copies within norms. With H the hidden width, A the width of
queries, keys and values together, and F the width of the MLP, a layer keeps about

    bytes per token and layer = 4 (4 H + A) + dtype (6 H + 3 A + 4 F)

which a test holds against the tensors that torch saves, within a factor of 1.5. A layer that recomputes keeps its
input only, H numbers. Where a model takes the padded path, logits over the vocabulary come on top. Everything here is
an estimate for choosing sizes. On an accelerator, activations get a share of what is free when the learner is built,
less what the learner will still hold there: other processes, such as an engine, may hold a part of the device.
"""

from dataclasses import dataclass

import torch

MIN_PASS_TOKENS = 2048
"""Tokens in a pass below which `auto` recomputes activations rather than making smaller passes. Each pass reads and
rounds all weights. Chosen by hand: with 2048 tokens a matrix product is no longer limited by reading its weights."""

MAX_PASS_TOKENS = {"cpu": 2048}
"""Largest size of a pass in tokens, by device type, however much memory there is. On a CPU larger passes take longer:
the allocator gives their memory back to the kernel, which clears it again (docs/design/0012-training-devices.md)."""

MAX_ACCELERATOR_PASS_TOKENS = 65_536
"""The same for any other device. Chosen by hand; not measured."""

CPU_ACTIVATION_BYTES = 2 << 30
"""Memory for the activations of a pass on a CPU. A constant rather than a share of the machine's memory, so that a job
makes the same passes, and rounds in the same way, on every machine. Chosen by hand."""

ACTIVATION_SHARE = 2 / 3
"""Share of an accelerator's memory for the activations of a pass, of what weights, gradients and optimizer leave. The
rest is for logits, work space and fragments, and for an estimate that is too low by up to the factor of the test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWidths:
    """Sizes of a model that decide about activation memory, in numbers per token, and the number of layers.

    `attention` is the width of queries, keys and values together. `logits` is the size of the vocabulary if the model
    computes all logits of a pass at once, else 0.
    """

    layers: int
    hidden: int
    attention: int
    mlp: int
    logits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """Largest tokens of a pass, and whether layers recompute their activations."""

    tokens: int
    recompute: bool


def state_bytes(
    num_parameters: int,
    *,
    num_trained: int,
    moments: int,
    has_critic: bool,
    has_reference: bool,
    is_rounded: bool,
    is_placed: bool,
    num_ranks: int,
) -> int:
    """Return the bytes that a learner will still take on each rank's device, apart from activations.

    Each trained model has float32 weights, and a gradient and so many `moments` of its `num_trained` parameters. The
    published version and the next one are kept in bfloat16, and so are the weights of a pass that is in bfloat16
    (`is_rounded`). The actor's own weights do not count if they are there already (`is_placed`).
    """
    weights = num_parameters * (has_critic + has_reference + (not is_placed))
    trained = num_trained * (1 + has_critic) * (1 + moments)
    return (4 * (weights + trained) + 2 * num_parameters * (2 + is_rounded)) // num_ranks


def activation_budget(free_bytes: int, taken_bytes: int) -> int:
    """Return the bytes for activations of a pass, where the learner will take `taken_bytes` of the free ones."""
    return max(0, int(ACTIVATION_SHARE * (free_bytes - taken_bytes)))


def activation_bytes(widths: ModelWidths, *, dtype_bytes: int, recompute: bool) -> int:
    """Return the estimated bytes that a pass keeps for each token."""
    # Logits in float32 and their softmax, on the padded path only.
    logits = 8 * widths.logits
    layer = 4 * (4 * widths.hidden + widths.attention)
    layer += dtype_bytes * (6 * widths.hidden + 3 * widths.attention + 4 * widths.mlp)
    if recompute:
        # One layer's activations exist at a time, during its own backward pass.
        return widths.layers * widths.hidden * dtype_bytes + layer + logits
    return widths.layers * layer + logits


def plan_pass(
    widths: ModelWidths,
    *,
    dtype_bytes: int,
    budget_bytes: int,
    longest: int,
    device_type: str,
    tokens: int | None,
    recompute: bool | None,
) -> PassPlan:
    """Choose the size of a pass, and whether layers recompute.

    `tokens` and `recompute` are what the job asks for, None to choose. `longest` is the most tokens of one sequence: a
    sequence is never cut, so a chosen size is never below it. `auto` recomputes if otherwise less than
    MIN_PASS_TOKENS, or than one sequence, fit into the budget.
    """
    wanted = max(longest, MIN_PASS_TOKENS if tokens is None else tokens)
    room = {
        again: budget_bytes // activation_bytes(widths, dtype_bytes=dtype_bytes, recompute=again)
        for again in (False, True)
    }
    again = room[False] < wanted if recompute is None else recompute
    most = MAX_PASS_TOKENS.get(device_type, MAX_ACCELERATOR_PASS_TOKENS)
    return PassPlan(tokens=max(longest, min(room[again], most)) if tokens is None else tokens, recompute=again)


def free_device_bytes(device: torch.device) -> int:
    """Return the bytes of an accelerator that are free, with what torch holds of it and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
