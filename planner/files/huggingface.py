"""Convert a model's Hugging Face `config.json` to an `Architecture`.

Each supported `model_type` has a reader, which knows the keys and defaults of that family of models. A configuration is
a parsed JSON value; nothing here reads a file. A `model_type` without a reader is refused, never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from periplus.config import loading
from periplus.errors import ConfigError
from planner.problem.architecture import Architecture, Shape
from planner.problem.ranges import MAX_PARAMS


def architecture_of_config(tree: object, name: str) -> Architecture:
    """Return the architecture that a parsed `config.json` describes.

    Raises: ConfigError, which names the model and what is unknown or missing.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{name}: its config.json must hold a mapping, not {type(tree).__name__}")
    kind = tree.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise ConfigError(
            f"{name}: model_type is {kind!r}, whose shape is not known here; known: {known}; "
            "or give the shape itself in a workload file"
        )
    try:
        return checked_shape(_READERS[kind](tree, name))
    # Readers index required keys directly, so a missing key is its name.
    except KeyError as error:
        raise ConfigError(f"{name}: its config.json has no {error.args[0]}; is it complete?") from error


def checked_shape(shape: Architecture) -> Architecture:
    """Return `shape` unchanged if a transformer can have these sizes.

    Raises: ConfigError, which names the model and the wrong size.
    """
    sizes = {key: value for key, value in asdict(shape).items() if key != "name"}
    loading.validate(Shape, sizes, shape.name)
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError(
            f"{shape.name}: num_kv_heads is {shape.num_kv_heads}, but must divide num_heads, which is {shape.num_heads}"
        )
    if shape.experts_per_token > shape.num_experts:
        raise ConfigError(
            f"{shape.name}: a token goes through {shape.experts_per_token} of {shape.num_experts} experts"
        )
    if shape.num_params > MAX_PARAMS:
        raise ConfigError(f"{shape.name}: has {shape.num_params:.3g} parameters, but may have {MAX_PARAMS:.0e} at most")
    return shape


def _head_dim(hidden: int, heads: int, name: str) -> int:
    if hidden % heads:
        raise ConfigError(f"{name}: hidden_size {hidden} is no multiple of its {heads} heads, and no head_dim is given")
    return hidden // heads


def _llama_like(tree: Mapping[str, Any], name: str, *, is_tied: bool = False) -> Architecture:
    """Return the architecture of the Llama and Qwen families. `is_tied` is what transformers takes without the key."""
    kind, heads, hidden = tree["model_type"], _whole(tree, "num_attention_heads", name), _hidden(tree, name)
    inner = _whole(tree, "intermediate_size", name)
    # Defaults as in `transformers`: as many key heads as query heads. Qwen2 always has biases, Qwen3 always normalises
    # queries and keys; no key says so. The output projection has a bias only with `attention_bias`.
    has_bias = bool(tree.get("attention_bias", False))
    mlp_biases = 2 * inner + hidden if tree.get("mlp_bias") else 0
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=_whole(tree, "num_hidden_layers", name),
        num_heads=heads,
        num_kv_heads=_whole(tree, "num_key_value_heads", name, heads),
        head_dim=_head_dim(hidden, heads, name) if tree.get("head_dim") is None else _whole(tree, "head_dim", name),
        intermediate_size=inner,
        vocab_size=_whole(tree, "vocab_size", name),
        tied_embeddings=bool(tree.get("tie_word_embeddings", is_tied)),
        qkv_bias=kind == "qwen2" or has_bias,
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        is_fused=kind == "phi3",
        other_params_per_layer=(hidden if has_bias else 0) + mlp_biases,
    )


def _tied(tree: Mapping[str, Any], name: str) -> Architecture:
    return _llama_like(tree, name, is_tied=True)


def _gemma(tree: Mapping[str, Any], name: str) -> Architecture:
    """Return the architecture of Gemma; the second and third generation have four norms a layer."""
    shape = _llama_like({"head_dim": 256, **tree}, name, is_tied=True)
    kind = tree["model_type"]
    further = 0 if kind == "gemma" else 2 * shape.hidden_size
    return replace(
        shape,
        qk_norm=kind == "gemma3_text",
        other_params_per_layer=shape.other_params_per_layer + further,
    )


def _olmo(tree: Mapping[str, Any], name: str) -> Architecture:
    """Return the architecture of the first OLMo, whose norms have no parameters."""
    shape = _llama_like(tree, name)
    others = shape.other_params_per_layer - 2 * shape.hidden_size
    return replace(shape, other_params_per_layer=others, other_params=-shape.hidden_size)


def _olmo2(tree: Mapping[str, Any], name: str) -> Architecture:
    """Return the architecture of OLMo 2 and 3, which normalise all queries, and all keys, as one vector."""
    shape = _llama_like(tree, name)
    further = shape.head_dim * (shape.num_heads + shape.num_kv_heads - 2)
    return replace(shape, qk_norm=True, other_params_per_layer=shape.other_params_per_layer + further)


def _mixtral(tree: Mapping[str, Any], name: str) -> Architecture:
    return _with_experts(_llama_like(tree, name), tree, name, "num_local_experts")


def _qwen3_moe(tree: Mapping[str, Any], name: str) -> Architecture:
    if tree.get("mlp_only_layers") or tree.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(f"{name}: some of its layers have experts and others have none, which is not planned")
    inner = {"intermediate_size": tree["moe_intermediate_size"]}
    # Files that newer versions of transformers save have the second name.
    key = "num_experts" if "num_experts" in tree else "num_local_experts"
    return _with_experts(_llama_like({**tree, **inner}, name), tree, name, key)


def _with_experts(shape: Architecture, tree: Mapping[str, Any], name: str, key: str) -> Architecture:
    per_token = _whole(tree, "num_experts_per_tok", name)
    return replace(shape, num_experts=_whole(tree, key, name), experts_per_token=per_token)


def _phi(tree: Mapping[str, Any], name: str) -> Architecture:
    """Return the architecture of Phi-1 to Phi-2: one norm a layer, biases everywhere, in the output head too."""
    shape = _llama_like(tree, name)
    # The weight and bias of its one norm count as two norms. Biases: output projection, both matrices of the MLP.
    others = 2 * shape.hidden_size + shape.intermediate_size
    others += 4 * shape.head_dim if tree.get("qk_layernorm") else 0
    return replace(
        shape,
        qkv_bias=True,
        num_mlp_matrices=2,
        other_params_per_layer=others,
        other_params=shape.hidden_size + shape.vocab_size,
    )


def _gpt2(tree: Mapping[str, Any], name: str) -> Architecture:
    hidden = _whole(tree, "n_embd", name)
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": _whole(tree, "n_layer", name),
        "num_attention_heads": _whole(tree, "n_head", name),
        "intermediate_size": tree.get("n_inner") or 4 * hidden,
        "num_key_value_heads": None,
        "head_dim": None,
    }
    positions = _whole(tree, "n_positions", name, 1024) * hidden
    return _with_layer_norms(_llama_like({**tree, **sizes}, name, is_tied=True), positions)


def _gpt_neox(tree: Mapping[str, Any], name: str) -> Architecture:
    shape = _llama_like({**tree, "num_key_value_heads": None, "head_dim": None, "attention_bias": False}, name)
    return _with_layer_norms(shape, 0, has_bias=bool(tree.get("attention_bias", True)))


def _with_layer_norms(shape: Architecture, positions: int, *, has_bias: bool = True) -> Architecture:
    """Return the shape with LayerNorms, which have biases, an MLP without gate, and `positions` further parameters.

    Both matrices of the MLP have biases, and with `has_bias` all of attention.
    """
    attention = shape.hidden_size if has_bias else 0
    return replace(
        shape,
        qkv_bias=has_bias,
        num_mlp_matrices=2,
        other_params_per_layer=attention + 3 * shape.hidden_size + shape.intermediate_size,
        other_params=shape.hidden_size + positions,
    )


def _opt(tree: Mapping[str, Any], name: str) -> Architecture:
    return _plain(tree, name, layers="num_hidden_layers", heads="num_attention_heads", inner="ffn_dim", bias=True)


def _gpt_neo(tree: Mapping[str, Any], name: str) -> Architecture:
    inner = tree.get("intermediate_size") or 4 * _hidden(tree, name)
    return _plain(
        {**tree, "intermediate_size": inner}, name, layers="num_layers", heads="num_heads", inner="intermediate_size"
    )


def _plain(
    tree: Mapping[str, Any], name: str, *, layers: str, heads: str, inner: str, bias: bool = False
) -> Architecture:
    """Return the architecture of a model with an MLP without gate and with as many key heads as query heads.

    `layers`, `heads` and `inner` are the keys of the family's `config.json` for these sizes; `bias` says whether the
    query, key and value projections have biases.
    """
    num_heads, hidden = _whole(tree, heads, name), _hidden(tree, name)
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=_whole(tree, layers, name),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_head_dim(hidden, num_heads, name),
        intermediate_size=_whole(tree, inner, name),
        vocab_size=_whole(tree, "vocab_size", name),
        # These families tie embeddings unless the file says otherwise.
        tied_embeddings=bool(tree.get("tie_word_embeddings", True)),
        qkv_bias=bias,
        num_mlp_matrices=2,
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Architecture]] = {
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "granite": _llama_like,
    "llama": _llama_like,
    "mistral": _llama_like,
    "mixtral": _mixtral,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "opt": _opt,
    "phi": _phi,
    "phi3": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _tied,
}
"""Reader of each supported `model_type`. If a file does not say whether embeddings are tied, the reader uses the
default of the family in transformers. The architectures of `periplus.job.architectures` are among them (a test)."""


def _hidden(tree: Mapping[str, Any], name: str) -> int:
    return _whole(tree, "hidden_size", name)


def _whole(tree: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    """Return the value of `key`, an integer of at least 1, or `default` if the key is missing.

    Raises: KeyError if the key is missing and there is no default, ConfigError for other values.
    """
    value = tree.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise KeyError(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}: {key} in its config.json is {value!r}, but must be a whole number from 1")
    return value
