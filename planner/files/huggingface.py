"""Convert a model's Hugging Face `config.json` to an `Architecture`.

Each supported `model_type` has a reader, which knows the keys and defaults of that family of models. A configuration is
a parsed JSON value; nothing here reads a file. A `model_type` without a reader is refused, never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from periplus.config import loading
from periplus.errors import ConfigError
from planner.files.ranges import MAX_PARAMS
from planner.files.workload_entries import ShapeEntry
from planner.problem.architecture import Architecture


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
    loading.validate(ShapeEntry, sizes, shape.name)
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError(
            f"{shape.name}: num_kv_heads is {shape.num_kv_heads}, but must divide num_heads, which is {shape.num_heads}"
        )
    if shape.num_params > MAX_PARAMS:
        raise ConfigError(f"{shape.name}: has {shape.num_params:.3g} parameters, but may have {MAX_PARAMS:.0e} at most")
    return shape


def _head_dim(hidden: int, heads: int, name: str) -> int:
    if hidden % heads:
        raise ConfigError(f"{name}: hidden_size {hidden} is no multiple of its {heads} heads, and no head_dim is given")
    return hidden // heads


def _llama_like(tree: Mapping[str, Any], name: str) -> Architecture:
    """Return the architecture of the Llama and Qwen families."""
    kind, heads, hidden = tree["model_type"], _whole(tree, "num_attention_heads", name), _hidden(tree, name)
    # Defaults as in `transformers`: as many key heads as query heads, and untied embeddings. Qwen2 always has biases,
    # Qwen3 always normalises queries and keys; no key says so.
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=_whole(tree, "num_hidden_layers", name),
        num_heads=heads,
        num_kv_heads=_whole(tree, "num_key_value_heads", name, heads),
        head_dim=_head_dim(hidden, heads, name) if tree.get("head_dim") is None else _whole(tree, "head_dim", name),
        intermediate_size=_whole(tree, "intermediate_size", name),
        vocab_size=_whole(tree, "vocab_size", name),
        tied_embeddings=bool(tree.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(tree.get("attention_bias", False)),
        qk_norm=kind == "qwen3",
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
    "gpt_neo": _gpt_neo,
    "llama": _llama_like,
    "mistral": _llama_like,
    "opt": _opt,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
}
"""Reader of each supported `model_type`. If a file does not say whether embeddings are tied, the reader uses the
default of the family in transformers."""


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
