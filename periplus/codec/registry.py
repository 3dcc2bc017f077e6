"""Registry of codecs: which decoder reads which codec id.

Every value of the proto enum Codec stands here exactly once; a test compares both directions. The weight decoder is
imported only when it is asked for, because it loads numba.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from periplus.codec import files, trajectory
from periplus.codec.frame import CodecId, codec_id
from periplus.errors import UnknownCodec
from periplus.values.trajectories import Trajectories
from periplus.values.trajectory import Trajectory

if TYPE_CHECKING:
    from periplus.codec.weights.decoder import Decoder

__all__ = [
    "FILES",
    "STATES",
    "TRAJECTORIES",
    "CodecId",
    "codec_id",
    "columns_decoder",
    "files_decoder",
    "state_decoder",
    "trajectory_decoder",
]

_T = TypeVar("_T")


def _weights() -> "type[Decoder]":
    from periplus.codec.weights.decoder import Decoder  # it loads numba, which only weight decoding needs

    return Decoder


STATES: "Mapping[CodecId, Callable[[], type[Decoder]]]" = MappingProxyType({CodecId.WEIGHTS: _weights})
"""Decoders of model weights by codec id. Each value imports and returns the decoder class."""
TRAJECTORIES: Mapping[CodecId, Callable[..., Trajectories]] = MappingProxyType(
    {CodecId.TRAJECTORY_COLUMNS_ZSTD: trajectory.decode_columns}
)
"""Decoders of trajectories as columns, by codec id."""
FILES: Mapping[CodecId, Callable[..., dict[str, bytes]]] = MappingProxyType({CodecId.FILES_ZSTD: files.decode})
"""Decoders of file bundles, by codec id."""


def state_decoder(value: int) -> "type[Decoder]":
    """Return the class that decodes the parts of a weight payload.

    Raises: UnknownCodec for an id that is unknown or does not code weights.
    """
    return _find(STATES, value, "states")()


def columns_decoder(value: int) -> Callable[..., Trajectories]:
    """Return `decode(payload, *, max_content_bytes)`, which decodes trajectories as columns. Raises: UnknownCodec."""
    return _find(TRAJECTORIES, value, "trajectories")


def trajectory_decoder(value: int) -> Callable[..., tuple[Trajectory, ...]]:
    """Return `decode(payload, *, max_content_bytes)`, which decodes one `Trajectory` value per sample.

    Raises: UnknownCodec.
    """
    decode = columns_decoder(value)

    def views(payload: bytes, *, max_content_bytes: int) -> tuple[Trajectory, ...]:
        return decode(payload, max_content_bytes=max_content_bytes).views()

    return views


def files_decoder(value: int) -> Callable[..., dict[str, bytes]]:
    """Return `decode(payload, *, max_content_bytes)`, which decodes a file bundle. Raises: UnknownCodec."""
    return _find(FILES, value, "bundles")


def _find(codecs: Mapping[CodecId, _T], value: int, what: str) -> _T:
    found = codec_id(value)
    if found not in codecs:
        known = ", ".join(c.name for c in codecs)
        raise UnknownCodec(f"codec {found.value} ({found.name}) does not read {what}; {known} would")
    return codecs[found]
