"""A fold of deltas leads where they lead one by one, from any state on the way."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.weights.decoder import decode
from periplus.errors import CorruptSpool, WrongBase
from periplus.values.weight_state import Tensor, WeightState
from region_agent.weights.changes import fold
from region_agent.weights.disk.stored_publication import StoredPublication
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.weight_stores import WeightStore
from tests.support.publication.versions import Versions, small_states

NUM_VERSIONS = 9


@cache
def made() -> Versions:
    return Versions(small_states(NUM_VERSIONS, num_elements=2000))


@cache
def filled() -> WeightStore:
    store = open_store(made())
    store.put(made().anchor(0))
    for delta in made().chain(0, NUM_VERSIONS - 1):
        store.put(delta)
    store.settle()
    return store


def open_store(versions: Versions) -> WeightStore:
    return WeightStore.open(Path("weights"), versions.trust, chain_versions=32, layer=FaultyWeightFiles())


@settings(max_examples=25, deadline=None)
@given(have=st.integers(0, NUM_VERSIONS - 2), data=st.data())
def test_a_fold_equals_the_sequence(have: int, data: st.DataObject) -> None:
    to = data.draw(st.integers(have + 1, NUM_VERSIONS - 1))
    copy = filled().copy
    assert copy is not None
    parts = list(fold(copy, filled().chain[:to], made().policy(have)))
    assert decode(made().states[have], parts, max_content_bytes=1 << 30) == made().states[to]


def test_a_fold_is_smaller_than_what_it_folds() -> None:
    copy = filled().copy
    assert copy is not None
    parts = list(fold(copy, filled().chain, made().policy(0)))
    assert sum(map(len, parts)) < sum(filled().held.chain_bytes)


def test_deltas_to_another_layout_are_not_folded_and_end_the_copy() -> None:
    wider: WeightState = {**made().states[1], "more": Tensor("BF16", (2,), made().states[1]["norm"].data[:4].copy())}
    versions = Versions([made().states[0], wider, wider])
    store = open_store(versions)
    store.put(versions.anchor(0))
    store.put(versions.delta(0, 1))
    store.settle()
    assert store.copy is not None
    with pytest.raises(WrongBase):
        list(fold(store.copy, store.chain, versions.policy(0)))


def test_a_link_that_was_damaged_on_disk_is_no_fold() -> None:
    store = open_store(made())
    store.put(made().anchor(0))
    store.put(made().delta(0, 1))
    store.settle()
    layer = store.layer
    assert isinstance(layer, FaultyWeightFiles)
    (link,) = store.chain
    assert isinstance(link, StoredPublication)
    layer.content(link.path)[link.offsets[1] + 20] ^= 1
    assert store.copy is not None
    with pytest.raises(CorruptSpool):
        list(fold(store.copy, store.chain, made().policy(0)))
