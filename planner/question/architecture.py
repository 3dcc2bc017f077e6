"""A decoder-only transformer's shape, and what follows from it by counting.

Counts are of Llama's and Qwen's family: grouped-query attention, a gated MLP of three matrices, RMSNorm.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """As a Hugging Face `config.json` says it."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    num_mlp_matrices: int = 3
    """3: gated (Llama, Qwen); 2: plain (OPT, GPT-Neo)."""

    @property
    def matmul_params_per_layer(self) -> int:
        """Entries of the matrices that a token is multiplied with in one layer."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + self.num_mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def params_per_layer(self) -> int:
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        biases = self.head_dim * (self.num_heads + 2 * self.num_kv_heads) if self.qkv_bias else 0
        return self.matmul_params_per_layer + norms + biases

    @property
    def embedding_params(self) -> int:
        """Of one embedding matrix; an untied head has as many again."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        heads = 1 if self.tied_embeddings else 2
        return self.num_layers * self.params_per_layer + heads * self.embedding_params + self.hidden_size

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
