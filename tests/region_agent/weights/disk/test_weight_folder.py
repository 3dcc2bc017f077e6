"""What a store does with a disk that is full, with what does not follow, and with more than it may keep."""

from functools import cache
from pathlib import Path

import pytest

from periplus.codec.weights.decoder import decode
from periplus.errors import CorruptFrame, DiskFull, StorageError
from periplus.values.weight_state import WeightState
from region_agent.weights.changes import full
from region_agent.weights.held_versions import MOST_CHAINS
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.weight_stores import WeightStore
from tests.support.publication.versions import Versions, flipped, small_states
from tests.support.small_disk import small_disk

FOLDER = Path("weights")
NUM_VERSIONS = 12


@cache
def made() -> Versions:
    return Versions(small_states(NUM_VERSIONS, num_elements=400))


def open_store(disk: FaultyWeightFiles, chain_versions: int = 2) -> WeightStore:
    return WeightStore.open(FOLDER, made().trust, chain_versions=chain_versions, layer=disk)


def held(store: WeightStore) -> WeightState:
    assert store.copy is not None
    return decode(None, list(full(store.copy)), max_content_bytes=1 << 30)


def used_bytes(disk: FaultyWeightFiles) -> int:
    return sum(len(disk.content(path)) for path in disk.paths())


def test_a_full_disk_costs_nothing_and_is_caught_up_with() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    for index in range(6):
        store.put(made().anchor(0) if index == 0 else made().delta(index - 1, index))
        disk.room_bytes = used_bytes(disk) + 300
        if index in (0, 3, 4):
            with pytest.raises(DiskFull):
                store.settle()
            assert store.newest == made().policy(index)
            links = store.held.links_from(made().policy(max(0, index - 2)))
            assert links is not None
        disk.room_bytes = None
        if index != 3:
            store.settle()
    assert held(store) == made().states[3]
    again = open_store(disk)
    assert held(again) == made().states[3]
    assert again.newest == made().policy(5)


def test_a_real_disk_that_fills_up_at_each_version_costs_nothing_and_is_caught_up_with(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=512) as disk:
        store = WeightStore.open(disk.root / "weights", made().trust, chain_versions=2)
        num_refused = 0
        for index in range(NUM_VERSIONS):
            store.put(made().anchor(0) if index == 0 else made().delta(index - 1, index))
            filler = disk.fill(leaving_bytes=4096 * (index % 3))
            try:
                store.settle()
            except DiskFull as error:
                num_refused += error.path is not None and disk.root in error.path.parents
            assert store.newest == made().policy(index)
            filler.unlink()
            store.settle()
        assert num_refused > NUM_VERSIONS // 2
        store.close()
        again = WeightStore.open(disk.root / "weights", made().trust, chain_versions=2)
        assert held(again) == made().states[again.copy.policy.version if again.copy else 0]
        assert again.newest == made().policy(NUM_VERSIONS - 1)
        again.close()


def test_a_disk_that_stays_full_ends_the_copy_but_not_the_chain_and_neither_grows() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    store.put(made().anchor(0))
    store.settle()
    disk.room_bytes = used_bytes(disk)
    for delta in made().chain(0, NUM_VERSIONS - 1):
        store.put(delta)
        if store.copy is not None:
            with pytest.raises(DiskFull):
                store.settle()
        assert len(store.chain) <= MOST_CHAINS * 2 + 1
    assert store.copy is None
    assert store.refused
    assert store.held.links_from(made().policy(NUM_VERSIONS - 2)) is not None
    disk.room_bytes = None
    store.become(made().derived_anchor(NUM_VERSIONS - 2))
    assert store.held.reaches
    assert store.newest == made().policy(NUM_VERSIONS - 1)


def test_while_readers_take_the_copy_it_stays_where_it_is_within_bounds() -> None:
    store = open_store(FaultyWeightFiles())
    store.put(made().anchor(0))
    store.settle()
    reading = store.read_copy()
    for index in range(1, NUM_VERSIONS):
        store.put(made().delta(index - 1, index))
        store.settle()
        assert store.copy is not None
        assert store.copy.policy == made().policy(max(0, index - MOST_CHAINS * 2))
    store.machine.reader_left(reading)
    store.settle()
    assert store.copy is not None
    assert store.copy.policy == made().policy(NUM_VERSIONS - 3)


def test_what_continues_from_elsewhere_ends_the_copy() -> None:
    store = open_store(FaultyWeightFiles())
    store.put(made().anchor(0))
    store.settle()
    store.put(made().delta(4, 5))
    store.settle()
    assert store.copy is None
    assert not store.held.reaches
    assert store.newest == made().policy(5)


def test_a_repeat_changes_nothing() -> None:
    store = open_store(FaultyWeightFiles())
    for publication in (made().anchor(0), made().delta(0, 1), made().delta(0, 1), made().anchor(1)):
        store.put(publication)
    store.settle()
    store.put(made().anchor(1))
    store.settle()
    assert held(store) in (made().states[0], made().states[1])
    assert store.newest == made().policy(1)


def test_an_anchor_that_was_signed_with_a_wrong_digest_is_never_a_copy_and_is_not_tried_again() -> None:
    liar = Versions([made().states[0], flipped(made().states[0], "norm")])
    anchor = liar.anchor(0)
    lie = type(anchor)(opening=anchor.opening, chunks=liar.anchor(1).chunks, closing=anchor.closing)
    store = open_store(FaultyWeightFiles())
    store.put(lie)
    with pytest.raises(CorruptFrame):
        store.settle()
    assert store.copy is None
    assert not store.held.is_waiting
    store.settle()


def test_the_highest_fork_survives_and_leaves_one_file() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    for fork in (1, 4, 3):
        store.see_fork(fork)
        store.settle()
    assert [path.name for path in disk.paths()] == ["fork-0000000004"]
    assert open_store(disk).held.highest_fork == 4


def test_a_fork_whose_file_could_not_be_synced_is_saved_when_the_disk_works_again() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    store.see_fork(2)
    disk.failing_syncs = True
    with pytest.raises(StorageError):
        store.settle()
    disk.failing_syncs = False
    store.settle()
    assert open_store(disk).held.highest_fork == 2


def test_the_newest_bundle_replaces_the_one_before() -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk)
    store.put(made().bundle(b"one"))
    store.settle()
    store.put(made().bundle(b"two"))
    store.settle()
    assert len([path for path in disk.paths() if path.suffix == ".bundle"]) == 1
    again = open_store(disk)
    assert again.held.bundle is not None
    assert again.held.bundle.part(0) == b"two"


def test_a_delta_that_is_damaged_while_nobody_runs_is_removed_and_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FaultyWeightFiles()
    store = open_store(disk, chain_versions=8)
    store.put(made().anchor(0))
    for version in range(4):
        store.put(made().delta(version, version + 1))
        store.settle()
    assert store.newest == made().policy(4)
    third = sorted(path for path in disk.paths() if path.suffix == ".delta")[2]
    disk.content(third)[200] ^= 1
    again = open_store(disk, chain_versions=8)
    assert again.newest == made().policy(2)
    assert third not in disk.paths()
    (line,) = (each for each in caplog.records if each.message == "publication_not_whole")
    assert line.fields["file"] == third  # type: ignore[attr-defined]
