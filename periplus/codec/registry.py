"""Which code reads which codec id. Every value of the proto enum stands here once (a test holds both ways)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from periplus.codec import files, trajectory
from periplus.codec.frame import CodecId, codec_id
from periplus.errors import UnknownCodec
from periplus.trajectories import Trajectories
from periplus.trajectory import Trajectory

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
    from periplus.codec.weights.decoder import Decoder  # numba comes with it: only for who decodes states

    return Decoder


STATES: "Mapping[CodecId, Callable[[], type[Decoder]]]" = MappingProxyType({CodecId.WEIGHTS: _weights})
TRAJECTORIES: Mapping[CodecId, Callable[..., Trajectories]] = MappingProxyType(
    {CodecId.TRAJECTORY_COLUMNS_ZSTD: trajectory.decode_columns}
)
FILES: Mapping[CodecId, Callable[..., dict[str, bytes]]] = MappingProxyType({CodecId.FILES_ZSTD: files.decode})


def state_decoder(value: int) -> "type[Decoder]":
    """What reads a state's parts. Raises: UnknownCodec for one that is unknown, or not of states."""
    return _find(STATES, value, "states")()


def columns_decoder(value: int) -> Callable[..., Trajectories]:
    """`decode(payload, *, max_content_bytes)` of trajectories as columns. Raises: UnknownCodec."""
    return _find(TRAJECTORIES, value, "trajectories")


def trajectory_decoder(value: int) -> Callable[..., tuple[Trajectory, ...]]:
    """The same, one by one. Raises: UnknownCodec."""
    decode = columns_decoder(value)

    def views(payload: bytes, *, max_content_bytes: int) -> tuple[Trajectory, ...]:
        return decode(payload, max_content_bytes=max_content_bytes).views()

    return views


def files_decoder(value: int) -> Callable[..., dict[str, bytes]]:
    """`decode(payload, *, max_content_bytes)`. Raises: UnknownCodec."""
    return _find(FILES, value, "bundles")


def _find(codecs: Mapping[CodecId, _T], value: int, what: str) -> _T:
    found = codec_id(value)
    if found not in codecs:
        known = ", ".join(c.name for c in codecs)
        raise UnknownCodec(f"codec {found.value} ({found.name}) does not read {what}; {known} would")
    return codecs[found]
