import pytest

from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import content_bytes
from tests.periplus.codec.weights.golden.write import HERE, cases, pack, unpack

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_old_payloads_decode_to_the_same_state(name: str) -> None:
    base, new = CASES[name]
    parts = unpack((HERE / f"{name}.bin").read_bytes())
    assert decode(base, parts, max_content_bytes=content_bytes(new)) == new


@pytest.mark.parametrize("name", CASES)
def test_the_encoder_writes_the_same_bytes_everywhere(name: str) -> None:
    base, new = CASES[name]
    assert pack(encode(base, new)) == (HERE / f"{name}.bin").read_bytes()
