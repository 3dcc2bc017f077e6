"""The consumption gate: which groups make the next batch, and what a batch waits for before it is taken.

The groups with the earliest deadlines are taken first. A batch is taken only if the groups that it leaves behind can
still be consumed within the bound on staleness (staleness_window.py). Otherwise the trainer holds: it waits for the
older unfinished groups, and drops them when the hold is over.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from itertools import islice

from trainer.ledger import drops, workers
from trainer.ledger.staleness_window import excess, without_oldest
from trainer.ledger.state import LedgerState, SampleGroup
from trainer.ledger.values import BatchReady, Drop, Effect, Holding, LedgerLimits

LOST_HOLD_STEPS = 0.5
"""How long a hold goes on when only lost samples are missing, in mean durations of a training step.

Simulated with one worker in ten dying each hour (the worst case of bench/staleness/, docs/design/0003-ledger.md), 0.5
discards 0.5 % of the tokens. 0.25 discards 0.7 % and keeps the trainer 1 % busier; 0.75 discards 0.4 % and keeps it
0.5 % less busy."""


def form_batch(state: LedgerState, limits: LedgerLimits, effects: list[Effect]) -> None:
    """Hand out a batch if one is wanted, complete, and leaves nothing behind that would then be too old.

    This is the consumption gate. Otherwise hold for what is missing, or drop it once the hold is over.
    """
    if not state.batch_wanted:
        return
    if len(state.whole) < limits.groups_per_step:
        # Too few groups are complete for a batch, so nothing waits for older ones yet.
        state.hold_since_s = state.lost_since_s = None
        return
    if (missing := _missing(state, limits)) and not _hold(state, limits, missing, effects):
        return
    # Earliest deadline first: the oldest complete groups.
    batch = sorted((state.groups[number] for number in state.whole), key=lambda group: group.rank)
    _take(state, limits, batch[: limits.groups_per_step], effects)


def _missing(state: LedgerState, limits: LedgerLimits) -> list[SampleGroup]:
    """Return the unfinished groups that could not be consumed in time after the next batch, oldest first."""
    # First look for groups that can be made younger, before any must be given up.
    if _num_missing(state, limits) > 0:
        for number in state.idle:  # nobody produces any sample of it yet: it can wait for the next version
            state.set_class(state.groups[number], state.policy.version + 1)
    return _oldest_unfinished(state, _num_missing(state, limits))


def awaited(state: LedgerState, limits: LedgerLimits) -> list[SampleGroup]:
    """Return the unfinished groups that a wanted batch waits for, oldest first: those of a hold, or for lack of whole
    ones the oldest."""
    too_few = limits.groups_per_step - len(state.whole)
    return _oldest_unfinished(state, max(too_few, _num_missing(state, limits))) if state.batch_wanted else []


def _oldest_unfinished(state: LedgerState, count: int) -> list[SampleGroup]:
    oldest = (number for version in sorted(state.unfinished) for number in sorted(state.unfinished[version]))
    return [state.groups[number] for number in islice(oldest, count)]


def _num_missing(state: LedgerState, limits: LedgerLimits) -> int:
    """Return how many groups must be given up so that the rest can be consumed in time after the next batch."""
    left = without_oldest(state.classes, state.whole_classes, limits.groups_per_step)
    return excess(left, groups_per_step=limits.groups_per_step, bound=limits.bound, next_step=state.next_step + 1)


def _hold(state: LedgerState, limits: LedgerLimits, missing: list[SampleGroup], effects: list[Effect]) -> bool:
    """Wait for the groups that are missing. Return whether the wait is over; the groups are dropped then."""
    # The hold begins once; what it waits for may change while it lasts.
    if state.hold_since_s is None:
        state.hold_since_s = state.now_s
        effects.append(Holding(tuple(group.number for group in missing), state.now_s + limits.max_hold_s))
    if not all(group.misses_only_lost for group in missing):
        state.lost_since_s = None
    elif state.lost_since_s is None:
        state.lost_since_s = state.now_s
    # Read after `lost_since_s` was set, since a hold for lost samples ends earlier.
    until_s = hold_until_s(state, limits)
    if until_s is not None and state.now_s < until_s:
        return False
    for group in missing:
        drops.drop_group(state, limits, group, Drop.OVERDUE, effects)
    return True


def hold_until_s(state: LedgerState, limits: LedgerLimits) -> float | None:
    """Return when the present hold ends, or None if there is none."""
    if state.hold_since_s is None:
        return None
    until_s = state.hold_since_s + limits.max_hold_s
    if state.lost_since_s is not None and state.pace.step_s is not None:
        until_s = min(until_s, state.lost_since_s + LOST_HOLD_STEPS * state.pace.step_s)
    return until_s


def _take(state: LedgerState, limits: LedgerLimits, batch: list[SampleGroup], effects: list[Effect]) -> None:
    """Hand the groups of a batch out for training and remove them."""
    results = [group.done[sample] for group in batch for sample in range(group.size)]
    for group in batch:
        state.remove_group(group, limits.max_sample_tokens)
    # The next step's counts and holds begin anew.
    state.batch_wanted, state.num_filtered = False, 0
    state.hold_since_s = state.lost_since_s = None
    state.training_since_s = state.now_s
    state.in_training = tuple(group.number for group in batch)
    effects.append(BatchReady(state.policy, tuple(sorted(results, key=lambda r: (r.group, r.sample)))))


def finish_step(state: LedgerState, limits: LedgerLimits) -> None:
    """Raise the version by one. Early leases may now start, so their time counts from here."""
    assert state.training_since_s is not None
    state.pace.saw_step(state.now_s - state.training_since_s)
    # Nothing is in training now, so `next_step` and `open_groups` are those of the new version.
    state.training_since_s, state.in_training = None, ()
    state.policy = state.policy.next()
    for worker in state.workers.values():
        # In the order of their numbers, so that equal events give equal states.
        for lease_id in sorted(worker.early):
            held = state.held[lease_id]
            state.set_deadline(held, state.now_s + limits.lease_timeout_s)
            if worker.is_late:
                state.put_on_trial(held)
        if worker.early and worker.is_idle:
            worker.heard_s = state.now_s  # it could start nothing before
        worker.early.clear()
        worker.expected_tokens, worker.early_tokens = worker.expected_tokens + worker.early_tokens, 0.0
    state.measure_speeds()
    workers.note_who_keeps_up(state, limits, *state.workers)
