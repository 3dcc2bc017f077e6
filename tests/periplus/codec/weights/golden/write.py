"""Writes the golden payloads: `python -m tests.periplus.codec.weights.golden.write`. Only for a new format.

Each file is the parts of one payload, each after its length as u32, little-endian.
"""

import struct
from pathlib import Path

import numpy as np

from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor, WeightState
from tests.periplus.codec.weights.cases import noise, step

HERE = Path(__file__).parent


def cases() -> dict[str, tuple[WeightState | None, WeightState]]:
    """Return base and new state of each golden file, by name."""
    sparse = step(2e-6)
    dense = step(3e-4, count=2000)
    halves = step(1e-5, count=600, dtype="F16")
    singles = step(1e-9, count=600, dtype="F32")
    many = step(1e-6, count=1 << 19, num_tensors=2)
    layout = dict(sparse[1])
    layout["added"] = Tensor("I64", (2,), np.array([1, -1], "<i8"))
    layout["model.layers.0.mlp.weight"] = Tensor("U8", (40,), noise(5, 1).view(np.uint8))
    return {
        "sparse": sparse,
        "dense": dense,
        "f16": halves,
        "f32": singles,
        "gaps": many,
        "other_layout": (sparse[0], layout),
        "unchanged": (sparse[0], sparse[0]),
        "anchor": (None, step(0.0, count=500)[1]),
    }


def pack(parts: list[bytes]) -> bytes:
    """Return the parts as one file."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    """Return the parts that `pack` made one file of."""
    parts, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


if __name__ == "__main__":
    for name, (base, new) in cases().items():
        (HERE / f"{name}.bin").write_bytes(pack(encode(base, new)))
