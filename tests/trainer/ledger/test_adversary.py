"""The ledger against an adversary (tests/support/ledger/adversary.py): safety, no loss, liveness, bounded memory."""

import pytest

from tests.support.cases.tiers import rest_is_slow
from tests.support.ledger.adversary import of_seed

PATIENCE_S = 150.0
"""Fifteen times what a lease may take: a batch may need several cursed groups to be given up one after the other."""


@pytest.mark.parametrize("seed", rest_is_slow(range(16), quick=6))
def test_promises_hold_and_batches_keep_coming_whatever_bad_workers_do(seed: int) -> None:
    run = of_seed(seed, steps=10**6)
    run.goes_on(4_000, patience_s=PATIENCE_S)
    assert run.num_batches > 10
    assert run.num_mixed > 0 or run.limits.bound == 0, "no sample of several policies was trained on"


def test_nothing_in_the_ledger_grows_with_the_number_of_events() -> None:
    """Every container stays within its bound in open leases, groups and workers."""
    run = of_seed(101, steps=10**6)
    run.goes_on(30_000, patience_s=PATIENCE_S)
    assert run.num_batches > 150
