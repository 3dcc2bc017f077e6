"""The ledger: a pure state machine that leases samples to workers, accepts or refuses results, and forms batches.

A *group* is the samples of one prompt. A *lease* is a worker's right to produce one of these samples, and a *result* is
the finished sample. A batch consists of complete groups. `apply(event, now_s)` returns the effects of one event, and is
the only way to change anything. There is no clock, socket, file or random source, so the same events give the same
effects. The state, which may hold 10^5 leases, is changed in place and not copied; nobody else has it.

Staleness is the number of versions between the sampling of a token and the training step that consumes it. Two gates
that do not trust each other keep it within the bound:

- *Admission* (`leasing.class_to_open`): a group is opened only while everything that is open could still be consumed
  within the bound (window.py), within the room for tokens, and within the depth of the pipeline. Where only the bound
  forbids another group, leases of the next version go out early: they travel and queue while the present step is
  trained. They never take a place that the next batch may need.
- *Consumption* (`_form_batch`): the groups with the earliest deadlines are taken first, and a batch is taken only if
  the groups that it leaves behind can still be consumed. Otherwise the trainer *holds*: it waits for the older
  unfinished groups, up to `max_hold_s`, and then drops these and no others. A sample is *lost* if its worker died or
  let its lease expire. Once only lost samples are missing, the hold ends after a fraction of a step: producing them
  again takes as long as the first time, and the trainer would stand still. A generation is never cut because it is
  long, so that the model is not taught to be brief.

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
- A worker that lets leases expire, or dies at work, is on probation (`state.LeasingWorker`) until it has delivered as
  much as it has room for.
- Time does not go backwards: an earlier `now_s` counts as the latest one seen.

leasing.py decides which worker gets which sample, and admission.py decides which results are accepted.
"""

from itertools import islice
from typing import assert_never

from periplus.errors import StateError
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import Purpose
from trainer.ledger import admission, leasing
from trainer.ledger.leasing import ItemOf
from trainer.ledger.state import Held, LeasingWorker, LedgerState, SampleGroup
from trainer.ledger.values import (
    EVAL_GROUPS_START,
    Arrival,
    BatchReady,
    BatchWanted,
    ClockTicked,
    Drop,
    Effect,
    EvalAsked,
    EvalReady,
    Event,
    GroupDropped,
    Holding,
    JudgedResult,
    LeasesStarted,
    LedgerLimits,
    Loss,
    PolicyReached,
    Replayed,
    Result,
    ResultArrived,
    Revoked,
    RoomOffered,
    SampleFailed,
    StepDone,
    WorkerJoined,
    WorkerLeft,
    merged_grants,
)
from trainer.ledger.window import excess, without_oldest

DOUBTED_KEPT = 1 << 12
"""Number of workers on probation that are remembered after they left; a forgotten one is trusted when it comes again.
Chosen by hand, as large as MAX_SENDERS of periplus/values/transport_keys.py."""

DROPPED_KEPT = 1 << 16
"""Number of dropped groups that are remembered, so that a late result can be told from a duplicate. Chosen by hand."""

LOST_HOLD_STEPS = 0.5
"""How long a hold goes on when only lost samples are missing, in mean durations of a training step.

Simulated with one worker in ten dying each hour (the worst case of bench/staleness.py, docs/design/0003-ledger.md), 0.5
discards 0.5 % of the tokens. 0.25 discards 0.7 % and keeps the trainer 1 % busier; 0.75 discards 0.4 % and keeps it
0.5 % less busy."""


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

    def next_due_s(self) -> float | None:
        """Return when time alone changes something: a deadline of a lease or the end of a hold; None if nothing is due.

        An event, such as ClockTicked, must be applied then or a little later.
        """
        deadlines_s = map(self.state.deadline_of, self.state.held.values())
        due = [deadline_s for deadline_s in deadlines_s if deadline_s is not None]
        if (until_s := self._hold_until_s()) is not None:
            due.append(until_s)
        return min(due, default=None)

    def apply(self, event: Event, now_s: float) -> tuple[Effect, ...]:
        """Change the state by one event at the time `now_s`, and return what the caller must do.

        After each event, due leases expire, a batch and an evaluation are completed if they can be, and leases are
        granted.

        Raises: StateError for an event that may not come now: of a worker that has not joined, or for a batch that is
        wanted or done twice. The state is then unchanged.
        """
        state = self.state
        effects: list[Effect] = []
        # An event that may not come now raises before anything is changed.
        _check(state, event)
        state.now_s = max(state.now_s, now_s)
        match event:
            case WorkerJoined(worker_id, epoch):
                # A worker that joins again holds none of its earlier leases. With another epoch, or without one, its
                # process died.
                before = state.workers.get(worker_id)
                self._leave(worker_id, effects, is_dead=before is None or not epoch or before.epoch != epoch)
                allowance, strikes = state.doubted.pop(worker_id, (None, 0))
                state.workers[worker_id] = LeasingWorker(epoch=epoch, allowance=allowance, strikes=strikes)
            case WorkerLeft(worker_id, is_dead):
                self._leave(worker_id, effects, is_dead=is_dead)
            case RoomOffered(worker_id, num_samples):
                # The room decides the worker's place among those that get leases.
                state.workers[worker_id].room = num_samples
                state.seat(worker_id)
            case PolicyReached(worker_id, policy):
                state.workers[worker_id].policy = policy
                # A worker whose weights were too old may get leases again.
                self._see_who_keeps_up(worker_id)
            case LeasesStarted(worker_id, lease_ids, policy):
                self._started(worker_id, lease_ids, policy)
            case SampleFailed(worker_id, lease_id, why):
                self._failed(worker_id, lease_id, why, effects)
            case ResultArrived(result):
                self._arrived(result, effects)
            case Replayed(results):
                self._replay(results, effects)
            case EvalAsked(items):
                self._open_eval(items)
            case BatchWanted():
                state.batch_wanted = True
            case StepDone():
                self._step_done()
            case ClockTicked():
                pass
            case _:
                assert_never(event)
        # After every event, in this order: expired leases free samples and workers, a batch that is taken frees room
        # for groups, and leases are granted last, from all that is free then.
        self._expire(effects)
        self._form_batch(effects)
        self._finish_eval(effects)
        leasing.grant_leases(state, self.limits, self._item_of, effects)
        state.forget_ended_deadlines()
        return merged_grants(effects)

    # ---- workers --------------------------------------------------------------------------------------------------

    def _leave(self, worker_id: str, effects: list[Effect], *, is_dead: bool) -> None:
        """End all leases of a worker and forget it. If it died, its started leases count as attempts at their samples
        and put it on probation."""
        state = self.state
        worker = state.workers.get(worker_id)
        if worker is None:
            return
        attempts: list[tuple[SampleGroup, int]] = []
        # All leases go back first, while the worker still exists. Only then are attempts counted, which may drop whole
        # groups.
        for lease_id in list(worker.leases):
            held = state.held[lease_id]
            is_attempt = is_dead and held.is_started
            group = leasing.lose(state, lease_id, Loss.WORKER_DIED if is_attempt else Loss.WORKER_GONE, effects)
            attempts += [(group, held.lease.sample)] if is_attempt else []
        if attempts:
            worker.allowance, worker.strikes = 1, worker.strikes + 1
        del state.workers[worker_id]
        state.seat(worker_id)
        self._remember(worker_id, worker)
        for group, sample in attempts:
            self._count_failure(group, sample, effects)

    def _remember(self, worker_id: str, worker: LeasingWorker) -> None:
        """Let a worker that left on probation come back on probation."""
        if worker.allowance is not None:
            self.state.doubted[worker_id] = worker.allowance, worker.strikes
        if len(self.state.doubted) > DOUBTED_KEPT:
            del self.state.doubted[next(iter(self.state.doubted))]

    def _see_who_keeps_up(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            worker = self.state.workers[worker_id]
            worker.is_behind = not leasing.keeps_up(self.state, self.limits, worker)
            self.state.seat(worker_id)

    def _started(self, worker_id: str, lease_ids: tuple[int, ...], policy: Policy) -> None:
        """Mark leases as started with `policy`, which makes their samples as young as it; their time begins again.

        What is not plausible is ignored: an unknown policy, another worker's lease, a policy older than the lease's.
        """
        state = self.state
        if policy not in state.lineage or policy > state.policy:
            return
        any_started = False
        for lease_id in lease_ids:
            held = state.held.get(lease_id)
            # Also ignored if it started already: its time must begin anew only once.
            if held is None or held.worker_id != worker_id or held.is_started or policy < held.lease.start_at:
                continue
            held.is_started = any_started = True
            state.set_deadline(held, state.now_s + self.limits.lease_timeout_s)
            group = state.groups[held.lease.group]
            # The sample will have no token older than this policy, so its group may become younger.
            state.set_oldest(group, held.lease.sample, policy.version)
        if any_started:
            self._spare(worker_id)

    def _spare(self, worker_id: str) -> None:
        """Begin the time of the worker's leases that are not started anew, since it is evidently at work."""
        self.state.workers[worker_id].spared_until_s = self.state.now_s + self.limits.lease_timeout_s

    def _failed(self, worker_id: str, lease_id: int, why: Loss, effects: list[Effect]) -> None:
        held = self.state.held.get(lease_id)
        if held is None or held.worker_id != worker_id:
            return
        group = leasing.lose(self.state, lease_id, why, effects)
        self._count_failure(group, held.lease.sample, effects)

    def _expire(self, effects: list[Effect]) -> None:
        """End the leases whose time is over, and those that wait behind them in the queues of the same workers.

        The workers go on probation. Leases that may not start yet are kept.
        """
        state = self.state
        late: dict[str, None] = {}
        for lease_id in leasing.overdue(state):
            if (held := state.held.get(lease_id)) is not None:  # else its group was dropped for another of these
                late[held.worker_id] = None
                self._end_expired(held, effects)
        for worker_id in late:
            worker = state.workers[worker_id]
            worker.allowance, worker.strikes = 1, worker.strikes + 1
            for lease_id in list(worker.leases):
                held = state.held.get(lease_id)
                # A worker that let one lease expire will hardly begin those that wait behind it.
                if held is not None and held.deadline_s is not None and not held.is_started:
                    self._end_expired(held, effects)
            state.seat(worker_id)

    def _end_expired(self, held: Held, effects: list[Effect]) -> None:
        group = leasing.lose(self.state, held.lease.lease_id, Loss.EXPIRED, effects)
        effects.append(
            Revoked(held.worker_id, (held.lease.lease_id,))
        )  # the worker may drop it if it has not started it
        if held.is_started:
            self._count_failure(group, held.lease.sample, effects)

    def _delivered(self, worker_id: str) -> None:
        """Note that a result of the worker was accepted. On probation its allowance rises by one.

        Probation ends with the result after which the allowance would exceed the worker's room.
        """
        worker = self.state.workers.get(worker_id)
        if worker is None:
            return
        self._spare(worker_id)
        if worker.allowance is not None:
            worker.allowance = worker.allowance + 1 if worker.allowance < worker.room else None
            worker.strikes = int(worker.is_late)
            self.state.seat(worker_id)

    def _count_failure(self, group: SampleGroup, sample: int, effects: list[Effect]) -> None:
        """Count an attempt at a sample, and drop the group if it was the last one allowed."""
        if group.number not in self.state.groups:  # it was dropped for another of its samples
            return
        group.failures[sample] += 1
        if group.failures[sample] >= self.limits.max_attempts:
            self._drop(group, Drop.FAILED, effects)

    # ---- results --------------------------------------------------------------------------------------------------

    def _arrived(self, result: Result, effects: list[Effect]) -> None:
        """Accept or refuse a result. A refused one that ends its sender's lease counts as an attempt at the sample."""
        state = self.state
        arrival = admission.classify_result(state, self.limits, result)
        held = leasing.end(state, result)
        effects.append(JudgedResult(result, arrival))
        if arrival is Arrival.ACCEPTED:
            self._accept(state.groups[result.group], result, effects)
            self._delivered(result.worker_id)
        elif held is not None:
            group = state.groups[result.group]
            leasing.wait_again(state, group, result.sample)
            self._count_failure(group, result.sample, effects)

    def _accept(self, group: SampleGroup, result: Result, effects: list[Effect]) -> None:
        """Put a result into its group. A group that is then complete may be dropped because its rewards are equal."""
        state = self.state
        # The first valid result wins, also one whose own lease has ended.
        if (lease_id := group.leases.get(result.sample)) is not None:  # another worker need not produce it any more
            effects.append(Revoked(state.held[lease_id].worker_id, (lease_id,)))
            leasing.release(state, lease_id)
        state.put_result(group, result, result.oldest_version, self.limits.max_sample_tokens)
        if not group.is_whole or group.purpose is not Purpose.TRAIN:
            return
        state.pace.saw_group(state.now_s - group.opened_s)
        if self._is_filtered(group):
            state.num_filtered += 1
            self._drop(group, Drop.FILTERED, effects)

    def _is_filtered(self, group: SampleGroup) -> bool:
        limits = self.limits
        may = limits.filter_uniform and self.state.num_filtered < limits.max_filtered_per_step * limits.groups_per_step
        return may and len({result.reward for result in group.done.values()}) == 1

    def _replay(self, results: tuple[Result, ...], effects: list[Effect]) -> None:
        """Accept the results of an earlier fork that are still young enough, and open their groups again.

        The first result of a group opens it, in the class of that result's oldest version.
        """
        state, limits, item_of = self.state, self.limits, self._item_of
        for result in results:
            arrival = admission.classify_result(state, limits, result)
            # No group of this fork is open for it: open the group of the earlier fork if it still fits into the bound.
            if arrival is Arrival.UNKNOWN and leasing.continues(state, limits, item_of, result):
                arrival = Arrival.TOO_OLD
                if leasing.may_open(state, limits, result.oldest_version):
                    leasing.open_group(state, limits, item_of, result.oldest_version, number=result.group)
                    arrival = Arrival.ACCEPTED
            effects.append(JudgedResult(result, arrival))
            if arrival is Arrival.ACCEPTED:
                self._accept(state.groups[result.group], result, effects)

    def _drop(self, group: SampleGroup, why: Drop, effects: list[Effect]) -> None:
        """Give a group up: revoke its leases, free its room, and remember its number for late results."""
        state = self.state
        results = tuple(group.done[sample] for sample in sorted(group.done))
        for sample in sorted(group.leases):
            lease_id = group.leases[sample]
            effects.append(Revoked(state.held[lease_id].worker_id, (lease_id,)))
            leasing.release(state, lease_id)
        state.remove_group(group, self.limits.max_sample_tokens)
        state.dropped[group.number] = None
        if len(state.dropped) > DROPPED_KEPT:
            del state.dropped[next(iter(state.dropped))]
        # An evaluation goes on without the problem that nobody could produce.
        state.evaluation = state.evaluation and tuple(n for n in state.evaluation if n != group.number)
        effects.append(GroupDropped(group.number, why, results))

    # ---- batches --------------------------------------------------------------------------------------------------

    def _step_done(self) -> None:
        """Raise the version by one. Early leases may now start, so their time counts from here."""
        state = self.state
        assert state.training_since_s is not None
        state.pace.saw_step(state.now_s - state.training_since_s)
        # Nothing is in training now, so `next_step` and `open_groups` are those of the new version.
        state.training_since_s, state.in_training = None, ()
        state.policy = state.policy.next()
        for worker in state.workers.values():
            # In the order of their numbers, so that equal events give equal states.
            for lease_id in sorted(worker.early):
                held = state.held[lease_id]
                state.set_deadline(held, state.now_s + self.limits.lease_timeout_s)
                if worker.is_late:
                    state.put_on_trial(held)
            worker.early.clear()
        self._see_who_keeps_up(*state.workers)

    def _form_batch(self, effects: list[Effect]) -> None:
        """Hand out a batch if one is wanted, complete, and leaves nothing behind that would then be too old.

        This is the consumption gate. Otherwise hold for what is missing, or drop it once the hold is over.
        """
        state, limits = self.state, self.limits
        if not state.batch_wanted:
            return
        if len(state.whole) < limits.groups_per_step:
            # Too few groups are complete for a batch, so nothing waits for older ones yet.
            state.hold_since_s = state.lost_since_s = None
            return
        if (missing := self._missing()) and not self._hold(missing, effects):
            return
        # Earliest deadline first: the oldest complete groups.
        batch = sorted((state.groups[number] for number in state.whole), key=lambda group: group.rank)
        self._take(batch[: limits.groups_per_step], effects)

    def _missing(self) -> list[SampleGroup]:
        """Return the unfinished groups that could not be consumed in time after the next batch, oldest first."""
        state = self.state
        # First look for groups that can be made younger, before any must be given up.
        if self._num_missing() > 0:
            for number in state.idle:  # nobody produces any sample of it yet: it can wait for the next version
                state.set_class(state.groups[number], state.policy.version + 1)
        oldest = (number for version in sorted(state.unfinished) for number in sorted(state.unfinished[version]))
        return [state.groups[number] for number in islice(oldest, self._num_missing())]

    def _num_missing(self) -> int:
        """Return how many groups must be given up so that the rest can be consumed in time after the next batch."""
        state, limits = self.state, self.limits
        left = without_oldest(state.classes, state.whole_classes, limits.groups_per_step)
        return excess(left, groups_per_step=limits.groups_per_step, bound=limits.bound, next_step=state.next_step + 1)

    def _hold(self, missing: list[SampleGroup], effects: list[Effect]) -> bool:
        """Wait for the groups that are missing. Return whether the wait is over; the groups are dropped then."""
        state = self.state
        # The hold begins once; what it waits for may change while it lasts.
        if state.hold_since_s is None:
            state.hold_since_s = state.now_s
            effects.append(Holding(tuple(group.number for group in missing), state.now_s + self.limits.max_hold_s))
        if not all(group.misses_only_lost for group in missing):
            state.lost_since_s = None
        elif state.lost_since_s is None:
            state.lost_since_s = state.now_s
        # Read after `lost_since_s` was set, since a hold for lost samples ends earlier.
        until_s = self._hold_until_s()
        if until_s is not None and state.now_s < until_s:
            return False
        for group in missing:
            self._drop(group, Drop.OVERDUE, effects)
        return True

    def _hold_until_s(self) -> float | None:
        """Return when the present hold ends, or None if there is none."""
        state = self.state
        if state.hold_since_s is None:
            return None
        until_s = state.hold_since_s + self.limits.max_hold_s
        if state.lost_since_s is not None and state.pace.step_s is not None:
            until_s = min(until_s, state.lost_since_s + LOST_HOLD_STEPS * state.pace.step_s)
        return until_s

    def _take(self, batch: list[SampleGroup], effects: list[Effect]) -> None:
        """Hand the groups of a batch out for training and remove them."""
        state = self.state
        results = [group.done[sample] for group in batch for sample in range(group.size)]
        for group in batch:
            state.remove_group(group, self.limits.max_sample_tokens)
        # The next step's counts and holds begin anew.
        state.batch_wanted, state.num_filtered = False, 0
        state.hold_since_s = state.lost_since_s = None
        state.training_since_s = state.now_s
        state.in_training = tuple(group.number for group in batch)
        effects.append(BatchReady(state.policy, tuple(sorted(results, key=lambda r: (r.group, r.sample)))))

    # ---- evaluation -----------------------------------------------------------------------------------------------

    def _open_eval(self, items: tuple[int, ...]) -> None:
        """Open one evaluation group with one sample for each item; it takes no room for tokens."""
        state = self.state
        # Evaluation groups have numbers of their own, which no training group ever reaches.
        numbers = tuple(range(state.next_eval_group, state.next_eval_group + len(items)))
        state.next_eval_group += len(items)
        state.evaluation = numbers
        for number, item in zip(numbers, items, strict=True):
            group = SampleGroup(
                number=number,
                item=item,
                purpose=Purpose.EVAL,
                size=1,
                opened_s=state.now_s,
                version=state.policy.version,
            )
            # They take no room for tokens, so training and evaluation cannot keep each other from opening groups.
            state.put_group(group, 0)
            leasing.wait_again(state, group, 0)

    def _finish_eval(self, effects: list[Effect]) -> None:
        state = self.state
        if state.evaluation is not None and all(state.groups[number].is_whole for number in state.evaluation):
            results = tuple(state.groups[number].done[0] for number in state.evaluation)
            # Each group of an evaluation has one sample, number 0.
            for number in state.evaluation:
                state.remove_group(state.groups[number], 0)
            state.evaluation = None
            effects.append(EvalReady(results))


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
