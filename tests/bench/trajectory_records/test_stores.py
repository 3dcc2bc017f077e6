"""The comparison of stores holds both to the same promise before it times them."""

import random
from pathlib import Path

import pytest

from bench.trajectory_records.stores import SqliteStore, measure, open_spool
from periplus.spool.format import Durability


@pytest.mark.parametrize("opener", [SqliteStore, open_spool])
def test_a_store_finds_again_what_was_synced_and_forgets_what_was_retired(opener: type, tmp_path: Path) -> None:
    payloads = [bytes([number]) * 1000 for number in range(5)]
    store = opener(tmp_path, Durability.MACHINE)
    keys = [store.append(payload) for payload in payloads]
    store.sync()
    store.retire(keys[0])
    store.close()
    again = opener(tmp_path, Durability.MACHINE)
    assert [again.read(key) for key in keys[1:]] == payloads[1:]
    with pytest.raises(Exception, match=r"no record|NoneType"):
        again.read(keys[0])
    again.close()


def test_a_damaged_row_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, Durability.PROCESS)
    key = store.append(b"x" * 1000)
    store.sync()
    store._connection.execute("UPDATE frames SET data = ? WHERE key = ?", (b"y" * 1000, key))
    with pytest.raises(AssertionError, match="damaged"):
        store.read(key)
    store.close()


def test_every_store_is_measured_with_every_durability() -> None:
    rng = random.Random(0)
    found = measure([rng.randbytes(2000) for _ in range(40)], rounds=1, seed=0)
    for durability in Durability:
        assert set(found[durability.value]) == {"spool", "sqlite_wal"}
        assert all(value > 0 for figures in found[durability.value].values() for value in figures.values())
