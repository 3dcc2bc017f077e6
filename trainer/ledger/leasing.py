"""Which worker produces which sample: leases are granted, ended and granted again, and new groups are opened.

A lease is a worker's right to produce one sample. A group (the samples of one prompt) is opened only when a worker has
room for it. Work goes out in this order:

1. samples of an evaluation for which the trainer waits;
2. samples whose lease was lost. Groups that were leased earlier cannot be consumed without them, so they are granted
   at once, even to a trusted worker that has no room;
3. samples of groups that are open already;
4. samples of a new group of the present version;
5. samples of the next version (*early* leases), which a worker may queue but not start yet;
6. samples of an evaluation in the background. They take no room, so that they keep no other work from a worker, and a
   worker holds few of them at a time (`BACKGROUND_SHARE`), so that they also go on where all workers are busy.

Within each kind the worker with the fewest strikes comes first, then the one that will have made soonest what it holds,
then the first by name. That follows from the expected tokens of its leases and from its measured speed; before any is
known, from the share of its room that is free. The samples of a group go to one worker while it has room, because they
share a prompt. Early leases take only free room. Leases that can start now do not count them: otherwise a worker full
of early leases would wait for a step that waits for this worker.

A worker gets no lease while its weights are further behind than the bound. A worker on *probation* (it let a lease
expire or died at work; `state.LeasingWorker`) comes last and holds at most `allowance` leases. Its leases are *trials*:
a worker with fewer strikes that has room and nothing else to do takes the sample over. So a worker that hangs does not
hold up a batch.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from trainer.ledger import acceptance
from trainer.ledger.staleness_window import fits, plus
from trainer.ledger.state import Held, LeasingWorker, LedgerState, SampleGroup
from trainer.ledger.values import Effect, Granted, Lease, LeaseLost, LedgerLimits, Loss, Result, Revoked

ItemOf = Callable[[int], int]
"""Maps the number of a training group to its item, the index of a problem in the environment."""

EVAL, AGAIN, NEW, EARLY = 0, 1, 2, 3
"""Priorities of samples that wait for a lease, most urgent first: evaluation, lost, of an open group, of the next
version."""

BACKGROUND_SHARE = 8
"""A worker holds one lease of an evaluation in the background for so many leases of its room, and at least one. Chosen
by hand: a worker has room for two leases a slot, so a quarter of the slots at most are away from training."""

_ITS_WORKERS_FAULT = (Loss.WORKER_GONE, Loss.WORKER_DIED, Loss.EXPIRED)
"""Losses that are the worker's doing: that the sample is late then says nothing about how long it is."""


# ---- leases end ------------------------------------------------------------------------------------------------------


def end(state: LedgerState, result: Result) -> Held | None:
    """End the live lease that this result answers, and return it; None if there is none.

    The lease must be of the same sample and the same worker: lease numbers alone repeat from fork to fork.
    """
    held = state.held.get(result.lease_id)
    answered = (result.group, result.sample, result.worker_id)
    if held is None or (held.lease.group, held.lease.sample, held.worker_id) != answered:
        return None
    release(state, result.lease_id)
    return held


def release(state: LedgerState, lease_id: int) -> Held:
    """Remove a lease from its group, its worker and the table of leases, and return it. Its room is free again."""
    held = state.held.pop(lease_id)
    worker = state.workers[held.worker_id]
    del worker.leases[lease_id]
    if lease_id in worker.early:
        worker.early.remove(lease_id)
        worker.early_tokens = worker.early_tokens - held.tokens if worker.early else 0.0
    else:
        worker.expected_tokens = 0.0 if worker.is_idle else worker.expected_tokens - held.tokens
    worker.background.discard(lease_id)
    state.trials.pop(lease_id, None)
    group, sample = state.groups[held.lease.group], held.lease.sample
    hedge_id = group.hedges.pop(sample, None)
    if hedge_id is None:
        del group.leases[sample]
    elif hedge_id != lease_id:  # the hedge goes on in its place
        group.leases[sample], state.held[hedge_id].is_hedge = hedge_id, False
    state.seat(held.worker_id)
    return held


def lose(state: LedgerState, lease_id: int, why: Loss, effects: list[Effect]) -> SampleGroup:
    """End a lease without a result, put its sample back among those that wait for a lease, and return its group."""
    held = release(state, lease_id)
    effects.append(LeaseLost(held.lease, held.worker_id, why))
    group = state.groups[held.lease.group]
    # A hold for lost samples ends earlier than one for samples that merely take long.
    if why in _ITS_WORKERS_FAULT and not held.is_hedge:
        group.lost.add(held.lease.sample)
    wait_again(state, group, held.lease.sample)
    return group


def wait_again(state: LedgerState, group: SampleGroup, sample: int) -> None:
    """Put a sample whose lease is over back among those that wait for a lease, unless another lease of it goes on."""
    if others := group.leases_of(sample):
        state.set_oldest(group, sample, min(state.held[lease_id].oldest for lease_id in others))
        return
    state.set_oldest(group, sample, None)
    if group.purpose is Purpose.EVAL and state.is_background:
        heapq.heappush(state.idle_waiting, (group.number, sample))
        return
    may_start = group.version <= state.policy.version
    priority = EVAL if group.purpose is Purpose.EVAL else AGAIN if may_start else EARLY
    heapq.heappush(state.waiting, (priority, group.number, sample))


def overdue(state: LedgerState) -> tuple[int, ...]:
    """Return the leases whose time is over, by deadline, and take their entries off the heap of deadlines."""
    return tuple(iter(state.pop_overdue, None))


def _is_waiting(state: LedgerState, number: int, sample: int) -> bool:
    group = state.groups.get(number)
    return group is not None and sample not in group.done and sample not in group.leases


# ---- groups open -----------------------------------------------------------------------------------------------------


def open_group(
    state: LedgerState, limits: LedgerLimits, item_of: ItemOf, version: int, *, number: int | None = None
) -> SampleGroup:
    """Open a training group in class `version` and return it; its samples then wait for leases.

    `number` is that of a group of an earlier fork. Without it, the smallest number that the earlier fork left open is
    taken, else the next one that was never used.
    """
    if number is None:
        number = heapq.heappop(state.reopen) if state.reopen else state.next_group
    # Removing from the middle breaks the heap's order, so restore it.
    elif number in state.reopen:
        state.reopen.remove(number)
        heapq.heapify(state.reopen)
    while state.next_group <= number:  # numbers that are passed over stay free to be opened later
        if state.next_group < number:
            heapq.heappush(state.reopen, state.next_group)
        state.next_group += 1
    group = SampleGroup(
        number=number,
        item=item_of(number),
        purpose=Purpose.TRAIN,
        size=limits.group_size,
        opened_s=state.now_s,
        version=version,
    )
    state.put_group(group, limits.max_sample_tokens)
    for sample in range(group.size):
        # All samples wait for a lease; each entry is taken off the heap when its turn comes.
        heapq.heappush(state.waiting, (NEW if version <= state.policy.version else EARLY, number, sample))
    return group


def continues(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, result: Result) -> bool:
    """Return whether a result of an earlier fork belongs to a group that this fork may still open."""
    return (
        result.purpose is Purpose.TRAIN
        and may_reopen_number(state, limits, result.group)
        and 0 <= result.sample < limits.group_size
        and result.item == item_of(result.group)
        and acceptance.is_fit(state, limits, result)
    )


def may_open(state: LedgerState, limits: LedgerLimits, version: int) -> bool:
    """Return whether one more group of class `version` fits into the bound, the steps left and the room for tokens."""
    return _has_room(state, limits) and _admits(state, limits, version)


def may_reopen_number(state: LedgerState, limits: LedgerLimits, number: int) -> bool:
    """Return whether this fork may still open the group, which an earlier fork may have opened.

    It is one of those that the earlier fork left open, or one of the next unused numbers, as many as a fork may have
    open at a time.
    """
    # What the bound allows to be open, and one batch more that may be in training.
    most_open = limits.groups_per_step * (limits.bound + 2)
    return number in state.reopen or state.next_group <= number < state.next_group + most_open


def class_to_open(state: LedgerState, limits: LedgerLimits) -> int | None:
    """Return the class in which one more group may be opened now, or None. This is the admission gate.

    The class is the present version if the bound and the depth of the pipeline allow it. Else it is the next version,
    so that the leases are at their workers when that version exists. Early groups cannot be produced yet. So they may
    not take a place that the next batch may need: neither in the depth of the pipeline, nor in the room for tokens, in
    case that a group has to be replaced.
    """
    if not _has_room(state, limits):
        return None
    most = max_groups(state, limits)
    now = state.policy.version
    # Early groups do not count against the depth of the present version.
    num_early = state.classes[now + 1]
    if state.num_train_groups - num_early < most and _admits(state, limits, now):
        return now
    # Early groups are opened only where the depth allows all that the bound allows, and for one step at most.
    full = limits.groups_per_step * (limits.bound + 1)
    largest = (state.num_train_groups + 1) * limits.group_size * limits.max_sample_tokens
    may_early = most >= full and num_early < limits.groups_per_step and largest <= limits.intake_tokens
    return now + 1 if may_early and _admits(state, limits, now + 1) else None


def max_groups(state: LedgerState, limits: LedgerLimits) -> float:
    """Return the depth of the pipeline: the largest number of training groups of the present version or older.

    Without a depth in the job it is measured. Groups arrive at the rate at which steps take them, and each is open for
    its measured time (mean plus two deviations). Little's law gives the number that is open. One batch more waits, so
    that the trainer finds it when a step is done. Before the first measurements it is what the bound allows.
    """
    full = limits.groups_per_step * (limits.bound + 1)
    depth = limits.depth
    if depth is None:
        pace = state.pace
        # Nothing was measured yet, or steps take no time.
        if pace.step_s is None or pace.group_s is None or pace.step_s <= 0.0:
            return full
        depth = 1.0 + (pace.group_s + 2.0 * pace.group_deviation_s) / pace.step_s
    return min(full, depth * limits.groups_per_step)


def _has_room(state: LedgerState, limits: LedgerLimits) -> bool:
    # The last steps need no more groups than they will consume.
    left = (limits.steps - state.next_step) * limits.groups_per_step
    largest = limits.group_size * limits.max_sample_tokens
    return state.num_train_groups < left and state.reserved_tokens + largest <= limits.intake_tokens


def _admits(state: LedgerState, limits: LedgerLimits, version: int) -> bool:
    return fits(
        plus(state.classes, (version,)),
        groups_per_step=limits.groups_per_step,
        bound=limits.bound,
        next_step=state.next_step,
    )


# ---- granting --------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """What is leased next: samples of the first group that waits, or those of a new group of class `opens`."""

    opens: int | None
    is_early: bool  # it may not start at the present version
    is_urgent: bool  # it is granted even if no worker has room


def grant_leases(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, effects: list[Effect]) -> None:
    """Grant all leases that can be granted now, opening groups as needed.

    Then workers with fewer strikes that still have room take over the trials of workers with more.
    """
    _grant_waiting(state, limits, item_of, effects)
    if state.trials and _withdraw_trials(state, effects):
        _grant_waiting(state, limits, item_of, effects)
    _grant_background(state, limits, effects)


def _grant_background(state: LedgerState, limits: LedgerLimits, effects: list[Effect]) -> None:
    """Grant samples of an evaluation in the background, one at a time to the worker that is done soonest."""
    while state.idle_waiting:
        number, sample = state.idle_waiting[0]
        if _is_waiting(state, number, sample):
            able = [seat for seat in state.seats.values() if _takes_background(state, limits, seat[2])]
            if not able:
                return
            worker_id = min(able)[2]
            lease = issue(state, limits, worker_id, state.groups[number], sample)
            effects.append(Granted(worker_id, (lease,)))
        heapq.heappop(state.idle_waiting)


def _takes_background(state: LedgerState, limits: LedgerLimits, worker_id: str) -> bool:
    worker = state.workers[worker_id]
    # When no further step is to come, nothing else needs the worker.
    share = 1 if state.next_step >= limits.steps else BACKGROUND_SHARE
    return not worker.is_late and len(worker.background) < max(1, worker.room // share)


def _grant_waiting(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, effects: list[Effect]) -> None:
    while (work := _next_work(state, limits)) is not None:
        worker_id = _best_worker(state, work)
        if worker_id is None:
            return
        if work.opens is not None:
            open_group(state, limits, item_of, work.opens)
        _grant_group(state, limits, worker_id, work, effects)


def _withdraw_trials(state: LedgerState, effects: list[Effect]) -> int:
    """End the trials that workers with fewer strikes have room for, and return how many were ended."""
    strikes_of = {worker_id: worker.strikes for worker_id, worker in state.workers.items()}
    # One entry for each free place: the strikes of its worker, the most reliable worker's places first.
    most = len(state.trials)
    places = [
        strikes
        for strikes, _, worker_id in sorted(state.seats.values())
        for _ in range(min(most, state.workers[worker_id].free))
    ]
    # Trials that may start now, those of the workers with the most strikes first; each is matched with one place.
    of_now = (state.held[lease_id] for lease_id in state.trials if state.held[lease_id].deadline_s is not None)
    worst_first = sorted(of_now, key=lambda held: (-strikes_of[held.worker_id], held.lease.group, held.lease.sample))
    ended = [held for held, strikes in zip(worst_first, places, strict=False) if strikes < strikes_of[held.worker_id]]
    for held in ended:
        lose(state, held.lease.lease_id, Loss.WITHDRAWN, effects)
        effects.append(Revoked(held.worker_id, (held.lease.lease_id,), still_wanted=True))
    return len(ended)


def _next_work(state: LedgerState, limits: LedgerLimits) -> _Work | None:
    """Return what is leased next, in the order that the module's docstring gives; None if there is nothing."""
    now, first = state.policy.version, _first_waiting(state)
    if first is None:
        version = class_to_open(state, limits)
        return None if version is None else _Work(version, is_early=version > now, is_urgent=False)
    priority, number, _ = first
    is_early = priority == EARLY and state.groups[number].version > now
    # What can start now is better than what must wait for the next version.
    if is_early and class_to_open(state, limits) == now:
        return _Work(now, is_early=False, is_urgent=False)
    return _Work(None, is_early=is_early, is_urgent=priority < NEW)


def _first_waiting(state: LedgerState) -> tuple[int, int, int] | None:
    """Return (priority, group, sample) of the first sample that waits for a lease, or None.

    Outdated entries before it are removed from the heap. A sample whose group has moved to the next version is put back
    as an early one.
    """
    while state.waiting:
        priority, number, sample = first = state.waiting[0]
        if not _is_waiting(state, number, sample):
            heapq.heappop(state.waiting)
        elif priority in (AGAIN, NEW) and state.groups[number].version > state.policy.version:
            heapq.heapreplace(state.waiting, (EARLY, number, sample))
        else:
            return first
    return None


def keeps_up(state: LedgerState, limits: LedgerLimits, worker: LeasingWorker) -> bool:
    """Return whether the worker's weights are at most max(1, bound) versions old and on this trainer's lineage.

    A worker that has not said yet which weights it has counts as up to date: a new one says so once it has them.
    """
    if worker.policy is None:
        return True
    return worker.policy in state.lineage and state.policy.version - worker.policy.version <= max(1, limits.bound)


def _best_worker(state: LedgerState, work: _Work) -> str | None:
    """Return the worker that gets this work, or None if no worker has room for it; see `LedgerState.seats`."""
    seats = state.early_seats if work.is_early else state.seats
    able = seats.values() if work.is_urgent else [seat for seat in seats.values() if seat[1] < 0.0]
    return min(able)[2] if able else None


def _grant_group(state: LedgerState, limits: LedgerLimits, worker_id: str, work: _Work, effects: list[Effect]) -> None:
    """Lease samples of the first waiting group to this worker, as many as it has room for.

    Urgent work goes out one sample at a time to a worker that has no room.
    """
    worker, (priority, number, _) = state.workers[worker_id], state.waiting[0]
    most = max(worker.free_early if work.is_early else worker.free, int(work.is_urgent))
    granted: list[Lease] = []
    while state.waiting and state.waiting[0][:2] == (priority, number) and len(granted) < most:
        _, _, sample = heapq.heappop(state.waiting)
        if _is_waiting(state, number, sample):
            granted.append(issue(state, limits, worker_id, state.groups[number], sample))
    effects.append(Granted(worker_id, tuple(granted)))


def issue(
    state: LedgerState, limits: LedgerLimits, worker_id: str, group: SampleGroup, sample: int, *, hedges: int = 0
) -> Lease:
    """Lease a sample to a worker and return the lease; with `hedges` as a hedge of that live lease."""
    if not group.oldest:
        state.set_oldest(group, sample, None)  # nobody produces any of it: its class rises to the present version
    # A lease never names a version from before this fork began, whose policy belongs to the parent.
    start_at = Policy(state.lineage.fork, max(group.version, state.lineage.first_version))
    worker = state.workers[worker_id]
    # A hedge may outlive the first lease, and is then the attempt after it.
    failures = group.failures[sample] + bool(hedges)
    lease = Lease(
        lease_id=state.next_lease_id,
        group=group.number,
        sample=sample,
        item=group.item,
        start_at=start_at,
        consume_by_version=group.version + limits.bound,
        purpose=group.purpose,
        # The last attempt that is left, but not if it is also the first.
        alone=0 < failures == limits.max_attempts - 1,
        hedges=hedges,
    )
    state.next_lease_id += 1
    if worker.is_idle:
        worker.heard_s = state.now_s  # it had nothing to say before
    held = Held(
        lease,
        worker_id,
        deadline_s=None,
        oldest=start_at.version,
        is_hedge=bool(hedges),
        tokens=state.lengths.expected(group.item),
    )
    state.held[lease.lease_id] = held
    if worker.is_late:
        state.put_on_trial(held)
    worker.leases[lease.lease_id] = None
    if group.purpose is Purpose.EVAL and state.is_background:
        worker.background.add(lease.lease_id)
    # An early lease has no deadline until its version exists.
    if start_at > state.policy:
        worker.early.add(lease.lease_id)
        worker.early_tokens += held.tokens
    else:
        worker.expected_tokens += held.tokens
        state.set_deadline(held, state.now_s + limits.lease_timeout_s)
    state.seat(worker_id)
    (group.hedges if hedges else group.leases)[sample] = lease.lease_id
    state.set_oldest(group, sample, min(state.held[lease_id].oldest for lease_id in group.leases_of(sample)))
    return lease
