"""Shapes of known models, read from the packaged table `architectures.csv`."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from periplus.errors import ConfigError
from planner.devices.catalogue.loaders import Row, packaged_rows
from planner.problem.architecture import Architecture

BUILTIN = Architecture(
    name="builtin:qwen3-tiny",
    hidden_size=128,
    num_layers=2,
    num_heads=8,
    num_kv_heads=8,
    head_dim=16,
    intermediate_size=64,
    vocab_size=79,
    tied_embeddings=True,
    qk_norm=True,
)
"""Shape of the model that `trainer.data.model` makes. A test compares it with the checkpoint."""

BUILTIN_H32 = replace(BUILTIN, name="builtin:qwen3-tiny-h32", num_heads=4, num_kv_heads=4, head_dim=32)
"""Shape of the same model with larger heads."""


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return all packaged architectures by name, with the built-in ones."""
    shapes = [_of_row(row) for row in packaged_rows("architectures.csv")]
    return MappingProxyType({shape.name: shape for shape in (*shapes, BUILTIN, BUILTIN_H32)})


def architecture(name: str) -> Architecture:
    """Return the packaged architecture of that name, in any case and with or without an organisation before `/`.

    Raises: ConfigError for an unknown name; the message lists the nearest known ones.
    """
    known = {shape.name.lower(): shape for shape in architectures().values()}
    key = name.lower().rpartition("/")[2]
    if key in known:
        return known[key]
    # Without a name that is near, all are listed.
    near = difflib.get_close_matches(key, sorted(known), n=4, cutoff=0.5) or sorted(known)
    names = ", ".join(known[each].name for each in near)
    raise ConfigError(f"{name!r} is no known model; nearest: {names}; or give its shape, or its config.json")


def _of_row(row: Row) -> Architecture:
    return Architecture(
        name=row["model"],
        hidden_size=int(row["hidden_size"]),
        num_layers=int(row["num_layers"]),
        num_heads=int(row["num_heads"]),
        num_kv_heads=int(row["num_kv_heads"]),
        head_dim=int(row["head_dim"]),
        intermediate_size=int(row["intermediate_size"]),
        vocab_size=int(row["vocab_size"]),
        tied_embeddings=row["tied_embeddings"] == "True",
        qkv_bias=row["qkv_bias"] == "True",
        qk_norm=row["qk_norm"] == "True",
        num_mlp_matrices=int(row["num_mlp_matrices"]),
    )
