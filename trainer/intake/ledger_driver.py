"""The functional core around the ledger: it turns messages and frames into events, and effects into what must be done.

    worker's message ---> event ---> ledger ---> effects ---> lines of the audit, messages to workers, batches
    committed frame ----> results --^

The ledger (trainer/ledger/machine.py) decides who produces what and which results count. `LedgerDriver` adds what the
ledger does not know: contents of samples, regions of workers, counts, and which frames must stay on disk. Each method
takes the time and returns what must be done, in this order; the shell (ledger_service.py) does it. There is no clock,
file, socket or logger here.

Invariants:
- Each sample that came in is settled once: when it is refused, abandoned, dropped, consumed or used in an evaluation.
- A worker with another tokenizer or model config never joins.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from periplus.audit.records import AdmissionVerdict
from periplus.errors import PeriplusError, WireError
from periplus.job.samples.reward_parts import reward_failures_of
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason, Trajectory
from trainer.intake.committed import Committed, KeptTrajectory
from trainer.intake.effects import EvaluationDone, EventLogged, IntakeEffect, LedgerBatch, LineWritten
from trainer.intake.entries import drop_entry, lease_entry, lost_entry, result_entry
from trainer.intake.frame_retention import Retention
from trainer.intake.held_trajectories import HeldTrajectories
from trainer.intake.messages import (
    DepartureReceived,
    FailureReceived,
    HelloReceived,
    LedgerMessage,
    ProofReceived,
)
from trainer.intake.tally import RemoteBytes, Tally
from trainer.intake.waiting import BatchWait, batch_wait
from trainer.ledger import values
from trainer.ledger.machine import Ledger
from trainer.ledger.values import Arrival, Lease, Result

WORKERS_KNOWN = 1 << 14
"""Number of workers whose region is remembered; those that connected longest ago are forgotten first. Chosen by hand,
far above the number of workers of a job."""

HEDGED_KEPT = 1 << 14
"""Number of leases of hedged samples that are remembered, to count the results that came second. Chosen by hand."""


class LedgerDriver:
    """The ledger of one trainer in one fork, with what must be known beside it.

    `bundle_digest` identifies the tokenizer and model config that each worker must have. `home_region` is the trainer's
    own. `regions` maps the workers that were seen last to their regions. `outcome_of` tells by what the samples of a
    group are compared, if groups are filtered.
    """

    def __init__(
        self,
        ledger: Ledger,
        retention: Retention,
        *,
        bundle_digest: bytes,
        home_region: str,
        outcome_of: Callable[[Trajectory], float | None] = lambda trajectory: trajectory.reward,
    ) -> None:
        self.ledger = ledger
        self._retention = retention
        self.regions: dict[str, str] = {}
        self._bundle_digest = bundle_digest
        self._home_region = home_region
        self._held = HeldTrajectories(outcome_of)
        self._tally = Tally()
        self._remote = RemoteBytes()
        self._hedged: dict[tuple[int, int, int], None] = {}  # (lease, group, sample) of hedges and of what they hedge

    @property
    def policy(self) -> Policy:
        """The policy from which the next batch is trained, or from which the present one is being trained."""
        return self.ledger.policy

    # ---- what the trainer tells ----------------------------------------------------------------------------------

    def replay(
        self, frames: Iterable[tuple[Position, int, Sequence[KeptTrajectory]]], now_s: float
    ) -> tuple[IntakeEffect, ...]:
        """Give the ledger what earlier forks kept on disk and did not consume. To be called before any message.

        Each of `frames` is a position in the store, a size in bytes and the frame's training trajectories.
        """
        version = self.policy.version
        results: list[Result] = []
        for position, num_bytes, kept in frames:
            # Only what may still be trained on is open. The other samples of a frame count as settled, so they do not
            # keep it.
            found = [each for each in kept if self.ledger.may_want(each.trajectory.group)]
            self._retention.add(position, num_bytes, len(found), version)
            results += [self._held.hold(each) for each in found]
        return self._applied(values.Replayed(tuple(results)), now_s) if results else ()

    def want_batch(self, now_s: float) -> tuple[IntakeEffect, ...]:
        """Ask for the next batch; a `LedgerBatch` comes now or later. Raises: StateError if one is under way."""
        return self._applied(values.BatchWanted(), now_s)

    def step_done(self, batch: LedgerBatch, now_s: float) -> tuple[IntakeEffect, ...]:
        """Note that the batch was consumed, so its samples are settled and the version rises.

        Raises: StateError if no batch is in training.
        """
        effects = self._applied(values.StepDone(), now_s)
        # The step consumed them at the version from which it started; a checkpoint of a later version covers that.
        self.settle(batch.kept, batch.policy.version)
        return effects

    def want_evaluation(
        self, items: Sequence[int], now_s: float, *, is_background: bool = False
    ) -> tuple[IntakeEffect, ...]:
        """Ask for one sample of each item; an `EvaluationDone` comes later. Raises: StateError if one runs."""
        return self._applied(values.EvalAsked(tuple(items), is_background), now_s)

    def settle(self, kept: Sequence[KeptTrajectory], version: int) -> None:
        """Note that the fate of these samples was decided while the trainer was at `version`, each of them once."""
        for each in kept:
            self._retention.settle(each.frame, version)

    def tick(self, now_s: float) -> tuple[IntakeEffect, ...]:
        """Tell the ledger that time has passed."""
        return self._applied(values.ClockTicked(), now_s)

    def batch_wait(self) -> BatchWait | None:
        """Return what the wanted batch waits for, or None if none is wanted."""
        return batch_wait(self.ledger.state, self.ledger.limits)

    # ---- what comes in -------------------------------------------------------------------------------------------

    def on_message(self, message: LedgerMessage, now_s: float) -> tuple[IntakeEffect, ...]:
        """Tell the ledger what a worker says.

        Raises: WireError for a worker with another bundle, StateError for one that did not say hello. Nothing has
        changed then; pass the error to `refuse_message`.
        """
        effects: list[IntakeEffect] = []
        match message:
            case HelloReceived():
                self._on_hello(message, now_s, effects)
            case DepartureReceived(worker_id=worker_id, why=why):
                effects.append(EventLogged(logging.WARNING, "worker_gone", {"worker": worker_id, "why": why}))
                self._apply(values.WorkerLeft(worker_id, is_dead=not message.connection_lost), now_s, effects)
            case FailureReceived(worker_id=worker_id, lease_id=lease_id, why=why):
                fields = {"worker": worker_id, "lease": lease_id, "why": why}
                effects.append(EventLogged(logging.WARNING, "sample_failed", fields))
                if message.reward_failure:
                    self._tally.reward_failures[message.reward_failure] += 1
                self._fail(worker_id, lease_id, message.group, message.sample, values.Loss.FAILED, now_s, effects)
            case ProofReceived(worker_id, proof):
                # A worker whose weights are wrong has not reached the version. The publisher counts the mismatch.
                if proof.ok:
                    self._apply(values.PolicyReached(worker_id, proof.policy), now_s, effects)
            case values.RoomOffered() | values.LeasesStarted():
                self._apply(message, now_s, effects)
            case _:
                assert_never(message)
        return tuple(effects)

    def lose_workers(self, now_s: float) -> tuple[IntakeEffect, ...]:
        """End all leases, because the connection to the workers was lost. A worker that is still there joins again."""
        return self._applied(values.AllWorkersLeft(), now_s)

    def refuse_message(self, worker_id: str, why: PeriplusError) -> tuple[IntakeEffect, ...]:
        """Count a message that was refused, or that could not be read, because of `why`."""
        self._tally.refused_messages += 1
        return (EventLogged(logging.ERROR, "message_refused", {"worker": worker_id, "why": why}),)

    def on_frame(self, frame: Committed, now_s: float) -> tuple[IntakeEffect, ...]:
        """Tell the ledger what a committed frame holds: refused samples, abandoned samples and results."""
        effects: list[IntakeEffect] = []
        # Refused samples end their leases at once, so that the samples are leased again without waiting for a timeout.
        self._refuse(frame, now_s, effects)
        if frame.kept:
            # Nothing is kept of a resent frame, which was counted when it came first.
            self._count(frame)
            self._retention.add(frame.kept[0].frame, frame.num_bytes, len(frame.kept), self.policy.version)
        for kept in frame.kept:
            t = kept.trajectory
            # The worker gave the sample up, so it is a failed attempt and no result.
            if t.stop_reason is StopReason.ABANDONED:
                self._write_result(kept, AdmissionVerdict.ABANDONED, "", effects)
                self.settle((kept,), self.policy.version)
                self._fail(frame.key.worker_id, t.lease_id, t.group, t.sample, values.Loss.FAILED, now_s, effects)
            else:
                self._apply(values.ResultArrived(self._held.hold(kept)), now_s, effects)
        return tuple(effects)

    # ---- counts --------------------------------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """Size in bytes of all frames that are kept on disk."""
        return self._retention.num_bytes

    def give_up_frames(self, covered_version: int) -> Position | None:
        """Forget the frames that may be deleted, given that the oldest kept checkpoint is of `covered_version`.

        Return the position of the first frame that stays, or None if no frame may be deleted.
        """
        return self._retention.give_up(covered_version)

    def first_frame_needed(self, covered_version: int) -> Position | None:
        """Return the first frame that a restore from a checkpoint of that version reads, or None."""
        return self._retention.first_needed(covered_version)

    def take_tally(self) -> Tally:
        """Return the counts since they were last taken, and begin anew."""
        tally, self._tally = self._tally, Tally()
        return tally

    def take_remote_bytes(self) -> RemoteBytes:
        """Return the bytes from other regions since they were last taken, and begin anew."""
        remote, self._remote = self._remote, RemoteBytes()
        return remote

    def _count(self, frame: Committed) -> None:
        json_bytes = self._tally.as_json([each.trajectory for each in frame.kept])
        self._tally.frames_bytes += frame.num_bytes
        self._tally.frames_json_bytes += json_bytes
        for each in frame.kept:
            self._tally.reward_failures.update(reward_failures_of(each.trajectory.metadata).values())
        if (frame.region or self.regions.get(frame.key.worker_id)) != self._home_region:
            self._remote = RemoteBytes(self._remote.num_bytes + frame.num_bytes, self._remote.json_bytes + json_bytes)

    # ---- events --------------------------------------------------------------------------------------------------

    def _on_hello(self, hello: HelloReceived, now_s: float, effects: list[IntakeEffect]) -> None:
        worker_id, region = hello.worker_id, hello.region
        if hello.bundle_digest != self._bundle_digest:
            raise WireError(
                f"worker {worker_id} has another tokenizer or model config than this job; it gets no leases"
            )
        # The region is remembered also after the worker has left, since results of it may still come.
        # Removed first, so that the worker moves to the end, and the one that connected longest ago is forgotten.
        self.regions.pop(worker_id, None)
        self.regions[worker_id] = region
        if len(self.regions) > WORKERS_KNOWN:
            del self.regions[next(iter(self.regions))]
        effects.append(EventLogged(logging.INFO, "worker_joined", {"worker": worker_id, "worker_region": region}))
        self._apply(values.WorkerJoined(worker_id, hello.epoch, region), now_s, effects)

    def _refuse(self, frame: Committed, now_s: float, effects: list[IntakeEffect]) -> None:
        worker_id = frame.key.worker_id
        if frame.refusal is not None:
            self._tally.refused_messages += 1
            effects.append(EventLogged(logging.ERROR, "frame_refused", {"worker": worker_id, "why": frame.refusal}))
        for refused in frame.refused:
            self._tally.refused += 1
            group, sample = refused.group, refused.sample
            fields = {"worker": worker_id, "group": group, "sample": sample, "why": refused.why}
            effects.append(EventLogged(logging.ERROR, "sample_refused", fields))
            self._fail(worker_id, refused.lease_id, group, sample, values.Loss.REFUSED, now_s, effects)

    def _fail(
        self,
        worker_id: str,
        lease_id: int,
        group: int,
        sample: int,
        why: values.Loss,
        now_s: float,
        effects: list[IntakeEffect],
    ) -> None:
        # A late message may name a lease that has ended, or one of an earlier fork with the same number.
        if self.ledger.holds(worker_id, lease_id, group, sample):
            self._apply(values.SampleFailed(worker_id, lease_id, why), now_s, effects)

    def _applied(self, event: values.Event, now_s: float) -> tuple[IntakeEffect, ...]:
        effects: list[IntakeEffect] = []
        self._apply(event, now_s, effects)
        return tuple(effects)

    def _apply(self, event: values.Event, now_s: float, effects: list[IntakeEffect]) -> None:
        for effect in self.ledger.apply(event, now_s):
            self._follow_up(effect, now_s, effects)

    # ---- effects -------------------------------------------------------------------------------------------------

    def _follow_up(self, effect: values.Effect, now_s: float, effects: list[IntakeEffect]) -> None:
        """Append what follows from one effect of the ledger."""
        match effect:
            case values.Granted(worker_id, leases):
                # The lines come before the message, because the shell sends nothing before the lines ahead of it are
                # flushed.
                region = self.regions.get(worker_id, "")
                effects += [LineWritten(lease_entry(lease, worker_id, region)) for lease in leases]
                effects.append(effect)
                self._note_hedges(worker_id, [lease for lease in leases if lease.hedges], effects)
            case values.Revoked():
                effects.append(effect)
            case values.JudgedResult(result, arrival):
                self._record_arrival(result, arrival, effects)
            case values.LeaseLost():
                self._tally.lost += 1
                effects.append(LineWritten(lost_entry(effect)))
            case values.GroupDropped():
                self._dropped(effect, effects)
            case values.Holding(groups, until_s):
                fields = {"groups": len(groups), "at_most_s": until_s - now_s}
                effects.append(EventLogged(logging.INFO, "holding", fields))
            case values.BatchReady(policy, results):
                effects.append(LedgerBatch(policy, self._taken(results)))
            case values.EvalReady(results):
                effects.append(EvaluationDone(self._taken(results)))
            case _:
                assert_never(effect)

    def _record_arrival(self, result: Result, arrival: Arrival, effects: list[IntakeEffect]) -> None:
        """Record whether a result was accepted. A refused one settles its sample, and is logged."""
        kept = self._held.look_up(result)
        key = (result.lease_id, result.group, result.sample)
        is_hedged = key in self._hedged
        self._hedged.pop(key, None)
        match arrival:
            case Arrival.ACCEPTED:
                self._write_result(kept, AdmissionVerdict.ACCEPTED, "", effects)
                return
            case Arrival.DUPLICATE:
                self._tally.duplicates += 1
                self._tally.hedge_duplicates += is_hedged
                self._write_result(kept, AdmissionVerdict.DUPLICATE, "duplicate", effects)
            case _:
                self._tally.refused += 1
                self._write_result(kept, AdmissionVerdict.REFUSED, arrival, effects)
        # The ledger will not hand a refused result back, so this is the end of its trajectory.
        self.settle(self._taken((result,)), self.policy.version)
        fields = {"worker": result.worker_id, "group": result.group, "sample": result.sample, "why": arrival}
        effects.append(EventLogged(logging.WARNING, "result_refused", fields))

    def _note_hedges(self, worker_id: str, leases: Sequence[Lease], effects: list[IntakeEffect]) -> None:
        if not leases:
            return
        self._tally.hedged += len(leases)
        effects.append(EventLogged(logging.INFO, "leased_twice", {"worker": worker_id, "samples": len(leases)}))
        for lease in leases:
            self._hedged |= {(number, lease.group, lease.sample): None for number in (lease.hedges, lease.lease_id)}
        while len(self._hedged) > HEDGED_KEPT:
            del self._hedged[next(iter(self._hedged))]

    def _write_result(
        self, kept: KeptTrajectory, verdict: AdmissionVerdict, why: str, effects: list[IntakeEffect]
    ) -> None:
        region = self.regions.get(kept.trajectory.worker_id, "")
        effects.append(LineWritten(result_entry(kept, verdict, why, region)))

    def _dropped(self, dropped: values.GroupDropped, effects: list[IntakeEffect]) -> None:
        kept = self._taken(dropped.results)
        # Filtering is the algorithm's choice and no fault, so it is not logged.
        if dropped.why is values.Drop.FILTERED:
            self._tally.filtered += len(kept)
        else:
            self._tally.dropped += len(kept)
            self._tally.failed_groups += dropped.why is values.Drop.FAILED
            self._tally.overdue_groups += dropped.why is values.Drop.OVERDUE
            fields = {"group": dropped.group, "why": dropped.why, "samples": len(kept)}
            effects.append(EventLogged(logging.WARNING, "group_dropped", fields))
        effects.append(LineWritten(drop_entry(dropped.group, dropped.why, kept)))
        self.settle(kept, self.policy.version)

    def _taken(self, results: Sequence[Result]) -> tuple[KeptTrajectory, ...]:
        return tuple(self._held.take(result) for result in results)
