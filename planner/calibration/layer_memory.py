"""Memory of layers that Sailor profiled: parameters and activations, predicted by counting what its programs keep.

No number is fitted. What is kept was counted in the profiled programs' source (eth-easl/sailor,
`third_party/Megatron-DeepSpeed/megatron/model`), all in float32; a count includes the layer's result:

- OPT: a normalisation keeps its result only (`mem_efficient_ln`), twice; the layer's result. Split: queries, keys,
  values, attention's result; ReLU keeps its result. One copy of the scores: the softmax's.
- GPT-Neo: torch's normalisation keeps input and result; the first input is the layer before's; the layer's result; two
  dropouts keep masks of a byte. GELU keeps input and result.
- LLAMA: normalisation in plain torch operations keeps two copies each; the residual between; the layer's result. The
  gated MLP keeps gate, up, their product and its activation.
"""

from dataclasses import dataclass

from planner.device.memory import Kept, activation_bytes_per_layer, logits_bytes
from planner.question.architecture import Architecture

ELEMENT_BYTES = 4
KEPT = {
    "OPT-350M": Kept(hidden=3.0, width=1.0, scores=1.0),
    "OPT-30B": Kept(hidden=3.0, width=1.0, scores=1.0),
    "GPT-Neo-2.7B": Kept(hidden=4.5, width=2.0, scores=1.0),
    "Sailor-LLAMA-3-8": Kept(hidden=6.0, width=4.0, scores=1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory:
    """One measured row, on one device."""

    arch: Architecture
    tensor: int
    part: str
    """`first`, `transformer_layer` or `last`."""
    sequence: float
    params_bytes: float
    activation_bytes: float


def predicted_bytes(row: LayerMemory, kept: Kept | None = None) -> tuple[float, float]:
    """Of parameters and of activations; `kept`: by the profiled program, unless the caller says otherwise."""
    arch = row.arch
    hidden = ELEMENT_BYTES * row.sequence * arch.hidden_size
    match row.part:
        case "first":
            positions = 0.0 if arch.num_mlp_matrices == 3 else row.sequence * arch.hidden_size
            return ELEMENT_BYTES * (arch.embedding_params / row.tensor + positions), hidden
        case "last":
            logits = logits_bytes(arch, tensor=row.tensor, tokens=row.sequence)
            return ELEMENT_BYTES * arch.embedding_params / row.tensor, hidden + logits
        case _:
            activations = activation_bytes_per_layer(
                arch, tensor=row.tensor, tokens=row.sequence, recompute=False, element_bytes=ELEMENT_BYTES,
                kept=kept or KEPT[arch.name], sequence=row.sequence,
            )  # fmt: skip
            return ELEMENT_BYTES * arch.params_per_layer / row.tensor, activations
