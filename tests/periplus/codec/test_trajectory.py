import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.trajectory import content, decode, encode, json_bytes
from periplus.codec.zstd import compress
from periplus.errors import CorruptFrame
from periplus.policy import Policy
from periplus.trajectory import PolicyRun, Purpose, StopReason, Trajectory
from tests.support.strategies import trajectories

MAX_BYTES = 1 << 20
ONE = Trajectory(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    purpose=Purpose.EVAL,
    prompt_ids=(5, 258),
    completion_ids=(7, 65536),
    logprobs=np.array([-0.0, -1.5], np.float32),
    mask=(1, 0),
    policies=(PolicyRun(Policy(1, 4), 1), PolicyRun(Policy(1, 5), 1)),
    reward=1.0,
    stop_reason=StopReason.LENGTH,
    worker_id="w/0",
    generation_s=0.5,
)
batches = st.lists(trajectories(), max_size=4)


@given(batches)
def test_any_batch_survives_bit_for_bit(batch: list[Trajectory]) -> None:
    assert decode(encode(batch), max_content_bytes=MAX_BYTES) == tuple(batch)


def test_log_probabilities_keep_their_bits_even_where_they_are_no_numbers() -> None:
    bits = np.array([0x7FC12345, 0x80000000, 0xFF800000, 1], "<u4").view(np.float32)
    odd = replace(ONE, completion_ids=(1, 2, 3, 4), mask=(1, 1, 1, 1), logprobs=bits)
    (back,) = decode(encode([odd]), max_content_bytes=MAX_BYTES)
    assert back.logprobs.tobytes() == bits.tobytes()


def test_a_prompt_is_stored_once_for_its_group() -> None:
    prompt = tuple(range(1000, 3000))
    group = [replace(ONE, sample=i, prompt_ids=prompt) for i in range(16)]
    assert len(content(group)) < len(content(group[:1])) + 16 * 120
    first, *others = decode(encode(group), max_content_bytes=MAX_BYTES)
    assert all(other.prompt_ids is first.prompt_ids for other in others)


def test_the_content_is_frozen() -> None:
    assert content([ONE]).hex() == GOLDEN_CONTENT


def test_a_payload_of_an_earlier_build_is_read() -> None:
    assert decode(bytes.fromhex(GOLDEN_PAYLOAD), max_content_bytes=MAX_BYTES) == (ONE,)


def test_every_changed_byte_is_refused_or_harmless() -> None:
    payload = encode([ONE])
    for i in range(len(payload)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = payload[:i] + bytes([payload[i] ^ flip]) + payload[i + 1 :]
            with suppress(CorruptFrame):
                assert decode(damaged, max_content_bytes=MAX_BYTES) == (ONE,)


@given(batches, st.data())
def test_content_that_lies_is_refused_or_read_as_some_batch(batch: Sequence[Trajectory], data: st.DataObject) -> None:
    lying = bytearray(content(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        lying[data.draw(st.integers(0, len(lying) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(lying)))
    for forged in (bytes(lying), bytes(lying[:cut])):
        with suppress(CorruptFrame):
            for t in decode(compress(forged, 1), max_content_bytes=MAX_BYTES):
                assert len(t.completion_ids) == len(t.logprobs) == len(t.mask)


def test_content_beyond_the_bound_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="at most"):
        decode(encode([ONE]), max_content_bytes=len(content([ONE])) - 1)


def test_lengths_that_disagree_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="lease 1: 2 ids"):
        encode([replace(ONE, mask=(1,))])


def test_json_counts_the_same_records_as_lines() -> None:
    line = {
        "lease_id": 1, "group": 2, "sample": 3, "item": 4, "purpose": "eval", "prompt_ids": [5, 258],
        "completion_ids": [7, 65536], "logprobs": [-0.0, -1.5], "mask": [1, 0],
        "policies": [{"fork": 1, "version": 4, "num_tokens": 1}, {"fork": 1, "version": 5, "num_tokens": 1}],
        "reward": 1.0, "stop_reason": "length", "worker_id": "w/0", "generation_s": 0.5,
    }  # fmt: skip
    assert json_bytes([ONE, ONE]) == 2 * len(json.dumps(line, separators=(",", ":")) + "\n")


GOLDEN_CONTENT = (
    "0101000000010000000200000002000000020000000100000003000000020000000502000100000000010000000000000002"
    "0000000000000003000000040000000000000001000000000200000002000000000000000000f03f01000000000000000000"
    "00e03f07000000000100000000000000c080bf01000101000000000000040500000000000000000000000000000101000000"
    "00000003000000772f30"
)
GOLDEN_PAYLOAD = (
    "28b52ffd24a07d0200140201010000000203050204f03f000000e03f07c080bf010001040503000000772f3013003b097017"
    "2855f0d0ac188117aa08e2238840e027014bdc5011b8003733a00c90791124cfb4068c1db8371652baea"
)
