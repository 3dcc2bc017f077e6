"""The ledger: a pure state machine that leases samples to workers, accepts or refuses results, and forms batches.

A *group* is the samples of one prompt. A *lease* is a worker's right to produce one of these samples, and a *result* is
the finished sample. A batch consists of complete groups. `apply(event, now_s)` returns the effects of one event, and is
the only way to change anything. There is no clock, socket, file or random source, so the same events give the same
effects. The state, which may hold 10^5 leases, is changed in place and not copied; nobody else has it.

Staleness is the number of versions between the sampling of a token and the training step that consumes it. Two gates
that do not trust each other keep it within the bound:

- *Admission* (`leasing.class_to_open`): a group is opened only while everything that is open could still be consumed
  within the bound (staleness_window.py), within the room for tokens, and within the depth of the pipeline. Where only
  the bound forbids another group, leases of the next version go out early: they travel and queue while the present
  step is trained. They never take a place that the next batch may need.
- *Consumption* (`consumption.form_batch`): the groups with the earliest deadlines are taken first, and a batch is taken
  only if the groups that it leaves behind can still be consumed. Otherwise the trainer *holds*: it waits for the older
  unfinished groups, up to `max_hold_s`, and then drops these and no others. A sample is *lost* if its worker died, left
  or let its lease expire, but not if the connection to all workers was lost. Once only lost samples are missing, the
  hold ends after a fraction of a step: producing them again takes as long as the first time, and the trainer would
  stand still. A generation is never cut because it is long, so that the model is not taught to be brief.

The trainer checks the staleness of each token once more before the optimizer sees it (trainer/learning/gate.py).

Invariants:
- A sample is accepted once. The first valid result wins, whoever holds the lease; a later one is a duplicate.
- Every sample of an open group is done, leased or waiting for a lease. Nothing is forgotten or waits for ever.
- A group that is consumed or dropped gives all its room back at once, and its leases are revoked.
- Each leased sample has room reserved at its largest size, so that its result can always be taken in.
- After `max_attempts` attempts at one sample its group is dropped. The death of a worker is an attempt at the samples
  that it had started, and so is the expiry of a started lease. A sample that only waited in a worker's queue is leased
  again without counting. The last attempt is made alone on its worker, so that a sample that kills its workers can be
  told from those that were generated beside it.
- A sample has one live lease, or two at two workers while the trainer waits for a silent one (hedging.py).
- A worker that lets leases expire, or dies at work, is on probation (`state.LeasingWorker`) until it has delivered as
  much as it has room for.
- Time does not go backwards: an earlier `now_s` counts as the latest one seen.

The events are handled in modules of functions over the state: workers.py (who comes, starts, fails, goes on probation),
results.py (what becomes of a result; acceptance.py says whether it is accepted), leasing.py (which worker gets which
sample), hedging.py (which samples are leased a second time), consumption.py (which groups make a batch), drops.py
(which groups are given up) and evaluation.py.
"""

from typing import assert_never

from periplus.errors import StateError
from periplus.values.policy import Lineage, Policy
from trainer.ledger import consumption, evaluation, hedging, leasing, results, workers
from trainer.ledger.leasing import ItemOf
from trainer.ledger.state import LedgerState
from trainer.ledger.values import (
    EVAL_GROUPS_START,
    AllWorkersLeft,
    BatchWanted,
    ClockTicked,
    Effect,
    EvalAsked,
    Event,
    LeasesStarted,
    LedgerLimits,
    PolicyReached,
    Replayed,
    ResultArrived,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
    merged_grants,
)


class Ledger:
    """The state machine of one fork: events in, effects out (see the module's docstring).

    `start` is the policy that the first batch is trained from. `item_of(group)` gives the index of the problem of a
    training group. `next_group` and `open_groups` continue a restored run: the first group number that was never used,
    and the numbers below it that were opened and not consumed.
    """

    def __init__(
        self,
        limits: LedgerLimits,
        lineage: Lineage,
        start: Policy,
        item_of: ItemOf,
        *,
        next_group: int = 0,
        open_groups: tuple[int, ...] = (),
    ) -> None:
        self.limits = limits
        self._item_of = item_of
        self.state = LedgerState(
            policy=start,
            lineage=lineage,
            next_group=next_group,
            next_eval_group=EVAL_GROUPS_START,
            group_size=limits.group_size,
            reopen=sorted(open_groups),
        )

    @property
    def policy(self) -> Policy:
        """The policy from which the next batch is trained, or from which the present one is being trained."""
        return self.state.policy

    @property
    def open_groups(self) -> tuple[int, ...]:
        """Numbers of the training groups that are opened and not consumed, for a checkpoint.

        A batch that is being trained counts as not consumed: a run that stops before the step is done repeats it.
        """
        opened = (group.number for group in self.state.training_groups())
        return tuple(sorted((*opened, *self.state.in_training, *self.state.reopen)))

    def holds(self, worker_id: str, lease_id: int, group: int, sample: int) -> bool:
        """Return whether the worker holds this lease, and it is of this sample.

        The number of the lease is not enough, because lease numbers repeat from fork to fork.
        """
        held = self.state.held.get(lease_id)
        return held is not None and (held.worker_id, held.lease.group, held.lease.sample) == (worker_id, group, sample)

    @property
    def next_group(self) -> int:
        """The first number of a training group that was never used, for a checkpoint."""
        return self.state.next_group

    def may_want(self, group: int) -> bool:
        """Return whether results of an earlier fork for this training group could still be accepted here."""
        return group in self.state.groups or leasing.may_reopen_number(self.state, self.limits, group)

    def apply(self, event: Event, now_s: float) -> tuple[Effect, ...]:
        """Change the state by one event at the time `now_s`, and return what the caller must do.

        After each event, due leases expire, a batch and an evaluation are completed if they can be, and leases are
        granted.

        Raises: StateError for an event that may not come now: of a worker that has not joined, or for a batch that is
        wanted or done twice. The state is then unchanged.
        """
        state, limits = self.state, self.limits
        effects: list[Effect] = []
        # An event that may not come now raises before anything is changed.
        _check(state, event)
        hedging.note_time(state, now_s)
        match event:
            case WorkerJoined():
                workers.join(state, limits, event, effects)
            case WorkerLeft(worker_id, is_dead):
                workers.leave(state, limits, worker_id, effects, is_dead=is_dead)
            case AllWorkersLeft():
                workers.leave_all(state, limits, effects)
            case RoomOffered(worker_id, num_samples):
                # The room decides the worker's place among those that get leases.
                state.workers[worker_id].room = num_samples
                state.seat(worker_id)
            case PolicyReached(worker_id, policy):
                worker = state.workers[worker_id]
                worker.policy, worker.is_silent = policy, worker.is_silent and not worker.is_idle
                # A worker whose weights were too old may get leases again.
                workers.note_who_keeps_up(state, limits, worker_id)
            case LeasesStarted(worker_id, lease_ids, policy):
                workers.start(state, limits, worker_id, lease_ids, policy)
            case SampleFailed(worker_id, lease_id, why):
                workers.fail(state, limits, worker_id, lease_id, why, effects)
            case ResultArrived(result):
                results.take_result(state, limits, result, effects)
            case Replayed(replayed):
                results.replay(state, limits, self._item_of, replayed, effects)
            case EvalAsked(items, is_background):
                evaluation.open_evaluation(state, items, is_background=is_background)
            case BatchWanted():
                state.batch_wanted, state.wanted_since_s = True, state.now_s
            case StepDone():
                consumption.finish_step(state, limits)
            case ClockTicked():
                pass
            case _:
                assert_never(event)
        # After every event, in this order: expired leases free samples and workers, a batch that is taken frees room
        # for groups, and leases are granted from all that is free then. What is left of it serves hedges.
        workers.expire(state, limits, effects)
        consumption.form_batch(state, limits, effects)
        evaluation.finish_evaluation(state, effects)
        if isinstance(event, ClockTicked):
            hedging.note_silence(state, limits)
        leasing.grant_leases(state, limits, self._item_of, effects)
        if isinstance(event, ClockTicked):
            hedging.hedge(state, limits, effects)
        state.forget_ended_deadlines()
        return merged_grants(effects)


def _check(state: LedgerState, event: Event) -> None:
    """Check that the event may come in this state. Raises: StateError if not."""
    match event:
        case RoomOffered(worker_id) | PolicyReached(worker_id) | LeasesStarted(worker_id) | SampleFailed(worker_id):
            if worker_id not in state.workers:
                raise StateError(f"worker {worker_id!r} sent a message before its hello; it must connect again")
        case BatchWanted():
            if state.batch_wanted or state.training_since_s is not None:
                raise StateError(
                    f"a second batch is wanted at policy {state.policy}, where one is wanted or in training; report "
                    "that step done first"
                )
        case StepDone():
            if state.training_since_s is None:
                raise StateError(
                    f"a step is reported done at policy {state.policy}, but no batch is in training; ask for one first"
                )
        case EvalAsked():
            if state.evaluation is not None:
                raise StateError(
                    f"an evaluation is wanted, but one of {len(state.evaluation)} problems still runs; wait for it"
                )
        case _:
            pass
