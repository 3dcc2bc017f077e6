"""What becomes of workers and their leases: who comes, starts, delivers, fails, lets leases expire, and leaves.

A worker that lets a lease expire, or dies while it produces samples, goes on *probation* (`state.LeasingWorker`): it is
allowed one lease, and one more for each result of it that is accepted. A sign of life of a worker, a started lease or a
result, restarts the time of all its leases that wait to be started.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from periplus.values.policy import Policy
from trainer.ledger import drops, hedging, leasing
from trainer.ledger.state import Held, LeasingWorker, LedgerState, SampleGroup
from trainer.ledger.values import Effect, LedgerLimits, Loss, Revoked, WorkerJoined

DOUBTED_KEPT = 1 << 12
"""Number of workers on probation that are remembered after they left; a forgotten one is trusted when it comes again.
Chosen by hand, as large as MAX_SENDERS of periplus/values/transport_keys.py."""


def join(state: LedgerState, limits: LedgerLimits, hello: WorkerJoined, effects: list[Effect]) -> None:
    """Take in a worker that said hello. Leases from before are over; if its process is another one, that one died.

    A worker that left on probation comes back on probation.
    """
    # A worker that joins again holds none of its earlier leases. With another epoch, or without one, its
    # process died.
    worker_id, epoch = hello.worker_id, hello.epoch
    before = state.workers.get(worker_id)
    leave(state, limits, worker_id, effects, is_dead=before is None or not epoch or before.epoch != epoch)
    allowance, strikes = state.doubted.pop(worker_id, (None, 0))
    state.workers[worker_id] = LeasingWorker(epoch=epoch, region=hello.region, allowance=allowance, strikes=strikes)


def leave(state: LedgerState, limits: LedgerLimits, worker_id: str, effects: list[Effect], *, is_dead: bool) -> None:
    """End all leases of a worker and forget it. If it died, its started leases count as attempts at their samples
    and put it on probation."""
    worker = state.workers.get(worker_id)
    if worker is None:
        return
    attempts: list[tuple[SampleGroup, Held]] = []
    # All leases go back first, while the worker still exists. Only then are attempts counted, which may drop whole
    # groups.
    for lease_id in list(worker.leases):
        held = state.held[lease_id]
        is_attempt = is_dead and held.is_started
        group = leasing.lose(state, lease_id, Loss.WORKER_DIED if is_attempt else Loss.WORKER_GONE, effects)
        attempts += [(group, held)] if is_attempt else []
    if attempts:
        worker.allowance, worker.strikes = 1, worker.strikes + 1
    del state.workers[worker_id]
    state.seat(worker_id)
    _remember(state, worker_id, worker)
    for group, held in attempts:
        drops.count_failure(state, limits, group, held, effects)


def leave_all(state: LedgerState, limits: LedgerLimits, effects: list[Effect]) -> None:
    """End all leases of all workers, because the connection to them was lost.

    Their samples do not count as lost (`SampleGroup.lost`): most workers come back at once, and a hold waits for them.
    """
    lost = {number: frozenset(group.lost) for number, group in state.groups.items()}
    # Together, so that nothing is leased to a worker that is about to leave.
    for worker_id in list(state.workers):
        leave(state, limits, worker_id, effects, is_dead=False)
    for number, before in lost.items():
        state.groups[number].lost &= before


def _remember(state: LedgerState, worker_id: str, worker: LeasingWorker) -> None:
    """Let a worker that left on probation come back on probation."""
    if worker.allowance is not None:
        state.doubted[worker_id] = worker.allowance, worker.strikes
    if len(state.doubted) > DOUBTED_KEPT:
        del state.doubted[next(iter(state.doubted))]


def note_who_keeps_up(state: LedgerState, limits: LedgerLimits, *worker_ids: str) -> None:
    """Note for each of these workers whether its weights are so old that it gets no leases."""
    for worker_id in worker_ids:
        worker = state.workers[worker_id]
        worker.is_behind = not leasing.keeps_up(state, limits, worker)
        state.seat(worker_id)


def start(state: LedgerState, limits: LedgerLimits, worker_id: str, lease_ids: tuple[int, ...], policy: Policy) -> None:
    """Mark leases as started with `policy`, which makes their samples as young as it; their time begins again.

    What is not plausible is ignored: an unknown policy, another worker's lease, a policy older than the lease's.
    """
    if policy not in state.lineage or policy > state.policy:
        return
    any_started = False
    for lease_id in lease_ids:
        held = state.held.get(lease_id)
        # Also ignored if it started already: its time must begin anew only once.
        if held is None or held.worker_id != worker_id or held.is_started or policy < held.lease.start_at:
            continue
        held.is_started = any_started = True
        held.oldest = policy.version
        state.set_deadline(held, state.now_s + limits.lease_timeout_s)
        group = state.groups[held.lease.group]
        # The sample will have no token older than this policy, so its group may become younger.
        oldest = min(state.held[each].oldest for each in group.leases_of(held.lease.sample))
        state.set_oldest(group, held.lease.sample, oldest)
    if any_started:
        hedging.hear(state, worker_id, is_result=False)
        _spare(state, limits, worker_id)


def _spare(state: LedgerState, limits: LedgerLimits, worker_id: str) -> None:
    """Begin the time of the worker's leases that are not started anew, since it is evidently at work."""
    state.workers[worker_id].spared_until_s = state.now_s + limits.lease_timeout_s


def fail(
    state: LedgerState, limits: LedgerLimits, worker_id: str, lease_id: int, why: Loss, effects: list[Effect]
) -> None:
    """End a lease whose sample its worker could not produce. Another worker's lease is left alone."""
    held = state.held.get(lease_id)
    if held is None or held.worker_id != worker_id:
        return
    hedging.hear(state, worker_id)
    group = leasing.lose(state, lease_id, why, effects)
    drops.count_failure(state, limits, group, held, effects)


def expire(state: LedgerState, limits: LedgerLimits, effects: list[Effect]) -> None:
    """End the leases whose time is over, and those that wait behind them in the queues of the same workers.

    The workers go on probation. Leases that may not start yet are kept.
    """
    late: dict[str, None] = {}
    for lease_id in leasing.overdue(state):
        if (held := state.held.get(lease_id)) is not None:  # else its group was dropped for another of these
            late[held.worker_id] = None
            _end_expired(state, limits, held, effects)
    for worker_id in late:
        worker = state.workers[worker_id]
        worker.allowance, worker.strikes = 1, worker.strikes + 1
        for lease_id in list(worker.leases):
            held = state.held.get(lease_id)
            # A worker that let one lease expire will hardly begin those that wait behind it.
            if held is not None and held.deadline_s is not None and not held.is_started:
                _end_expired(state, limits, held, effects)
        state.seat(worker_id)


def _end_expired(state: LedgerState, limits: LedgerLimits, held: Held, effects: list[Effect]) -> None:
    group = leasing.lose(state, held.lease.lease_id, Loss.EXPIRED, effects)
    # The worker drops it if it has not started it.
    effects.append(Revoked(held.worker_id, (held.lease.lease_id,), still_wanted=True))
    if held.is_started:
        drops.count_failure(state, limits, group, held, effects)


def deliver(state: LedgerState, limits: LedgerLimits, worker_id: str) -> None:
    """Note that a result of the worker was accepted. On probation its allowance rises by one.

    Probation ends with the result after which the allowance would exceed the worker's room.
    """
    worker = state.workers.get(worker_id)
    if worker is None:
        return
    _spare(state, limits, worker_id)
    if worker.allowance is not None:
        worker.allowance = worker.allowance + 1 if worker.allowance < worker.room else None
        worker.strikes = int(worker.is_late)
        state.seat(worker_id)
