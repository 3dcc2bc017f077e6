"""A store whose process or machine dies at every file operation: a copy is proven afterwards, or refused."""

import random
from functools import cache, partial
from pathlib import Path

import pytest

from periplus.codec.weights.decoder import decode
from periplus.publication import Publication, PublicationKind
from periplus.values.weight_state import content_bytes
from region_agent.weights.changes import full
from tests.support.faulty_files import Killed
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.weight_stores import WeightStore
from tests.support.publication.versions import Versions, small_states

FOLDER = Path("weights")
NUM_VERSIONS = 6
CHAIN_VERSIONS = 2


@cache
def versions() -> Versions:
    return Versions(small_states(NUM_VERSIONS, num_elements=300))


@cache
def published() -> tuple[Publication, ...]:
    """The bundle, an anchor, three deltas, an anchor in their place, a delta."""
    made = versions()
    return (made.bundle(), made.anchor(0), *made.chain(0, 4), made.anchor(5))


def open_store(disk: FaultyWeightFiles) -> WeightStore:
    return WeightStore.open(FOLDER, versions().trust, chain_versions=CHAIN_VERSIONS, layer=disk)


def run(disk: FaultyWeightFiles, store: WeightStore) -> None:
    """Everything that the store does not have yet."""
    for publication in published():
        is_new = store.newest is None or publication.opening.policy > store.newest
        if publication.opening.kind is PublicationKind.BUNDLE:
            is_new = store.held.bundle is None
        follows = publication.opening.base in (None, store.newest)
        if is_new and follows:
            store.put(publication)
            store.see_fork(publication.opening.policy.fork)
            store.settle()


def check(store: WeightStore) -> None:
    """What is there is right."""
    index_of = {versions().policy(index): index for index in range(NUM_VERSIONS)}
    at = None
    if store.copy is not None:
        at = store.copy.policy
        expected = versions().states[index_of[at]]
        assert decode(None, list(full(store.copy)), max_content_bytes=content_bytes(expected)) == expected
    for link in store.chain:
        assert at is None or link.opening.base == at
        at = link.opening.policy
        signed = next(each for each in published() if each.opening == link.opening)
        assert tuple(link.records()) == tuple(signed.records())
    assert store.held.bundle is None or store.held.bundle.opening == published()[0].opening


def num_calls() -> int:
    disk = FaultyWeightFiles()
    run(disk, open_store(disk))
    return disk.num_calls


def test_a_run_without_faults_ends_with_the_newest_copy_and_little_else() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    run(disk, store)
    check(store)
    assert store.copy is not None
    assert store.copy.policy == versions().policy(5)
    assert store.chain == ()
    store.close()
    assert len(disk.paths()) == 3, "manifest, state, bundle: no fork above 0 was seen"


@pytest.mark.parametrize("how", ["kill", "power"])
def test_whatever_call_the_process_dies_in_the_copy_is_proven_or_refused_and_the_rest_goes_on(how: str) -> None:
    num_recovered = 0
    for call in range(1, num_calls() + 1):
        disk = FaultyWeightFiles()
        disk.calls_until_killed = call
        with pytest.raises(Killed):
            run(disk, open_store(disk))
        if how == "power":
            rng = random.Random(call)
            disk.cut_power(partial(rng.randint, 0))
        store = open_store(disk)
        check(store)
        num_recovered += store.copy is not None
        if store.copy is None or not store.chain:
            store.close()
            store = open_store(disk)  # twice is as good as once
            check(store)
        run(disk, store)
        check(store)
        assert store.newest == versions().policy(5)
        assert store.copy is not None
    assert num_recovered > num_calls() / 2


def test_dying_again_while_recovering_changes_nothing() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    for publication in published()[:4]:
        store.put(publication)
    store.settle()
    store.put(published()[4])
    disk.calls_until_killed = 16
    with pytest.raises(Killed):
        store.settle()
    for call in range(1, 40):
        disk.calls_until_killed = call
        try:
            open_store(disk)
        except Killed:
            continue
        break
    disk.kill()
    store = open_store(disk)
    check(store)
    assert store.copy is not None
