import subprocess
import sys
from pathlib import Path

import pytest

from periplus.codec.registry import (
    FILES,
    STATES,
    TRAJECTORIES,
    CodecId,
    files_decoder,
    state_decoder,
    trajectory_decoder,
)
from periplus.codec.weights.decoder import Decoder
from periplus.errors import UnknownCodec
from periplus.pb.v1 import common_pb2

ROOT = Path(__file__).parents[3]


def test_the_registry_and_the_proto_enum_agree_both_ways() -> None:
    in_proto = {name.removeprefix("CODEC_"): value for name, value in common_pb2.Codec.items() if value != 0}
    assert {codec.name: codec.value for codec in CodecId} == in_proto


def test_every_codec_id_has_exactly_one_codec() -> None:
    registered = [*STATES, *TRAJECTORIES, *FILES]
    assert sorted(registered) == sorted(CodecId)


def test_states_are_read_by_the_weight_codec() -> None:
    assert list(STATES) == [CodecId.WEIGHTS]
    assert state_decoder(CodecId.WEIGHTS) is Decoder


def test_who_decodes_no_state_does_not_wait_for_its_compiler() -> None:
    program = "import sys, periplus.codec.registry, periplus.net.convert; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_id_that_is_unknown_or_of_another_kind_is_refused() -> None:
    for find in (state_decoder, trajectory_decoder, files_decoder):
        for value in (0, 2, 3, 99, -1):
            with pytest.raises(UnknownCodec):
                find(value)
    with pytest.raises(UnknownCodec, match="FILES_ZSTD"):
        state_decoder(CodecId.FILES_ZSTD)
    with pytest.raises(UnknownCodec):
        files_decoder(CodecId.WEIGHTS)
