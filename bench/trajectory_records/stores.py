"""How fast a spool keeps frames on disk, with each durability.

It appends all payloads in batches of `BATCH` with a sync after each, is closed and opened again, reads every record in
a shuffled order, and retires every record in the order of writing. Before it is timed, one round checks that what is
read is what was written. Seconds are wall time, the median of several rounds: an fsync costs no CPU time.
"""

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from periplus.spool.format import Durability
from periplus.spool.spool import Spool

BATCH = 16
"""Frames between two syncs. The trainer's group commit takes what came in during the last one, which is about so many
frames of a fast intake."""

MAX_BYTES = 64 << 30
"""Room of the spool: more than any run here writes, so that no run waits for room."""


def measure(payloads: Sequence[bytes], rounds: int, seed: int) -> dict[str, Any]:
    """Megabytes of payload a second for appending, reading and retiring, by durability."""
    results: dict[str, Any] = {"payload_mbytes": sum(map(len, payloads)) / 1e6, "frames": len(payloads)}
    for durability in Durability:
        found = [
            _round(durability, payloads, random.Random(seed + number), is_check=number == 0)
            for number in range(rounds + 1)
        ][1:]
        results[durability.value] = {figure: statistics.median(each[figure] for each in found) for figure in found[0]}
    return results


def _round(
    durability: Durability, payloads: Sequence[bytes], rng: random.Random, *, is_check: bool
) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="periplus-stores-"))
    try:
        store = Spool.open(folder, durability=durability, max_bytes=MAX_BYTES)
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
        store = Spool.open(folder, durability=durability, max_bytes=MAX_BYTES)
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
