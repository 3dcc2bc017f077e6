"""The spool is timed with every durability."""

import random

from bench.trajectory_records.stores import measure
from periplus.spool.format import Durability


def test_a_spool_is_measured_with_every_durability() -> None:
    rng = random.Random(0)
    found = measure([rng.randbytes(2000) for _ in range(40)], rounds=1, seed=0)
    for durability in Durability:
        assert all(value > 0 for value in found[durability.value].values())
