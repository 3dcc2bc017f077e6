"""The layouts of others are exact, and take what is known of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.weight_deltas import synthetic
from bench.weight_deltas.peers import Peer, check_known, peers
from periplus.values.weight_state import Tensor, WeightState

PEERS = pytest.mark.parametrize("peer", peers(), ids=lambda peer: peer.name)
SHAPES = ((7,), (3, 5), (2, 3, 4), (1, 1), (0, 4), ())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[WeightState, WeightState]:
    """Two states of one layout; few or many of their elements differ."""
    base, new = {}, {}
    for number, shape in enumerate(draw(st.lists(st.sampled_from(SHAPES), max_size=4))):
        size = int(np.prod(shape, dtype=int))
        old = draw(arrays(np.uint16, size))
        mask = draw(arrays(np.uint16, size, elements=st.integers(0, 0xFFFF), fill=st.just(0)))
        base[f"t{number}"] = Tensor("BF16", shape, old)
        new[f"t{number}"] = Tensor("BF16", shape, old ^ mask)
    return base, new


@PEERS
@given(pair=pairs())
def test_what_is_decoded_is_what_went_in(peer: Peer, pair: tuple[WeightState, WeightState]) -> None:
    base, new = pair
    assert peer.decode(base, peer.encode(base, new)) == new


@PEERS
@pytest.mark.parametrize("places", [[0, 1 << 22], [255, 256, 1 << 16, (1 << 21) + 1], [5, 6, 7], [1 << 21]])
def test_wide_gaps_and_runs_are_exact(peer: Peer, places: list[int]) -> None:
    old = np.zeros((1 << 22) + 1, np.uint16)
    now = old.copy()
    now[places] = 0x8000  # 0.0 -> -0.0
    for shape in ((old.size,), (1, old.size)):
        base, new = {"w": Tensor("BF16", shape, old)}, {"w": Tensor("BF16", shape, now)}
        assert peer.decode(base, peer.encode(base, new)) == new


@PEERS
def test_many_rows_are_exact(peer: Peer) -> None:
    base, new = synthetic.one_step(1 << 18, 1e-5)
    assert peer.decode(base, peer.encode(base, new)) == new


def test_raw_positions_and_values_take_48_bits() -> None:
    base, new = synthetic.one_step(1 << 18, 1e-5)
    changed = sum(int((new[name].data.view(np.uint16) != base[name].data.view(np.uint16)).sum()) for name in new)
    flat = next(peer for peer in peers() if peer.name == "flat_int32")
    assert 48 <= 8 * len(flat.encode(base, new)) / changed < 48.1


def test_a_layout_that_is_off_its_known_figure_is_refused() -> None:
    with pytest.raises(AssertionError, match="step 5 at 1e-6"):
        check_known({"step 5 at 1e-6": synthetic.one_step(1 << 18, 1e-4)})
