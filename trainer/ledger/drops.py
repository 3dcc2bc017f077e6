"""Groups are given up here: after too many attempts, because a hold is over, or because their rewards are equal.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from trainer.ledger import leasing
from trainer.ledger.state import Held, LedgerState, SampleGroup
from trainer.ledger.values import Drop, Effect, GroupDropped, LedgerLimits, Revoked

DROPPED_KEPT = 1 << 16
"""Number of dropped groups that are remembered, so that a late result can be told from a duplicate. Chosen by hand."""


def count_failure(
    state: LedgerState, limits: LedgerLimits, group: SampleGroup, held: Held, effects: list[Effect]
) -> None:
    """Count an attempt at the sample of a lease that ended, and drop the group if it was the last one allowed.

    A hedge that ended while the first lease went on is no attempt.
    """
    if held.is_hedge or group.number not in state.groups:  # or the group was dropped for another of its samples
        return
    group.failures[held.lease.sample] += 1
    if group.failures[held.lease.sample] >= limits.max_attempts:
        drop_group(state, limits, group, Drop.FAILED, effects)


def drop_group(state: LedgerState, limits: LedgerLimits, group: SampleGroup, why: Drop, effects: list[Effect]) -> None:
    """Give a group up: revoke its leases, free its room, and remember its number for late results."""
    results = tuple(group.done[sample] for sample in sorted(group.done))
    for lease_id in [lease_id for sample in sorted(group.leases) for lease_id in group.leases_of(sample)]:
        effects.append(Revoked(state.held[lease_id].worker_id, (lease_id,)))
        leasing.release(state, lease_id)
    state.remove_group(group, limits.max_sample_tokens)
    state.dropped[group.number] = None
    if len(state.dropped) > DROPPED_KEPT:
        del state.dropped[next(iter(state.dropped))]
    # An evaluation goes on without the problem that nobody could produce.
    state.evaluation = state.evaluation and tuple(n for n in state.evaluation if n != group.number)
    effects.append(GroupDropped(group.number, why, results))
