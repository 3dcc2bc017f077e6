"""Hedges: a sample of a worker that has fallen silent is leased a second time, to another worker.

A region that stands still (cut off, out of disk, paused) would make the whole job stand still until its leases expire,
because a batch needs its oldest samples. A *hedge* is a second lease of such a sample at another worker. The first
valid result wins, and the other is a duplicate.

*Bias.* A sample's noise is a function of (seed, version of the weights, group, sample) and of no worker. If both leases
are served with the same weights on like engines, their texts are equal, and it does not matter which is first. If they
are not, the texts are two draws. The first to come is then not chosen by its length alone: a silent worker is silent
for reasons outside the sample. What is certain in any case: no sample is cut or left out because it is long.

*When a worker is silent.* It holds a lease that may start, and it has started and delivered nothing for longer than

    patience = PATIENCE_S + PATIENCE_FACTOR * quiet_s

`quiet_s` is the worker's own longest time between two such signs, which decays (HALF_LIFE_S). So a slow worker may take
what it usually takes, and a long sample is not overdue while its worker delivers others. A worker that has delivered
nothing yet is not judged, since its first sample may include a warm-up. If no event came for PAUSE_S, it was this
process that stood still, and the silence of all workers counts from then. A silent worker gets no new leases until it
is heard again. If hedges have left it without a lease, it gets some after `lease_timeout_s` at the latest.

*What is hedged.* Only while the trainer waits for a batch or an evaluation, and only with room that is left when all
else has been leased: the samples of silent workers, of the oldest groups first. Each sample is hedged once at most, and
never after a failed attempt, since it may be the sample that makes workers fail. The hedge goes to a worker that is
neither silent nor on probation, and whose weights are new enough to start at once. Regions without silent workers come
first. A hedge that ends without a result is no attempt. If the first lease ends before it, the hedge takes its place
and is a lease as any other.

All functions here change the `LedgerState` in place, and append what must be done outside to `effects`.
"""

from periplus.values.trajectory import Purpose
from trainer.ledger import leasing
from trainer.ledger.state import Held, LeasingWorker, LedgerState
from trainer.ledger.values import Effect, Granted, LedgerLimits

PATIENCE_S = 1.5
"""Seconds of silence that are allowed to the fastest worker. Chosen by hand: above pauses of a busy process or of a
link that resends, and below half of the 5 s for which one region's trouble may stop a job."""

PATIENCE_FACTOR = 1.5
"""Silence that is allowed as a multiple of a worker's longest usual silence. Chosen by hand."""

HALF_LIFE_S = 30.0
"""Seconds in which `quiet_s` halves, so that a warm-up is forgotten; four times `quiet_s` if that is longer, so that a
slow worker's silence is not forgotten before it comes again. Chosen by hand."""

OUTAGE_TEACHES_S = 0.5
"""What a silence of more than twice the patience adds to `quiet_s` at most. It is taken for an outage, after which the
next one should be found as fast; a worker that became this slow for good is learnt in some steps. Chosen by hand."""

PAUSE_S = 3.0
"""Seconds without any event after which this process itself stood still: a clock event comes twice a second."""


def note_time(state: LedgerState, now_s: float) -> None:
    """Advance the time, and note whether this process stood still before."""
    if now_s - state.now_s > PAUSE_S:
        state.awake_s = now_s
    state.now_s = max(state.now_s, now_s)


def silence_s(state: LedgerState, worker: LeasingWorker) -> float:
    """Return for how many seconds the worker has started and delivered nothing."""
    return state.now_s - max(worker.heard_s, state.awake_s)


def hear(state: LedgerState, worker_id: str, *, is_result: bool = True) -> None:
    """Note that a worker started a sample, or with `is_result` that it delivered one or said that it failed."""
    worker = state.workers.get(worker_id)
    if worker is None:
        return
    gap_s, quiet_s = silence_s(state, worker), worker.quiet_s
    if worker.is_idle:
        pass  # it was quiet since it had no work
    elif quiet_s is not None:
        usual_s = quiet_s * 0.5 ** (gap_s / max(HALF_LIFE_S, 4.0 * quiet_s))
        is_outage = gap_s > 2.0 * _patience_s(quiet_s)
        worker.quiet_s = max(usual_s, min(gap_s, quiet_s + OUTAGE_TEACHES_S) if is_outage else gap_s)
    elif is_result:
        worker.quiet_s = gap_s
    else:
        return  # the first silence lasts until the first result
    worker.heard_s = state.now_s
    if worker.is_silent:
        worker.is_silent = False
        state.seat(worker_id)


def _patience_s(quiet_s: float) -> float:
    return PATIENCE_S + PATIENCE_FACTOR * quiet_s


def note_silence(state: LedgerState, limits: LedgerLimits) -> None:
    """Note which workers are silent now."""
    for worker_id, worker in state.workers.items():
        quiet_s, lasted_s = worker.quiet_s, silence_s(state, worker)
        if worker.is_idle:
            is_silent = worker.is_silent and lasted_s < limits.lease_timeout_s
        else:
            is_silent = limits.hedge and quiet_s is not None and lasted_s > _patience_s(quiet_s)
        if is_silent != worker.is_silent:
            worker.is_silent = is_silent
            state.seat(worker_id)


def hedge(state: LedgerState, limits: LedgerLimits, effects: list[Effect]) -> None:
    """Lease samples of silent workers a second time if the trainer waits, oldest first, while others have room."""
    silent = [worker for worker in state.workers.values() if worker.is_silent]
    waits_for_evaluation = state.evaluation is not None and not state.is_background
    if not silent or not (state.batch_wanted or waits_for_evaluation):
        return
    purpose = Purpose.EVAL if waits_for_evaluation else Purpose.TRAIN
    late = [state.held[lease_id] for worker in silent for lease_id in worker.leases]
    late = [held for held in late if held.lease.purpose is purpose and _may_hedge(state, held)]
    troubled = {worker.region for worker in silent}
    for held in sorted(late, key=lambda held: (*state.groups[held.lease.group].rank, held.lease.sample)):
        worker_id = _second_worker(state, held, troubled)
        if worker_id is not None:
            group, sample = state.groups[held.lease.group], held.lease.sample
            group.hedged.add(sample)
            lease = leasing.issue(state, limits, worker_id, group, sample, hedges=held.lease.lease_id)
            effects.append(Granted(worker_id, (lease,)))


def _may_hedge(state: LedgerState, held: Held) -> bool:
    group, sample = state.groups[held.lease.group], held.lease.sample
    return held.deadline_s is not None and sample not in group.hedged and not group.failures[sample]


def _second_worker(state: LedgerState, held: Held, troubled: set[str]) -> str | None:
    """Return the worker that gets the hedge of a lease, or None if none can start it now."""
    able = [
        (state.workers[worker_id].region in troubled, free, worker_id)
        for strikes, free, worker_id in state.seats.values()
        if free < 0.0
        and not strikes
        and worker_id != held.worker_id
        and ((policy := state.workers[worker_id].policy) is None or policy >= held.lease.start_at)
    ]
    return min(able)[2] if able else None
