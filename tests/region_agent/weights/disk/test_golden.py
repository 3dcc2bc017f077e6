"""Stores that were written before are read, and the bytes on disk do not change."""

from pathlib import Path

from periplus.codec.weights.decoder import decode
from region_agent.weights.changes import full
from tests.region_agent.weights.disk.golden.write import HERE, versions, written
from tests.support.gateway.weight_stores import WeightStore


def golden() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in HERE.iterdir() if path.is_file() and path.suffix != ".py"}


def test_a_store_is_written_with_the_same_bytes_as_ever() -> None:
    assert written() == golden()


def test_a_store_that_was_written_before_is_read_and_its_redo_log_is_applied(tmp_path: Path) -> None:
    for name, data in golden().items():
        (tmp_path / name).write_bytes(data)
    made = versions()
    store = WeightStore.open(tmp_path, made.trust, chain_versions=1)
    assert store.copy is not None
    assert decode(None, list(full(store.copy)), max_content_bytes=1 << 30) == made.states[1]
    assert [link.opening.policy for link in store.chain] == [made.policy(2)]
    assert tuple(store.chain[0].records()) == tuple(made.delta(1, 2).records())
    assert store.held.bundle is not None
    assert tuple(store.held.bundle.records()) == tuple(made.bundle().records())
    assert store.held.highest_fork == 3
    store.close()
