from dataclasses import replace

import numpy as np
import pytest

from periplus.values.policy import Policy
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.incoming import Incoming
from rollout_worker.weights.pending_versions import PENDING_VERSIONS, PendingVersions, Version, check_is_due
from tests.support.publication.versions import Versions, small_states

V = Versions(small_states(12))


def proven() -> list[Version]:
    """Version 0 as an anchor, the others as deltas."""
    reading = Incoming(V.trust, HostCopy(), highest_fork=0, distrust=False, max_content_bytes=1 << 24)
    records = [record for each in (V.anchor(0), *V.chain(0, 11)) for record in each.records()]
    return [found for record in records if isinstance(found := reading.take(record), Version)]


VERSIONS = proven()


def pending(*indexes: int) -> PendingVersions:
    waiting = PendingVersions()
    for index in indexes:
        waiting.add(VERSIONS[index])
    return waiting


def test_nothing_waits_at_first_and_nothing_after_taking() -> None:
    waiting = pending(1)
    assert waiting.take() is not None
    assert waiting.take() is None


def test_deltas_are_written_in_order_and_lead_to_the_newest() -> None:
    swap = pending(1, 2, 3).take()
    assert swap is not None
    assert not swap.whole
    assert not swap.recovers
    assert swap.newest.signed.policy == V.policy(3)
    arrays = {name: tensor.data.copy() for name, tensor in V.states[0].items()}
    for staged in swap.staged:
        staged.write_into(arrays)
    assert all(np.array_equal(arrays[name], tensor.data) for name, tensor in V.states[3].items())


@pytest.mark.parametrize("indexes", [(0,), (0, 1), (1, 0), tuple(range(1, PENDING_VERSIONS + 2))])
def test_a_full_state_and_too_many_versions_are_written_from_the_host_copy_and_keep_no_elements(
    indexes: tuple[int, ...],
) -> None:
    waiting = pending(*indexes)
    assert waiting.is_whole
    swap = waiting.take()
    assert swap is not None
    assert swap.whole
    assert len(swap.versions) <= PENDING_VERSIONS
    assert all(version.staged is None for version in swap.versions)
    assert not waiting.is_whole


def test_a_recovery_is_remembered_however_many_versions_follow() -> None:
    waiting = PendingVersions()
    waiting.add(replace(VERSIONS[1], recovers=True))
    for version in VERSIONS[2:]:
        waiting.add(version)
    swap = waiting.take()
    assert swap is not None
    assert swap.recovers


def test_what_only_the_host_copy_had_is_lost_with_it_and_staged_elements_are_not() -> None:
    staged, whole = pending(1, 2), pending(0, 1)
    staged.host_is_lost()
    whole.host_is_lost()
    assert (len(staged), len(whole)) == (2, 0)


def test_a_full_state_that_is_older_than_the_engine_is_skipped_and_its_recovery_remembered_and_written_whole() -> None:
    waiting = pending(0)
    waiting.skip_to(V.policy(2))
    assert not waiting
    waiting.add(VERSIONS[3])
    waiting.skip_to(V.policy(2))
    swap = waiting.take()
    assert swap is not None
    assert swap.recovers
    assert swap.whole


def test_versions_of_a_later_fork_are_never_skipped() -> None:
    waiting = PendingVersions()
    waiting.add(replace(VERSIONS[1], signed=replace(VERSIONS[1].signed, policy=Policy(1, 0))))
    waiting.skip_to(Policy(0, 7))
    assert len(waiting) == 1


def test_a_check_is_due_every_so_many_versions_and_after_a_recovery() -> None:
    swap = pending(1).take()
    assert swap is not None
    assert not check_is_due(swap, 9, 10)
    assert check_is_due(swap, 10, 10)
    assert check_is_due(replace(swap, recovers=True), 1, 10)
