import pytest

from periplus.codec.registry import (
    FILES,
    STATES,
    TRAJECTORIES,
    CodecId,
    files_decoder,
    state_codec,
    trajectory_decoder,
)
from periplus.errors import UnknownCodec
from periplus.pb.v1 import common_pb2


def test_the_registry_and_the_proto_enum_agree_both_ways() -> None:
    in_proto = {name.removeprefix("CODEC_"): value for name, value in common_pb2.Codec.items() if value != 0}
    assert {codec.name: codec.value for codec in CodecId} == in_proto


def test_every_codec_id_has_exactly_one_codec() -> None:
    registered = [*STATES, *TRAJECTORIES, *FILES]
    assert sorted(registered) == sorted(CodecId)


def test_a_state_codec_is_found_under_its_own_id() -> None:
    for codec in STATES:
        assert state_codec(codec.value).codec_id is codec


def test_an_id_that_is_unknown_or_of_another_kind_is_refused() -> None:
    for find in (state_codec, trajectory_decoder, files_decoder):
        for value in (0, 99, -1):
            with pytest.raises(UnknownCodec):
                find(value)
    with pytest.raises(UnknownCodec, match="FILES_ZSTD"):
        state_codec(CodecId.FILES_ZSTD)
    with pytest.raises(UnknownCodec):
        files_decoder(CodecId.STATE_PLANES_ZSTD)
