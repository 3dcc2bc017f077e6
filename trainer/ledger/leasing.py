"""Who works on what: leases are granted, ended, lost and dealt again; groups open when there is a worker for them.

Order of work: evaluation, then samples whose lease was lost (nothing that was leased before can be consumed without
them, so they go out whatever room there is), then groups that are open already, then new ones, then those of the next
version. Within each: the worker with the most room, its free share counted, ties by name. A group's samples go to one
worker while it has room, for they share a prompt.
Leases of the next version take only room that is free, but what can start now does not count them: a worker full of
them would else wait for a step that waits for it.
A worker gets nothing while its weights are further behind than the bound. One on probation (state.py: Worker) comes
last, and never gets more leases than its allowance. What it has got is a trial: a worker with fewer strikes that has
room and nothing else to do takes the sample over, so that a worker that hangs holds up no batch.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from trainer.ledger import admission
from trainer.ledger.state import Held, LeasingWorker, LedgerState, SampleGroup
from trainer.ledger.values import Effect, Granted, Lease, LeaseLost, LedgerLimits, Loss, Result, Revoked
from trainer.ledger.window import fits, plus

ItemOf = Callable[[int], int]

EVAL, AGAIN, NEW, EARLY = 0, 1, 2, 3
"""Priorities of waiting samples."""

_ITS_WORKERS_FAULT = (Loss.WORKER_GONE, Loss.WORKER_DIED, Loss.EXPIRED)
"""A sample that was lost so is produced again through no length of its own."""


# ---- leases end ------------------------------------------------------------------------------------------------------


def end(state: LedgerState, result: Result) -> Held | None:
    """The live lease of its sender that this result answers, ended: numbers alone repeat from fork to fork."""
    held = state.held.get(result.lease_id)
    answered = (result.group, result.sample, result.worker_id)
    if held is None or (held.lease.group, held.lease.sample, held.worker_id) != answered:
        return None
    release(state, result.lease_id)
    return held


def release(state: LedgerState, lease_id: int) -> Held:
    """The lease is over: it takes no room any more."""
    held = state.held.pop(lease_id)
    worker = state.workers[held.worker_id]
    del worker.leases[lease_id]
    worker.early.discard(lease_id)
    state.trials.pop(lease_id, None)
    del state.groups[held.lease.group].leases[held.lease.sample]
    state.seat(held.worker_id)
    return held


def lose(state: LedgerState, lease_id: int, why: Loss, effects: list[Effect]) -> SampleGroup:
    """The lease ended without its sample, which waits for another."""
    held = release(state, lease_id)
    effects.append(LeaseLost(held.lease, held.worker_id, why))
    group = state.groups[held.lease.group]
    if why in _ITS_WORKERS_FAULT:
        group.lost.add(held.lease.sample)
    wait_again(state, group, held.lease.sample)
    return group


def wait_again(state: LedgerState, group: SampleGroup, sample: int) -> None:
    """The sample, whose lease is over, waits for another."""
    state.set_oldest(group, sample, None)
    may_start = group.version <= state.policy.version
    priority = EVAL if group.purpose is Purpose.EVAL else AGAIN if may_start else EARLY
    heapq.heappush(state.waiting, (priority, group.number, sample))


def overdue(state: LedgerState) -> tuple[int, ...]:
    """The leases whose time is over, in the order of their deadlines; their entries leave the heap."""
    found: list[int] = []
    state.forget_outdated_deadlines()
    while state.deadlines and state.deadlines[0][0] <= state.now_s:
        found.append(heapq.heappop(state.deadlines)[1])
        state.forget_outdated_deadlines()
    return tuple(found)


def _is_waiting(state: LedgerState, number: int, sample: int) -> bool:
    group = state.groups.get(number)
    return group is not None and sample not in group.done and sample not in group.leases


# ---- groups open -----------------------------------------------------------------------------------------------------


def open_group(
    state: LedgerState, limits: LedgerLimits, item_of: ItemOf, version: int, *, number: int | None = None
) -> SampleGroup:
    """Open the next training group, or this one of an earlier fork, in class `version`; its samples wait."""
    if number is None:
        number = heapq.heappop(state.reopen) if state.reopen else state.next_group
    elif number in state.reopen:
        state.reopen.remove(number)
        heapq.heapify(state.reopen)
    while state.next_group <= number:
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
        heapq.heappush(state.waiting, (NEW if version <= state.policy.version else EARLY, number, sample))
    return group


def continues(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, result: Result) -> bool:
    """Whether a result of an earlier fork is one of a group that this fork has yet to open."""
    return (
        result.purpose is Purpose.TRAIN
        and may_reopen_number(state, limits, result.group)
        and 0 <= result.sample < limits.group_size
        and result.item == item_of(result.group)
        and admission.is_fit(state, limits, result)
    )


def may_open(state: LedgerState, limits: LedgerLimits, version: int) -> bool:
    """Whether one more group of this class can be consumed within the bound, the steps and the room for tokens."""
    return _has_room(state, limits) and _admits(state, limits, version)


def may_reopen_number(state: LedgerState, limits: LedgerLimits, number: int) -> bool:
    """Whether the group is not open, and not finished, and could have been opened by an earlier fork."""
    most_open = limits.groups_per_step * (limits.bound + 2)
    return number in state.reopen or state.next_group <= number < state.next_group + most_open


def class_to_open(state: LedgerState, limits: LedgerLimits) -> int | None:
    """Admission: the class in which one more group may be opened now, or None.

    The present version if the bound allows it; else the next one, so that its leases travel early. What is early cannot
    be produced yet, so it takes no place that the next batch may need: neither of the depth, nor, if a group is
    replaced, of the room for tokens.
    """
    if not _has_room(state, limits):
        return None
    most = max_groups(state, limits)
    now = state.policy.version
    num_early = state.classes[now + 1]
    if state.num_train_groups - num_early < most and _admits(state, limits, now):
        return now
    full = limits.groups_per_step * (limits.bound + 1)
    largest = (state.num_train_groups + 1) * limits.group_size * limits.max_sample_tokens
    may_early = most >= full and num_early < limits.groups_per_step and largest <= limits.intake_tokens
    return now + 1 if may_early and _admits(state, limits, now + 1) else None


def max_groups(state: LedgerState, limits: LedgerLimits) -> float:
    """The depth of the pipeline in groups: what a step takes, and what is produced while one is trained.

    Groups arrive at the rate at which steps take them, and each is under way for its measured time: by Little's law
    that many are open, and one batch more waits, so that the trainer finds it when it is done.
    """
    full = limits.groups_per_step * (limits.bound + 1)
    depth = limits.depth
    if depth is None:
        pace = state.pace
        if pace.step_s is None or pace.group_s is None or pace.step_s <= 0.0:
            return full
        depth = 1.0 + (pace.group_s + 2.0 * pace.group_deviation_s) / pace.step_s
    return min(full, depth * limits.groups_per_step)


def _has_room(state: LedgerState, limits: LedgerLimits) -> bool:
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


# ---- dealing ---------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """What is leased next: samples that wait, or those of a group that is opened in class `opens`."""

    opens: int | None
    is_early: bool  # it may not start at the present version
    is_urgent: bool  # it goes out whatever room there is


def deal(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, effects: list[Effect]) -> None:
    """Grant what can be granted now; then let better workers that have room take over what is out on trial."""
    _deal_waiting(state, limits, item_of, effects)
    if state.trials and _withdraw_trials(state, effects):
        _deal_waiting(state, limits, item_of, effects)


def _deal_waiting(state: LedgerState, limits: LedgerLimits, item_of: ItemOf, effects: list[Effect]) -> None:
    while (work := _next_work(state, limits)) is not None:
        worker_id = _roomiest(state, work)
        if worker_id is None:
            return
        if work.opens is not None:
            open_group(state, limits, item_of, work.opens)
        _grant_group(state, limits, worker_id, work, effects)


def _withdraw_trials(state: LedgerState, effects: list[Effect]) -> int:
    """End the trials that workers with fewer strikes have room for, those of the worst first; returns how many."""
    strikes_of = {worker_id: worker.strikes for worker_id, worker in state.workers.items()}
    most = len(state.trials)
    places = [n for n, _, who in sorted(state.seats.values()) for _ in range(min(most, state.workers[who].free))]
    of_now = (state.held[lease_id] for lease_id in state.trials if state.held[lease_id].deadline_s is not None)
    worst_first = sorted(of_now, key=lambda x: (-strikes_of[x.worker_id], x.lease.group, x.lease.sample))
    ended = [held for held, n in zip(worst_first, places, strict=False) if n < strikes_of[held.worker_id]]
    for held in ended:
        lose(state, held.lease.lease_id, Loss.WITHDRAWN, effects)
        effects.append(Revoked(held.worker_id, (held.lease.lease_id,)))
    return len(ended)


def _next_work(state: LedgerState, limits: LedgerLimits) -> _Work | None:
    now, first = state.policy.version, _first_waiting(state)
    if first is None:
        version = class_to_open(state, limits)
        return None if version is None else _Work(version, is_early=version > now, is_urgent=False)
    priority, number, _ = first
    is_early = priority == EARLY and state.groups[number].version > now
    if is_early and class_to_open(state, limits) == now:
        return _Work(now, is_early=False, is_urgent=False)
    return _Work(None, is_early=is_early, is_urgent=priority < NEW)


def _first_waiting(state: LedgerState) -> tuple[int, int, int] | None:
    """The first sample that waits for a lease, what is outdated before it forgotten."""
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
    """Weights unknown count as kept up: a newcomer says what it has once it has it. Those of a dead branch do not."""
    if worker.policy is None:
        return True
    return worker.policy in state.lineage and state.policy.version - worker.policy.version <= max(1, limits.bound)


def _roomiest(state: LedgerState, work: _Work) -> str | None:
    seats = state.early_seats if work.is_early else state.seats
    able = seats.values() if work.is_urgent else [seat for seat in seats.values() if seat[1] < 0.0]
    return min(able)[2] if able else None


def _grant_group(state: LedgerState, limits: LedgerLimits, worker_id: str, work: _Work, effects: list[Effect]) -> None:
    """Lease waiting samples of the first waiting group to this worker; one at a time if it has no room for them."""
    worker, (priority, number, _) = state.workers[worker_id], state.waiting[0]
    most = max(worker.free_early if work.is_early else worker.free, int(work.is_urgent))
    granted: list[Lease] = []
    while state.waiting and state.waiting[0][:2] == (priority, number) and len(granted) < most:
        _, _, sample = heapq.heappop(state.waiting)
        if _is_waiting(state, number, sample):
            granted.append(_issue(state, limits, worker_id, state.groups[number], sample))
    effects.append(Granted(worker_id, tuple(granted)))


def _issue(state: LedgerState, limits: LedgerLimits, worker_id: str, group: SampleGroup, sample: int) -> Lease:
    if not group.oldest:
        state.set_oldest(group, sample, None)  # nothing of it is being produced: it is as young as the present version
    start_at = Policy(state.lineage.fork, max(group.version, state.lineage.first_version))
    failures, worker = group.failures[sample], state.workers[worker_id]
    lease = Lease(
        lease_id=state.next_lease_id,
        group=group.number,
        sample=sample,
        item=group.item,
        start_at=start_at,
        consume_by_version=group.version + limits.bound,
        purpose=group.purpose,
        alone=0 < failures == limits.max_attempts - 1,
    )
    state.next_lease_id += 1
    held = Held(lease=lease, worker_id=worker_id, deadline_s=None)
    state.held[lease.lease_id] = held
    if worker.is_late:
        state.put_on_trial(held)
    worker.leases[lease.lease_id] = None
    if start_at > state.policy:
        worker.early.add(lease.lease_id)
    else:
        state.set_deadline(held, state.now_s + limits.lease_timeout_s)
    state.seat(worker_id)
    group.leases[sample] = lease.lease_id
    state.set_oldest(group, sample, start_at.version)
    return lease
