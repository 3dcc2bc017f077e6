from typing import Any

import pytest
from transformers import AutoConfig

from periplus.errors import ConfigError
from planner.devices.catalogue import architectures
from planner.files.huggingface import architecture_of_config

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def test_a_config_is_read_as_the_shape_that_the_catalogue_has() -> None:
    assert architecture_of_config(QWEN3_8B, "Qwen3-8B") == architectures()["Qwen3-8B"]


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "mistral"])
def test_what_a_file_leaves_out_is_as_in_transformers(kind: str) -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 99,
    }
    shape = architecture_of_config({"model_type": kind, **sizes}, "m")
    real = AutoConfig.for_model(kind, **sizes, num_key_value_heads=4, head_dim=16)
    assert shape.tied_embeddings == real.tie_word_embeddings
    assert (shape.num_kv_heads, shape.head_dim) == (4, 16)
    assert (shape.qkv_bias, shape.qk_norm) == (kind == "qwen2", kind == "qwen3")


def test_plain_mlps_have_two_matrices() -> None:
    opt = {
        "model_type": "opt",
        "hidden_size": 7168,
        "num_hidden_layers": 48,
        "num_attention_heads": 56,
        "ffn_dim": 28672,
        "vocab_size": 50272,
    }
    neo = {"model_type": "gpt_neo", "hidden_size": 2560, "num_layers": 32, "num_heads": 20, "vocab_size": 50257}
    known = architectures()
    assert architecture_of_config(opt, "OPT-30B") == known["OPT-30B"]
    assert architecture_of_config(neo, "GPT-Neo-2.7B") == known["GPT-Neo-2.7B"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([], "must hold a mapping, not list"),
        ({}, "model_type is None, whose shape is not known here; known: gemma, gemma2,"),
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "some of its layers have experts and others have none"),
        ({**QWEN3_8B, "hidden_size": None}, r"config\.json has no hidden_size"),
        ({**QWEN3_8B, "vocab_size": "many"}, "vocab_size in its config.json is 'many', but must be a whole number"),
        ({**QWEN3_8B, "num_hidden_layers": 0}, "num_hidden_layers in its config.json is 0"),
    ],
)
def test_what_is_no_known_model_is_refused_by_its_name(tree: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^my-model: .*{message}"):
        architecture_of_config(tree, "my-model")
