"""Checkpoint directories of plain bytes, for the tests of `periplus weights`."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from periplus.values.safetensors_format import ELEMENT_BYTES, layout_bytes, safetensors_head
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE, Tensor, WeightState


def tensor(seed: int, dtype: str = "BF16", shape: tuple[int, ...] = (64, 32)) -> Tensor:
    """Small normal numbers where the dtype has them, any bytes elsewhere."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal(layout_bytes(dtype, shape) // ELEMENT_BYTES[dtype]) * 0.02).astype("<f4")
    match dtype:
        case "F32":
            return Tensor(dtype, shape, values)
        case "BF16":
            return Tensor(dtype, shape, (values.view("<u4") >> 16).astype("<u2"))
        case "F16":
            return Tensor(dtype, shape, values.astype("<f2"))
        case _:
            return Tensor(dtype, shape, random.integers(0, 256, layout_bytes(dtype, shape), np.uint8))


def moved(old: Tensor, seed: int, share: float = 0.02) -> Tensor:
    """Some elements a bit pattern further."""
    random = np.random.default_rng(seed)
    bits = old.data.view(f"<u{ELEMENT_BYTES[old.dtype]}").copy()
    bits[random.random(bits.size) < share] ^= 1
    return Tensor(old.dtype, old.shape, bits)


def model(seed: int) -> dict[str, Tensor]:
    """Of several dtypes, as quantised checkpoints are."""
    return {
        "model.embed_tokens.weight": tensor(seed),
        "model.layers.0.mlp.weight": tensor(seed + 1, "F32", (16, 24)),
        "model.layers.1.mlp.weight": tensor(seed + 2, "F16", (33,)),
        "model.layers.1.mlp.qweight": tensor(seed + 3, "I8", (7, 3)),
        "model.norm.weight": tensor(seed + 4, "BF16", ()),
        "model.rotary.inv_freq": tensor(seed + 5, "F32", (0, 4)),
    }


def next_model(state: WeightState, seed: int) -> dict[str, Tensor]:
    return {name: moved(each, seed + number) for number, (name, each) in enumerate(state.items())}


def write_checkpoint(
    directory: Path, state: WeightState, num_shards: int = 1, others: Mapping[str, bytes] | None = None
) -> Path:
    """With `others` by relative path; tensors go round the shards in the order of the state."""
    directory.mkdir(parents=True)
    for relative, content in (others or {"config.json": b"{}"}).items():
        (directory / relative).parent.mkdir(parents=True, exist_ok=True)
        (directory / relative).write_bytes(content)
    if num_shards == 1:
        _write_file(directory / SINGLE_FILE, state)
        return directory
    files = [f"model-{shard + 1:05}-of-{num_shards:05}.safetensors" for shard in range(num_shards)]
    home = {name: files[number % num_shards] for number, name in enumerate(state)}
    for file in files:
        _write_file(directory / file, {name: each for name, each in state.items() if home[name] == file})
    metadata = {"total_size": sum(each.data.size for each in state.values()), "total_parameters": 1}
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": metadata, "weight_map": home}, indent=2))
    return directory


def _write_file(path: Path, state: WeightState) -> None:
    head = safetensors_head(
        ((name, each.dtype, each.shape) for name, each in state.items()), {"format": "pt", "a": "ä"}
    )
    path.write_bytes(head + b"".join(each.data.tobytes() for each in state.values()))
