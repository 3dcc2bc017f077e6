"""One copy on disk: proven when it is opened, refused when anything in it is not as it was written."""

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from periplus.codec.frame import CodecId
from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.errors import Conflict, CorruptFrame, StorageError, WrongBase
from periplus.publication import Publication, PublicationKind, derived_publication, signed_publication
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from region_agent.weights.changes import fold, full
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.weight_stores import WeightStore
from tests.support.publication.versions import JOB, Versions, flipped, small_states

FOLDER = Path("weights")


@cache
def made() -> Versions:
    return Versions(small_states(6, num_elements=400))


def open_store(disk: FaultyWeightFiles, versions: Versions | None = None, *, chain_versions: int = 2) -> WeightStore:
    return WeightStore.open(FOLDER, (versions or made()).trust, chain_versions=chain_versions, layer=disk)


def filled(*publications: Publication, chain_versions: int = 2) -> FaultyWeightFiles:
    disk = FaultyWeightFiles()
    store = open_store(disk, chain_versions=chain_versions)
    for publication in publications:
        store.put(publication)
        store.settle()
    store.close()
    return disk


def held(store: WeightStore) -> WeightState:
    assert store.copy is not None
    return decode(None, list(full(store.copy)), max_content_bytes=1 << 30)


def test_no_byte_of_a_copy_can_change_without_its_being_refused() -> None:
    rng = random.Random(0)
    disk = filled(made().anchor(0))
    (state,) = (path for path in disk.paths() if path.suffix == ".state")
    for at in [0, *rng.sample(range(len(disk.content(state))), 20)]:
        disk.content(state)[at] ^= 1 << rng.randrange(8)
        copied = bytes(disk.content(state))
        store = open_store(disk)
        assert store.copy is None
        assert "digest" in store.refused
        assert all(path.suffix != ".state" for path in disk.paths())
        store.put(made().anchor(0))
        store.settle()
        store.close()
        (state,) = (path for path in disk.paths() if path.suffix == ".state")
        assert bytes(disk.content(state)) != copied


def test_a_damaged_manifest_is_no_copy() -> None:
    for at in range(0, 900, 37):
        disk = filled(made().anchor(0))
        (manifest,) = (path for path in disk.paths() if path.suffix == ".manifest")
        disk.content(manifest)[at % len(disk.content(manifest))] ^= 4
        assert open_store(disk).copy is None


def test_a_file_that_was_cut_short_is_no_copy() -> None:
    disk = filled(made().anchor(0))
    (state,) = (path for path in disk.paths() if path.suffix == ".state")
    del disk.content(state)[-1:]
    assert open_store(disk).copy is None


def test_a_copy_of_another_authority_is_refused() -> None:
    disk = filled(made().anchor(0))
    stranger = Versions(made().states)
    stranger.trust = type(stranger.trust)(bytes(stranger.key.public_key), JOB)
    store = open_store(disk, stranger)
    assert store.copy is None
    assert store.refused


def test_a_damaged_link_ends_the_chain_before_it_and_the_copy_stays() -> None:
    disk = filled(made().anchor(0), *made().chain(0, 3), chain_versions=5)
    deltas = [path for path in disk.paths() if path.suffix == ".delta"]
    disk.content(deltas[1])[500] ^= 1
    store = open_store(disk, chain_versions=5)
    assert held(store) == made().states[0]
    assert [str(link.opening.policy) for link in store.chain] == ["0.1"]
    assert store.newest == made().policy(1)


def test_a_delta_that_does_not_lead_to_what_was_signed_leaves_no_copy() -> None:
    lies = derived_publication(
        made().anchor(1).attestation,
        kind=PublicationKind.DELTA,
        base=made().policy(0),
        base_digest=made().digest(0),
        parts=encode(made().states[0], flipped(made().states[1], "norm")),
    )
    store = open_store(filled(made().anchor(0)))
    with pytest.raises(CorruptFrame, match="digest"):
        store.become(lies)
    assert store.copy is None
    assert open_store(store.layer).copy is None  # type: ignore[arg-type]


def test_an_anchor_that_is_not_what_was_signed_leaves_the_copy_that_is_there() -> None:
    disk = filled(made().anchor(0))
    store = open_store(disk)
    with pytest.raises(CorruptFrame, match="digest"):
        store.become(
            made()
            .derived_anchor(1)
            .__class__(
                opening=made().derived_anchor(1).opening,
                chunks=made().derived_anchor(2).chunks,
                closing=made().derived_anchor(1).closing,
            )
        )
    assert held(store) == made().states[0]
    assert held(open_store(disk)) == made().states[0]


def test_a_derived_delta_from_another_state_is_refused() -> None:
    store = open_store(filled(made().anchor(0)))
    with pytest.raises(WrongBase):
        store.become(made().derived_delta(1, 2))
    assert held(store) == made().states[0]


def test_a_derived_delta_is_applied_after_the_chain() -> None:
    store = open_store(filled(made().anchor(0), made().delta(0, 1)))
    store.become(made().derived_delta(1, 4))
    assert held(store) == made().states[4]
    assert store.newest == made().policy(4)


def test_a_failing_disk_in_the_middle_of_a_version_is_recovered_from_when_it_works_again() -> None:
    disk = filled(made().anchor(0), *made().chain(0, 2))
    store = open_store(disk)
    disk.failing_syncs = True
    store.put(made().delta(2, 3))
    with pytest.raises(StorageError):
        store.settle()
    disk.failing_syncs = False
    store.settle()
    assert held(store) == made().states[1]
    assert store.newest == made().policy(3)


@pytest.mark.parametrize("span_bytes", [1 << 10, 1 << 12])
def test_real_files_hold_states_of_several_dtypes_and_spans(tmp_path: Path, span_bytes: int) -> None:
    rng = np.random.default_rng(1)

    def state(seed: int) -> WeightState:
        rng = np.random.default_rng(seed)
        return {
            "a": Tensor("BF16", (999,), rng.normal(size=999).astype(np.float32).view(np.uint16)[::2][:999].copy()),
            "b": Tensor("F32", (33, 11), rng.normal(size=363).astype(np.float32)),
            "c": Tensor("U8", (77,), rng.integers(0, 9, 77, dtype=np.uint8)),
            "empty": Tensor("BF16", (0, 4), np.zeros(0, np.uint16)),
        }

    states = [state(0)]
    for _ in range(4):
        new = {name: Tensor(each.dtype, each.shape, each.data.copy()) for name, each in states[-1].items()}
        for tensor in new.values():
            changed = rng.random(tensor.data.size) < 0.02
            tensor.data[changed] ^= 1
        states.append(new)
    versions = Versions(states)

    def signed(base: int | None, index: int) -> Publication:
        old = None if base is None else states[base]
        return signed_publication(
            versions.key,
            versions.certificate,
            job_id=JOB,
            policy=versions.policy(index),
            codec=CodecId.WEIGHTS,
            kind=PublicationKind.ANCHOR if base is None else PublicationKind.DELTA,
            base=None if base is None else versions.policy(base),
            base_digest=b"" if base is None else versions.digest(base),
            content_bytes=content_bytes(states[index]),
            parts=encode(old, states[index], span_bytes=span_bytes),
            state_digest=state_digest(states[index]),
        )

    store = WeightStore.open(tmp_path / "w", versions.trust, chain_versions=2)
    with pytest.raises(Conflict):
        WeightStore.open(tmp_path / "w", versions.trust, chain_versions=2)
    for publication in (signed(None, 0), signed(0, 1), signed(1, 2), signed(2, 3), signed(3, 4)):
        store.put(publication)
        store.settle()
    assert held(store) == states[2]
    assert store.copy is not None
    parts = list(fold(store.copy, store.chain, versions.policy(2)))
    assert decode(states[2], parts, max_content_bytes=1 << 30) == states[4]
    store.close()
    store = WeightStore.open(tmp_path / "w", versions.trust, chain_versions=2)
    assert held(store) == states[2]
    assert store.newest == versions.policy(4)
    store.close(remove=True)
    assert not (tmp_path / "w").exists()
