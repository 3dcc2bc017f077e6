"""Shape of a decoder-only transformer, and the parameter and cache counts that follow from it.

The counts hold for grouped-query attention, an MLP of three matrices with a gate or of two without, one or several of
them in a layer (experts), and two norms a layer. What a family has beside these is a number of parameters.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from periplus.config.loading import STRICT

OtherParams = Annotated[int, Field(ge=-(10**12), le=10**12)]
"""Correction of a number of parameters."""
HALF_PRECISION_BYTES = 2
"""Bytes of one bf16 or fp16 number, the precision of weights, gradients and activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder-only transformer, with the meaning that a Hugging Face `config.json` gives to each field."""

    __pydantic_config__ = ConfigDict(**STRICT, use_attribute_docstrings=True)

    hidden_size: Annotated[int, Field(ge=1, le=1_048_576)]
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=10_000)]
    """Number of transformer layers."""
    num_heads: Annotated[int, Field(ge=1, le=65_536)]
    """Number of attention heads (query heads) of one layer."""
    num_kv_heads: Annotated[int, Field(ge=1, le=65_536)]
    """Number of key and value heads of one layer. It divides num_heads, and is less with grouped-query attention."""
    head_dim: Annotated[int, Field(ge=1, le=65_536)]
    """Width of one attention head."""
    intermediate_size: Annotated[int, Field(ge=1, le=10_000_000)]
    """Width of the hidden layer of the MLP."""
    vocab_size: Annotated[int, Field(ge=1, le=100_000_000)]
    """Number of rows of the embedding matrix."""
    tied_embeddings: bool
    """Whether the output head shares the embedding matrix."""
    qkv_bias: bool = False
    """Whether the query, key and value projections have biases."""
    qk_norm: bool = False
    """Whether queries and keys are normalised."""
    num_mlp_matrices: Annotated[int, Field(ge=2, le=3)] = 3
    """Number of matrices of one MLP: 3 with a gate (Llama, Qwen), 2 without (OPT, GPT-Neo)."""
    num_experts: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Number of MLPs of one layer."""
    experts_per_token: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Number of MLPs that each token goes through; at most num_experts."""
    is_fused: bool = False
    """Whether checkpoints hold projections in one tensor that engines cannot divide over devices."""
    other_params_per_layer: OtherParams = 0
    """Parameters of one layer that the other fields do not count: further norms and biases. Negative where a family of
    models lacks what they count: two norms."""
    other_params: OtherParams = 0
    """Parameters outside the layers that the other fields do not count, such as positions; it may be negative."""

    @property
    def mlp_params(self) -> int:
        """Number of entries in the matrices of one MLP."""
        return self.num_mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def shared_matmul_params_per_layer(self) -> int:
        """Number of entries in the matrices of one layer beside its MLPs: attention, and the choice of experts."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + (self.hidden_size * self.num_experts if self.num_experts > 1 else 0)

    @property
    def matmul_params_per_layer(self) -> int:
        """Number of entries in the weight matrices of one layer that a token is multiplied with."""
        return self.shared_matmul_params_per_layer + self.experts_per_token * self.mlp_params

    @property
    def params_per_layer(self) -> int:
        """Number of parameters of one layer: matrices, norms and biases."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        biases = self.head_dim * (self.num_heads + 2 * self.num_kv_heads) if self.qkv_bias else 0
        matrices = self.shared_matmul_params_per_layer + self.num_experts * self.mlp_params
        return matrices + norms + biases + self.other_params_per_layer

    @property
    def mlp_width(self) -> int:
        """Width of the MLPs' hidden layers that one token has."""
        return self.experts_per_token * self.intermediate_size

    @property
    def embedding_params(self) -> int:
        """Number of parameters of one embedding matrix. An untied output head has as many again."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """Number of parameters of the whole model, with embedding, output head and final norm."""
        heads = 1 if self.tied_embeddings else 2
        ends = heads * self.embedding_params + self.hidden_size + self.other_params
        return self.num_layers * self.params_per_layer + ends

    @property
    def kv_elements_per_token(self) -> int:
        """Number of cached key and value elements of one token, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(Shape):
    """Shape of a transformer with its name."""

    name: str
