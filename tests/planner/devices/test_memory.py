"""Bytes that layers keep: closed forms, and what autograd counts in the layers that the trainer runs."""

from dataclasses import replace
from typing import Any

import pytest

from planner.devices.memory import (
    FUSED,
    KeptActivations,
    activation_bytes_per_layer,
    kv_bytes_per_token,
    logits_bytes,
)
from planner.problem.architecture import Architecture

ARCH = Architecture(
    name="made-up",
    hidden_size=256,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1000,
    vocab_size=100,
    tied_embeddings=True,
)


def test_recomputation_keeps_the_input_alone() -> None:
    assert activation_bytes_per_layer(ARCH, tensor=4, tokens=10, recompute=True) == 10 * 256 * 2


def test_fused_layers_keep_what_korthikanti_counts() -> None:
    split = 2 * 256 + 2 * 128 + 4 * 1000
    found = activation_bytes_per_layer(ARCH, tensor=2, tokens=10, recompute=False, kept=FUSED)
    assert found == 10 * 2 * (4 * 256 + split / 2)


def test_scores_are_kept_for_each_head_and_token() -> None:
    kept = KeptActivations(hidden=4.0, scores=1.0)
    more = activation_bytes_per_layer(ARCH, tensor=2, tokens=10, recompute=False, kept=kept, sequence=500.0)
    less = activation_bytes_per_layer(ARCH, tensor=2, tokens=10, recompute=False, kept=FUSED)
    assert more - less == 2 * 10 * 500 * 4 / 2


def test_heads_that_cannot_be_split_are_copied() -> None:
    assert kv_bytes_per_token(ARCH, tensor=2) == 2 * 2 * 3 * 64
    assert kv_bytes_per_token(ARCH, tensor=8) == kv_bytes_per_token(ARCH, tensor=2)


def test_logits_and_their_gradients_are_float32() -> None:
    assert logits_bytes(ARCH, tensor=2, tokens=10) == 2 * 4 * 10 * 50


@pytest.mark.parametrize("qk_norm", [False, True])
def test_autograd_keeps_as_many_bytes_of_a_layer_of_transformers(qk_norm: bool) -> None:
    """Within 2 %: rotary tables and statistics of normalisations are not counted."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tokens = 256
    kept, inputs = _saved_storages(torch, qk_norm=qk_norm, tokens=tokens)
    found = sum(size for at, size in kept.items() if at not in inputs)
    expected = activation_bytes_per_layer(replace(ARCH, qk_norm=qk_norm), tensor=1, tokens=tokens, recompute=False)
    assert found == pytest.approx(expected, rel=0.02)


def _saved_storages(torch: Any, *, qk_norm: bool, tokens: int) -> tuple[dict[int, int], set[int]]:
    """Bytes of every storage that a layer's backward pass needs, and which storages were there before."""
    if qk_norm:
        from transformers.models.qwen3.modeling_qwen3 import Qwen3Config as Config
        from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as Model
    else:
        from transformers.models.llama.modeling_llama import LlamaConfig as Config
        from transformers.models.llama.modeling_llama import LlamaForCausalLM as Model
    config: Any = Config(
        hidden_size=ARCH.hidden_size,
        intermediate_size=ARCH.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=ARCH.num_heads,
        num_key_value_heads=ARCH.num_kv_heads,
        head_dim=ARCH.head_dim,
        vocab_size=ARCH.vocab_size,
        attn_implementation="sdpa",
    )
    model = Model(config).to(torch.bfloat16)
    hidden = torch.randn(1, tokens, ARCH.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    tables = model.model.rotary_emb(hidden, torch.arange(tokens)[None])
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive.append(model.model.layers[0](hidden, position_embeddings=tables, attention_mask=None))
    before = {each.untyped_storage().data_ptr() for each in (hidden, *tables, *model.parameters())}
    return kept, before
