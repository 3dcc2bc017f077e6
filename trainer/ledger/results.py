"""What becomes of a result: it is accepted into its group or refused. Those of an earlier fork open groups again.

acceptance.py says whether a result is accepted. A refused result that ends its sender's lease counts as an attempt at
the sample. A complete group may be dropped because its outcomes are equal.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from periplus.values.trajectory import Purpose
from trainer.ledger import acceptance, drops, hedging, leasing, workers
from trainer.ledger.leasing import ItemOf
from trainer.ledger.state import LedgerState, SampleGroup
from trainer.ledger.values import Arrival, Drop, Effect, JudgedResult, LedgerLimits, Result, Revoked


def take_result(state: LedgerState, limits: LedgerLimits, result: Result, effects: list[Effect]) -> None:
    """Accept or refuse a result. A refused one that ends its sender's lease counts as an attempt at the sample."""
    arrival = acceptance.classify_result(state, limits, result)
    hedging.hear(state, result.worker_id)
    held = leasing.end(state, result)
    effects.append(JudgedResult(result, arrival))
    if arrival is Arrival.ACCEPTED:
        _accept(state, limits, state.groups[result.group], result, effects)
        workers.deliver(state, limits, result.worker_id)
    elif held is not None:
        group = state.groups[result.group]
        leasing.wait_again(state, group, result.sample)
        drops.count_failure(state, limits, group, held, effects)


def _accept(
    state: LedgerState, limits: LedgerLimits, group: SampleGroup, result: Result, effects: list[Effect]
) -> None:
    """Put a result into its group. A group that is then complete may be dropped because its outcomes are equal."""
    # The first valid result wins, also one whose own lease has ended.
    for lease_id in group.leases_of(result.sample):  # other workers need not produce it any more
        effects.append(Revoked(state.held[lease_id].worker_id, (lease_id,)))
        leasing.release(state, lease_id)
    state.put_result(group, result, result.oldest_version, limits.max_sample_tokens)
    state.lengths.saw(result.item, result.num_tokens)
    if (worker := state.workers.get(result.worker_id)) is not None:
        worker.speed.tokens += result.num_tokens
    if not group.is_whole or group.purpose is not Purpose.TRAIN:
        return
    state.pace.saw_group(state.now_s - group.opened_s)
    if _is_filtered(state, limits, group):
        state.num_filtered += 1
        drops.drop_group(state, limits, group, Drop.FILTERED, effects)


def _is_filtered(state: LedgerState, limits: LedgerLimits, group: SampleGroup) -> bool:
    may = limits.filter_uniform and state.num_filtered < limits.max_filtered_per_step * limits.groups_per_step
    return may and len({result.outcome for result in group.done.values()} - {None}) < 2


def replay(
    state: LedgerState, limits: LedgerLimits, item_of: ItemOf, results: tuple[Result, ...], effects: list[Effect]
) -> None:
    """Accept the results of an earlier fork that are still young enough, and open their groups again.

    The first result of a group opens it, in the class of that result's oldest version.
    """
    for result in results:
        arrival = acceptance.classify_result(state, limits, result)
        # No group of this fork is open for it: open the group of the earlier fork if it still fits into the bound.
        if arrival is Arrival.UNKNOWN and leasing.continues(state, limits, item_of, result):
            arrival = Arrival.TOO_OLD
            if leasing.may_open(state, limits, result.oldest_version):
                leasing.open_group(state, limits, item_of, result.oldest_version, number=result.group)
                arrival = Arrival.ACCEPTED
        effects.append(JudgedResult(result, arrival))
        if arrival is Arrival.ACCEPTED:
            _accept(state, limits, state.groups[result.group], result, effects)
