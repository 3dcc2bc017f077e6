"""Validation of memory: bytes of layers that Sailor profiled, predicted by counting what its programs keep.

No parameter is fitted. The counts come from the source of the profiled programs (eth-easl/sailor,
`third_party/Megatron-DeepSpeed/megatron/model`). All tensors are float32. Counts include the layer's result:

- OPT: a normalisation keeps only its result (`mem_efficient_ln`), twice; then the layer's result. Split over devices:
  queries, keys, values, result of attention; ReLU keeps its result. The softmax keeps one copy of the scores.
- GPT-Neo: torch's normalisation keeps input and result. The first input belongs to the layer before. Two dropouts keep
  masks of one byte per element. GELU keeps input and result.
- LLAMA: normalisation in plain torch operations keeps two copies each; then the residual between them and the layer's
  result. The MLP keeps gate, up, their product and the activation.
"""

from dataclasses import dataclass

from planner.devices.memory import KeptActivations, activation_bytes_per_layer, logits_bytes
from planner.problem.architecture import Architecture

ELEMENT_BYTES = 4
"""Bytes of one float32 element."""
KEPT = {
    "OPT-350M": KeptActivations(hidden=3.0, width=1.0, scores=1.0),
    "OPT-30B": KeptActivations(hidden=3.0, width=1.0, scores=1.0),
    "GPT-Neo-2.7B": KeptActivations(hidden=4.5, width=2.0, scores=1.0),
    "Sailor-LLAMA-3-8": KeptActivations(hidden=6.0, width=4.0, scores=1.0),
}
"""Copies that the profiled program of each model keeps, as counted above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory:
    """One measured row: bytes of one layer on one device."""

    arch: Architecture
    tensor: int
    part: str
    """Part of the model: `first` (embeddings), `transformer_layer` or `last` (output head)."""
    sequence: float
    """Number of tokens."""
    params_bytes: float
    activation_bytes: float


def predicted_bytes(row: LayerMemory, kept: KeptActivations | None = None) -> tuple[float, float]:
    """Return the predicted bytes (of parameters, of activations) of one row.

    `kept` overrides what the profiled program keeps.
    """
    arch = row.arch
    hidden = ELEMENT_BYTES * row.sequence * arch.hidden_size
    match row.part:
        case "first":
            # Models with a gated MLP have rotary embeddings; the others learn a table of positions, which every device
            # holds whole.
            positions = 0.0 if arch.num_mlp_matrices == 3 else row.sequence * arch.hidden_size
            return ELEMENT_BYTES * (arch.embedding_params / row.tensor + positions), hidden
        case "last":
            logits = logits_bytes(arch, tensor=row.tensor, tokens=row.sequence)
            return ELEMENT_BYTES * arch.embedding_params / row.tensor, hidden + logits
        case _:
            activations = activation_bytes_per_layer(
                arch,
                tensor=row.tensor,
                tokens=row.sequence,
                recompute=False,
                element_bytes=ELEMENT_BYTES,
                kept=kept or KEPT[arch.name],
                sequence=row.sequence,
            )
            return ELEMENT_BYTES * arch.params_per_layer / row.tensor, activations
