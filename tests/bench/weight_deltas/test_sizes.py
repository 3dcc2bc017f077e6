"""Sizes of deltas are true: exact, at most the sum when folded, and all from the same bytes."""

import numpy as np
import pytest

from bench.weight_deltas import synthetic
from bench.weight_deltas.sizes import HEADER, Chain, fold, full_copy_bytes, line, of_chains, sizes
from bench.weight_deltas.speeds import memory, peer_speeds, speeds
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor, WeightState


@pytest.fixture(scope="module")
def states() -> dict[int, WeightState]:
    found = synthetic.simulated(1e-5, tuple(range(1, 11)), num_elements=1 << 14)
    return {step: new for step, (_, new) in found.items()}


def test_ratios_are_of_the_bytes_that_a_reader_gets(states: dict[int, WeightState]) -> None:
    row = sizes("one", states[4], states[5], lambda _: None)
    assert row["payload_bytes"] == sum(map(len, encode(states[4], states[5])))
    changed = row["density"] * (1 << 14)
    assert row["bits_per_change"] == pytest.approx(8 * row["payload_bytes"] / changed)
    assert row["vs_iid"] == pytest.approx(row["bits_per_change"] / row["iid_floor_bits"])
    assert row["vs_conditional"] >= row["vs_conditional_with_tables"]
    assert set(row["peers_bits_per_change"]) >= {"flat_int32", "nemo_dcr_zstd1"}


def test_a_fold_is_exact_and_smaller_than_its_steps(states: dict[int, WeightState]) -> None:
    row = fold(Chain(name="c", read=states.__getitem__, singles=(), folds=()), 2, 10)
    assert row["exact"]
    assert row["bytes"] < row["sum_bytes"]


def test_every_delta_of_a_chain_gets_a_line_under_the_header(states: dict[int, WeightState]) -> None:
    said: list[str] = []
    chain = Chain(name="c", read=states.__getitem__, singles=((4, 5),), folds=((2, 10),))
    rows, folds = of_chains([chain], said.append)
    assert [row["delta"] for row in rows] == ["c 4->5", "c 2->10"]
    assert [row["fold"] for row in folds] == ["c 2->10"]
    assert said == [line(row) for row in rows]
    assert HEADER.index("changed") + len("changed") == said[0].index("%") + 1


def test_a_full_copy_is_the_smaller_of_both_ways() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint16) | 0x3F00
    size = full_copy_bytes({"w": Tensor("BF16", (1 << 16,), noise)})
    assert size < 1.05 * (1 << 16)  # the high bytes are all the same


def test_speeds_and_memory_are_positive(states: dict[int, WeightState]) -> None:
    base, new = states[4], states[5]
    assert min(speeds(base, new, passes=1).values()) > 0
    assert peer_speeds(base, new, passes=1)["flat_int32"]["decode_gbytes_per_s"] > 0
    assert memory(base, new)["state_spans"] == pytest.approx((2 << 14) / (8 << 20))
