import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.trajectory import MAX_ID, content, decode, decode_columns, encode, json_bytes
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame
from periplus.values.policy import Policy
from periplus.values.trajectory import (
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    read_only,
    token_ids,
)
from tests.support.cases.strategies import trajectories

MAX_BYTES = 1 << 20
ONE = Trajectory(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    purpose=Purpose.EVAL,
    prompt_ids=token_ids((5, 258)),
    completion_ids=token_ids((7, 65536)),
    logprobs=read_only([-1.5, 0], np.float32),
    mask=read_only([True, False], np.bool_),
    policies=(PolicyRun(Policy(1, 4), 1), PolicyRun(Policy(1, 5), 1)),
    reward=1.0,
    stop_reason=StopReason.LENGTH,
    sampling=SamplingParams(temperature=0.5, top_p=0.25, top_k=3),
    metadata="{}",
    worker_id="w/0",
    generation_s=0.5,
)
TWO_TURNS = replace(
    ONE,
    sample=4,
    metadata='{"turns": 2}',
    completion_ids=token_ids(range(1, 10)),
    reward=-0.5,
    mask=read_only([True] * 3 + [False] * 4 + [True] * 2, np.bool_),
    logprobs=read_only([-1.5, -2.5, -3.5, 0, 0, 0, 0, -4.5, 1e-6], np.float32),
    policies=(PolicyRun(Policy(1, 4), 5), PolicyRun(Policy(2, 0), 4)),
)
batches = st.lists(trajectories(), max_size=4)


def sure(num_tokens: int) -> Trajectory:
    """Return a sample of a model that is nearly sure of each token."""
    steps = np.arange(num_tokens, dtype=np.float64)
    logprobs = (-np.log1p(steps * 2.0**-23)).astype(np.float32) + np.float32(0)
    return replace(
        ONE,
        completion_ids=token_ids([7] * num_tokens),
        mask=read_only([True] * num_tokens, np.bool_),
        logprobs=logprobs,
        policies=(PolicyRun(Policy(1, 4), num_tokens),),
    )


@given(batches)
def test_any_batch_survives_bit_for_bit(batch: list[Trajectory]) -> None:
    assert decode(encode(batch), max_content_bytes=MAX_BYTES) == tuple(batch)


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 9, 70_000])
def test_samples_of_a_sure_model_survive_bit_for_bit(num_tokens: int) -> None:
    batch = (sure(num_tokens), TWO_TURNS)
    assert decode(encode(batch), max_content_bytes=MAX_BYTES) == batch


def test_log_probabilities_keep_their_bits_even_where_they_are_no_numbers() -> None:
    bits = np.array([0x7FC12345, 0x80000000, 0xFF800000, 1], "<u4").view(np.float32)
    odd = replace(ONE, completion_ids=token_ids((1, 2, 3, 4)), mask=np.ones(4, np.bool_), logprobs=bits)
    odd = replace(odd, policies=(PolicyRun(Policy(1, 4), 4),))
    (back,) = decode(encode([odd]), max_content_bytes=MAX_BYTES)
    assert back.logprobs.tobytes() == bits.tobytes()


def test_decoded_arrays_are_views_of_the_columns_and_cannot_be_written_to() -> None:
    columns = decode_columns(encode([ONE, TWO_TURNS]), max_content_bytes=MAX_BYTES)
    for view in columns.views():
        for array, column in (
            (view.prompt_ids, columns.ids),
            (view.completion_ids, columns.ids),
            (view.logprobs, columns.logprobs),
            (view.mask, columns.mask),
        ):
            assert np.shares_memory(array, column)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_a_prompt_is_stored_once_for_its_group() -> None:
    prompt = token_ids(np.random.default_rng(0).integers(0, 30_000, 2000).tolist())
    group = [replace(ONE, sample=i, prompt_ids=prompt) for i in range(16)]
    assert len(encode(group)) < len(encode(group[:1])) + 16 * 20
    first, *others = decode(encode(group), max_content_bytes=MAX_BYTES)
    assert all(np.shares_memory(other.prompt_ids, first.prompt_ids) for other in others)


def test_context_costs_no_log_probabilities() -> None:
    context = replace(
        ONE,
        completion_ids=token_ids([7] * 4096),
        logprobs=np.zeros(4096, np.float32),
        mask=np.zeros(4096, np.bool_),
        policies=(PolicyRun(Policy(1, 4), 4096),),
    )
    assert len(encode([context])) < 300


def test_a_run_that_kept_the_cache_of_an_older_policy_survives() -> None:
    kept = replace(TWO_TURNS, policies=(PolicyRun(Policy(1, 4), 5), PolicyRun(Policy(2, 0), 4, kept_kv=True)))
    for batch in ((kept,), (ONE, kept, TWO_TURNS), (kept,) * 9):
        payload = encode(batch)
        assert payload[0] == 3
        assert decode(payload, max_content_bytes=MAX_BYTES) == batch
        for i in range(5):
            changed = payload[:i] + bytes([payload[i] ^ 1]) + payload[i + 1 :]
            with pytest.raises(CorruptFrame):
                decode(changed, max_content_bytes=MAX_BYTES)


def test_a_payload_in_which_no_cache_was_kept_has_the_layout_of_earlier_builds() -> None:
    assert encode([ONE, TWO_TURNS])[0] == 2


def test_the_content_of_a_payload_is_frozen() -> None:
    counts, meta, sections = content([ONE, TWO_TURNS])
    assert [tuple(counts), meta.hex(), [section.hex() for section in sections]] == GOLDEN_CONTENT


def test_payloads_of_an_earlier_build_are_read() -> None:
    assert decode(bytes.fromhex(GOLDEN_PAYLOAD), max_content_bytes=MAX_BYTES) == (ONE, TWO_TURNS)
    assert decode(bytes.fromhex(GOLDEN_SURE_PAYLOAD), max_content_bytes=MAX_BYTES) == (sure(9),)


@pytest.mark.parametrize("batch", [[ONE], [ONE, TWO_TURNS], [sure(9)]])
def test_every_changed_byte_is_refused_or_harmless(batch: list[Trajectory]) -> None:
    payload = encode(batch)
    for i in range(len(payload)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = payload[:i] + bytes([payload[i] ^ flip]) + payload[i + 1 :]
            with suppress(CorruptFrame):
                assert decode(damaged, max_content_bytes=MAX_BYTES) == tuple(batch)


@pytest.mark.parametrize("batch", [[ONE, TWO_TURNS], [sure(9)]])
def test_a_payload_that_is_cut_or_continued_is_refused(batch: list[Trajectory]) -> None:
    payload = encode(batch)
    for forged in (*(payload[:end] for end in range(len(payload))), payload + b"\0", payload + payload):
        with pytest.raises(CorruptFrame):
            decode(forged, max_content_bytes=MAX_BYTES)


def opened(payload: bytes) -> tuple[bytearray, bytes]:
    """Return the decompressed metadata of a payload, and its stored sections."""
    (size,) = struct.unpack_from("<I", payload, 1)
    return bytearray(decompress(payload[5 : 5 + size], max_content_bytes=MAX_BYTES)), payload[5 + size :]


def closed(meta: bytes | bytearray, sections: bytes, layout: int = 2) -> bytes:
    stored = compress(bytes(meta), 1)
    return struct.pack("<BI", layout, len(stored)) + stored + sections


@given(batches | st.just([sure(9)]), st.data())
def test_meta_that_lies_is_refused_or_read_as_some_batch(batch: Sequence[Trajectory], data: st.DataObject) -> None:
    lying, sections = opened(encode(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        lying[data.draw(st.integers(0, len(lying) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(lying)))
    for forged in (bytes(lying), bytes(lying[:cut])):
        with suppress(CorruptFrame):
            for layout in (2, 3):
                for t in decode(closed(forged, sections, layout), max_content_bytes=MAX_BYTES):
                    assert len(t.completion_ids) == len(t.logprobs) == len(t.mask)


@pytest.mark.parametrize("count", range(16))
@pytest.mark.parametrize("value", [1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_each_count_that_lies_is_refused_before_anything_is_allocated(count: int, value: int) -> None:
    meta, sections = opened(encode([sure(9), TWO_TURNS]))
    (true,) = struct.unpack_from("<I", meta, 4 * count)
    struct.pack_into("<I", meta, 4 * count, value if value != true else 2)
    with pytest.raises(CorruptFrame):
        decode(closed(meta, sections), max_content_bytes=1 << 50)


def test_a_section_that_declares_more_than_its_counts_is_refused() -> None:
    meta, sections = opened(encode([ONE]))
    (true_bytes,) = struct.unpack_from("<I", meta, 4 * 9)
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 24))
    struct.pack_into("<I", meta, 4 * 9, len(bomb))
    with pytest.raises(CorruptFrame, match="16777216 bytes of content; expected 8"):
        decode(closed(meta, bomb + sections[true_bytes:]), max_content_bytes=1 << 30)


def test_content_beyond_the_bound_is_refused() -> None:
    payload = encode([sure(4000)])
    needed = 4000 * 9 + 2 * 2 * 4
    assert len(decode(payload, max_content_bytes=needed)) == 1
    with pytest.raises(CorruptFrame, match="at most"):
        decode(payload, max_content_bytes=needed - 1)


def test_a_prompt_that_many_samples_share_counts_for_each() -> None:
    """A reader of all samples reads the prompt once for each: a small frame must not decode to gigabytes."""
    payload = encode([replace(ONE, prompt_ids=token_ids([5] * 10_000)) for _ in range(1000)])
    assert len(payload) < 2000
    with pytest.raises(CorruptFrame, match="at most"):
        decode(payload, max_content_bytes=MAX_BYTES)


def test_noise_is_refused_as_a_payload() -> None:
    for num_bytes in (0, 1, 4, 5, 6, 100):
        with pytest.raises(CorruptFrame):
            decode(b"\2" + os.urandom(num_bytes), max_content_bytes=MAX_BYTES)
    with pytest.raises(CorruptFrame, match="layout 1 is unknown"):
        decode(b"\1\0\0\0\0", max_content_bytes=MAX_BYTES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mask": np.ones(1, np.bool_)}, "lease 1: 2 ids"),
        ({"logprobs": np.zeros(2, np.float64)}, "float64"),
        ({"completion_ids": token_ids((1, -1))}, "ids -1 to 1"),
        ({"prompt_ids": token_ids((MAX_ID + 1,))}, "0 to 16777215 are carried"),
        ({"logprobs": np.array([-1, -1], np.float32)}, "a token of context has a log-probability"),
    ],
)
def test_what_cannot_be_carried_is_the_callers_mistake(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        encode([replace(ONE, **change)])  # type: ignore[arg-type]


@given(trajectories())
def test_json_counts_the_same_records_as_lines(t: Trajectory) -> None:
    policies = [
        {"fork": r.policy.fork, "version": r.policy.version, "num_tokens": r.num_tokens}
        | ({"kept_kv": True} if r.kept_kv else {})
        for r in t.policies
    ]
    sampling = {"temperature": t.sampling.temperature, "top_p": t.sampling.top_p, "top_k": t.sampling.top_k}
    line = {
        "lease_id": t.lease_id,
        "group": t.group,
        "sample": t.sample,
        "item": t.item,
        "purpose": t.purpose,
        "prompt_ids": t.prompt_ids.tolist(),
        "completion_ids": t.completion_ids.tolist(),
        "logprobs": [float(str(logprob)) for logprob in t.logprobs],
        "mask": t.mask.astype(int).tolist(),
        "policies": policies,
        "reward": t.reward,
        "stop_reason": t.stop_reason,
        "sampling": sampling,
        "metadata": t.metadata,
        "worker_id": t.worker_id,
        "generation_s": t.generation_s,
    }
    assert json_bytes([t, t]) == 2 * len(json.dumps(line, separators=(",", ":")) + "\n")


GOLDEN_CONTENT = [
    (2, 4, 1, 2, 11, 6, 0, 3, 17, 0, 0, 0, 0, 0, 0, 0),
    "01000000000000000200000000000000040000000000000003000000020000000200000003000000000000000000f03f0000"
    "00000000e03f000000000000d03f000000000000e03f00000000000000000100000001010100000000000000020000000000"
    "0000040000000000000004000000090000000200000003000000000000000000e0bf000000000000e03f000000000000d03f"
    "000000000000e03f000000000000000002000000010101000000040000000000000001000000010000000500000000000000"
    "0100000001000000040000000000000005000000020000000000000000000000040000000200000003000000020000000c00"
    "0000772f307b7d7b227475726e73223a20327d1d06",
    [
        "0500020107000000010002000300040005000600070008000900",
        "00000001000000000000000000",
        "",
        "bfbfc0c0c035",
        "00000000000000000000bd37c0c020609086",
        "",
        "",
    ],
]
GOLDEN_PAYLOAD = (
    "02b000000028b52ffd644f001505000406020000000400000001000000020000000b00000006000300000011000000200000"
    "001a00130000001f0001000200040003020000f03fe0d0e00101010400000009e0bf0201050100000c000000772f307b7d7b"
    "227475726e73223a20327d1d061d0010e06908ece40b3c123bf91e68f24b3319ccee9f65640880e2021cc3ac594041661e30"
    "00e40399812c5686408057be2964064603a381d1c086c15006d00431a6702e28b52ffd241a9d0000a2c10388532212121047"
    "b186149c72af490a0049013c9c28b52ffd240d690000000000010000000000000000002ce96b4f28b52ffd2406310000bfbf"
    "c0c0c0357089e3fc28b52ffd241291000000000000000000000000bd37c0c020609086b8970f2e"
)
GOLDEN_SURE_PAYLOAD = (
    "026a00000028b52ffd24b7ed0200040301000000020000000902000000050000001f000f0016010200000400000301f03f00"
    "00e0d0e00101010903772f307b7d1300ab2c61e4db0433530d00f940662b2980a5dc8057be4bc801daa488b399d92e0bb031"
    "6e2060f4842302c4dc07ca28b52ffd2416950000600500020107000700070007000100b69b04b01096ae28b52ffd24021100"
    "00ff01bc321d8828b52ffd24094900000000000000000000003d2fcd0d28b52ffd24094900000001020304050607085b8cc7"
    "a7"
)
