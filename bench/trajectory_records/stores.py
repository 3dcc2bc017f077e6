"""How fast frames are kept on disk: the project's spool beside a table in SQLite with a write-ahead log.

Both keep the same payloads, in the same order, and promise the same: each record is checksummed, what `sync` returned
for is found again, and a record is removed once it is retired. `process` durability survives the death of the process
(SQLite: `synchronous=OFF`, one transaction a batch), `machine` also a power cut (`synchronous=FULL`, one transaction a
batch; the spool: one fsync a batch). SQLite checks no page by itself, so its rows carry the BLAKE3 digest that the
spool's records carry, and reading verifies it.

Each store appends all payloads in batches of `BATCH`, is closed and opened again, reads every record in a
shuffled order, and retires every record in the order of writing. Before it is timed, one round checks that what is read
is what was written. Seconds are wall time, the median of several rounds: an fsync costs no CPU time.
"""

import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from periplus.spool.format import Durability
from periplus.spool.spool import Spool

BATCH = 16
"""Frames between two syncs. The trainer's group commit takes what came in during the last one, which is about so many
frames of a fast intake."""

MAX_BYTES = 64 << 30
"""Room of the spool: more than any run here writes, so that no run waits for room."""


class Store(Protocol):
    """What both stores offer. A key is what `append` returned."""

    def append(self, payload: bytes) -> Any: ...

    def sync(self) -> None: ...

    def read(self, key: Any) -> bytes: ...

    def retire(self, key: Any) -> None: ...

    def close(self) -> None: ...


class SqliteStore:
    """One table of payloads with their digests. `sync` commits the open transaction."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(folder / "frames.db", isolation_level=None)
        execute = self._connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute(f"PRAGMA synchronous={'FULL' if durability is Durability.MACHINE else 'OFF'}")
        execute("CREATE TABLE IF NOT EXISTS frames (key INTEGER PRIMARY KEY, digest BLOB NOT NULL, data BLOB NOT NULL)")
        self._is_open = False

    def _begin(self) -> None:
        if not self._is_open:
            self._connection.execute("BEGIN")
            self._is_open = True

    def append(self, payload: bytes) -> int:
        self._begin()
        cursor = self._connection.execute(
            "INSERT INTO frames (digest, data) VALUES (?, ?)", (blake3(payload).digest(), payload)
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def sync(self) -> None:
        if self._is_open:
            self._connection.execute("COMMIT")
            self._is_open = False

    def read(self, key: int) -> bytes:
        digest, data = self._connection.execute("SELECT digest, data FROM frames WHERE key = ?", (key,)).fetchone()
        assert blake3(data).digest() == digest, f"row {key} is damaged"
        return bytes(data)

    def retire(self, key: int) -> None:
        self._begin()
        self._connection.execute("DELETE FROM frames WHERE key = ?", (key,))

    def close(self) -> None:
        self.sync()
        self._connection.close()


def open_spool(folder: Path, durability: Durability) -> Store:
    return Spool.open(folder, durability=durability, max_bytes=MAX_BYTES)


STORES: dict[str, Callable[[Path, Durability], Store]] = {"spool": open_spool, "sqlite_wal": SqliteStore}


def measure(payloads: Sequence[bytes], rounds: int, seed: int) -> dict[str, Any]:
    """Megabytes of payload a second for appending, reading and retiring, by store and durability."""
    results: dict[str, Any] = {"payload_mbytes": sum(map(len, payloads)) / 1e6, "frames": len(payloads)}
    for durability in Durability:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in STORES}
        for number in range(rounds + 1):
            for name, opener in STORES.items():  # by turns, so that a busy moment hits both
                figures = _round(opener, durability, payloads, random.Random(seed + number), is_check=number == 0)
                if number:
                    found[name].append(figures)
        results[durability.value] = {
            name: {figure: statistics.median(each[figure] for each in figures) for figure in figures[0]}
            for name, figures in found.items()
        }
    return results


def _round(
    opener: Callable[[Path, Durability], Store],
    durability: Durability,
    payloads: Sequence[bytes],
    rng: random.Random,
    *,
    is_check: bool,
) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="periplus-stores-"))
    try:
        store = opener(folder, durability)
        started_s, keys = time.perf_counter(), []
        for place, payload in enumerate(payloads):
            keys.append(store.append(payload))
            if place % BATCH == BATCH - 1:
                store.sync()
        store.sync()
        append_s = time.perf_counter() - started_s
        store.close()
        disk_bytes = sum(path.stat().st_size for path in folder.iterdir())
        started_s = time.perf_counter()
        store = opener(folder, durability)
        open_s = time.perf_counter() - started_s
        order = rng.sample(range(len(keys)), len(keys))
        started_s = time.perf_counter()
        if is_check:
            assert all(store.read(keys[place]) == payloads[place] for place in order), "a store lost bytes"
        for place in order:
            store.read(keys[place])
        read_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        for place, key in enumerate(keys):
            store.retire(key)
            if place % BATCH == BATCH - 1:
                store.sync()
        store.sync()
        retire_s = time.perf_counter() - started_s
        store.close()
    finally:
        shutil.rmtree(folder)
    mbytes = sum(map(len, payloads)) / 1e6
    return {
        "append_mbytes_per_s": mbytes / append_s,
        "read_mbytes_per_s": mbytes / read_s,
        "retire_frames_per_s": len(keys) / retire_s,
        "open_s": open_s,
        "disk_bytes_per_payload_byte": disk_bytes / 1e6 / mbytes,
    }
