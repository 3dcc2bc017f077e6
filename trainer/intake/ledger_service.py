"""The trainer's desk: messages from the gateway become events of the ledger, and its effects become messages.

    gateway --message--> desk --frame--> intake --committed--> ledger --effects--> audit lines, leases, batches
                                                                  then, once the lines are on disk, the acknowledgement

The desk is the shell around the ledger: it holds the clock, the journal and the link, and decides nothing. What the
ledger decides is written to the audit before anybody acts on it: messages that an event leads to are kept back until
its lines are written, which takes as long as the disk is full (disk_wait.py). The training loop asks for a batch and
waits; messages meanwhile are taken in, in the order in which they came.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from periplus.audit import records as audit
from periplus.audit.journal import AuditJournal
from periplus.audit.seals import Sealer
from periplus.codec import trajectory as trajectory_codec
from periplus.errors import StateError, WireError
from periplus.net.convert import policy_from_pb, trajectory_frame_from_pb
from periplus.pb.v1 import gateway_pb2
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason, Trajectory
from periplus.values.transport_keys import FrameKey
from trainer.disk_wait import DiskWait
from trainer.intake.convert import granted_to_pb, revoked_to_pb
from trainer.intake.frames import Committed, FrameIntake, KeptTrajectory
from trainer.intake.gateway import GatewayLink
from trainer.intake.retention import Retention
from trainer.ledger import values
from trainer.ledger.machine import Ledger
from trainer.ledger.values import Arrival, Effect, Event, Result

log = logging.getLogger(__name__)

JSON_TOKENS = 20_000
"""Tokens a step whose size as JSON is counted, at about 1 us each; it is told beside ours, and decides nothing."""

WORKERS_KNOWN = 1 << 14
"""Workers whose region is remembered, those that said hello longest ago forgotten first: many more than a job has."""

TICK_S = 1.0
"""How late a lease may expire, or a hold may end."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came in since it was last read."""

    frames_bytes: int = 0
    frames_json_bytes: int = 0
    duplicates: int = 0
    refused: int = 0
    refused_messages: int = 0
    json_measured_bytes: int = 0
    json_measured_tokens: int = 0
    dropped: int = 0
    filtered: int = 0
    lost: int = 0
    failed_groups: int = 0
    overdue_groups: int = 0

    def as_json(self, trajectories: Sequence[Trajectory]) -> int:
        """Bytes of the same records as JSON: counted up to JSON_TOKENS of a step, in proportion to tokens beyond."""
        num_tokens = sum(len(t.completion_ids) for t in trajectories)
        if self.json_measured_tokens < JSON_TOKENS:
            num_bytes = trajectory_codec.json_bytes(trajectories)
            self.json_measured_tokens += num_tokens
            self.json_measured_bytes += num_bytes
            return num_bytes
        return num_tokens * self.json_measured_bytes // self.json_measured_tokens


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """What a step trains on, and the policy that it starts from."""

    policy: Policy
    kept: tuple[KeptTrajectory, ...]


class LedgerService:
    """One trainer's of one fork. `now` is monotonic, `wall` counts seconds since 1970, for the audit."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        intake: FrameIntake,
        journal: AuditJournal,
        retention: Retention,
        link: GatewayLink,
        disk: DiskWait,
        bundle_digest: bytes,
        home_region: str,
        syncs: bool,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        self.tally = Tally()
        self.regions: dict[str, str] = {}
        self.on_anchor_wanted: Callable[[], None] = lambda: None
        self.on_proof: Callable[[str, gateway_pb2.WeightProof], None] = lambda worker_id, proof: None
        self.on_remote_frame: Callable[[int, int], None] = lambda num_bytes, json_bytes: None
        self.retention = retention
        self._intake = intake
        self._journal = journal
        self._link = link
        self._disk = disk
        self._kept_back: list[gateway_pb2.RolloutDown] = []  # until the lines before them are written
        self._bundle_digest = bundle_digest
        self._now = now
        self._wall = wall
        self._syncs = syncs
        self._home_region = home_region
        self._sealer: Sealer | None = None
        self._is_closed = False
        self._batch: LedgerBatch | None = None
        self._evaluation: tuple[KeptTrajectory, ...] | None = None
        self._changed = asyncio.Event()

    # ---- for the training loop ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit frames and let time pass, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_frames())
            tasks.create_task(self._tick())

    def replay(self, frames: Iterable[tuple[Position, int, Sequence[KeptTrajectory]]]) -> None:
        """Before any message: the frames of earlier forks, of which what was not consumed is taken in."""
        version = self.ledger.policy.version
        results: list[Result] = []
        for position, num_bytes, kept in frames:
            found = [each for each in kept if self.ledger.may_want(each.trajectory.group)]
            self.retention.add(position, num_bytes, len(found), version)
            results += [_result(each) for each in found]
        if results:
            self._apply(values.Replayed(tuple(results)))

    async def batch(self, stop: asyncio.Event) -> LedgerBatch | None:
        """The next batch; None if asked to stop first. Raises: DiskFull if asked to stop while the disk is full."""
        self._apply(values.BatchWanted())
        await self.recorded()
        await self._until(lambda: self._batch is not None, stop)
        await self.recorded()
        batch, self._batch = self._batch, None
        return batch

    async def step_done(self, batch: LedgerBatch, line: audit.ConsumeEntry) -> None:
        """The batch was consumed: the next version exists, and `line` says of what. Raises: as batch."""
        self._write_sealed(line)
        self._settle(batch.kept, batch.policy.version)
        self._apply(values.StepDone())
        await self.recorded()

    async def evaluation(self, items: Sequence[int], stop: asyncio.Event) -> tuple[KeptTrajectory, ...] | None:
        """One greedy sample of each item, but for those that nobody could produce; None if asked to stop first."""
        policy = self.ledger.policy
        self._apply(values.EvalAsked(tuple(items)))
        await self.recorded()
        await self._until(lambda: self._evaluation is not None, stop)
        found, self._evaluation = self._evaluation, None
        if found is not None:
            self._write_sealed(audit.EvalEntry(policy=policy, samples=used(found)))
            self._settle(found, policy.version)
            await self.recorded()
        return found

    def write(self, record: audit.Entry) -> int:
        """One line of the audit; returns its number. It is flushed with the next commit or milestone."""
        return self._journal.append(record, self._wall())

    async def milestone(self, record: audit.Entry) -> None:
        """Write a line, sealed from `certified` on, that survives this process before anybody sees what it tells of.

        Raises: as batch.
        """
        self._write_sealed(record)
        await self.recorded()

    def _write_sealed(self, record: audit.Entry) -> None:
        self._journal.append(record, self._wall(), None if self._sealer is None else self._sealer.seal)

    async def certified(self, sealer: Sealer) -> None:
        """Sign the journal from its start, now that the trainer's key is certified, and again with each milestone.

        Raises: as batch.
        """
        await self.milestone(sealer.seal(*self._journal.position))
        self._sealer = sealer

    async def recorded(self) -> None:
        """Return when all lines so far survive this process, and what waited for them is sent. Raises: as batch."""
        await self._disk.write(self._flush)

    def refuse_messages(self) -> None:
        """Nothing is taken in or granted any more; the trainer may still write lines."""
        self._is_closed = True

    async def close(self, end: audit.EndEntry) -> None:
        """Write the last line, after which nobody can write down what would be granted. Raises: as batch."""
        self.refuse_messages()
        await self.milestone(end)

    def wake(self) -> None:
        """Whoever waits for a batch looks around."""
        self._changed.set()

    async def _until(self, done: Callable[[], bool], stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: self.wake())
        try:
            while not (done() or stop.is_set()):
                self._changed.clear()
                await self._changed.wait()
        finally:
            stopping.cancel()

    # ---- messages -------------------------------------------------------------------------------------------------

    async def on_message(self, message: gateway_pb2.TrainerDown) -> None:
        """One message from the gateway. What is wrong with it is counted and logged, never raised."""
        if self._is_closed:
            return
        if message.HasField("anchor"):
            self.on_anchor_wanted()
            return
        up = message.up
        try:
            if up.HasField("frame"):
                frame = trajectory_frame_from_pb(up.frame)
                key = FrameKey(worker_id=up.worker_id, epoch=up.frame.epoch, sequence=up.frame.sequence)
                await self._intake.put(key, up.frame.region, frame)
            elif up.HasField("proof"):
                self._on_proof(up.worker_id, up.proof)
                await self._recorded_patiently()
            else:
                self._on_worker(up)
                await self._recorded_patiently()  # a lease is on record before it is on its way
        except (WireError, StateError) as error:
            self.tally.refused_messages += 1
            event(log, logging.ERROR, "message_refused", worker=up.worker_id, why=error)

    def _on_worker(self, up: gateway_pb2.RolloutUp) -> None:
        worker_id = up.worker_id
        if up.HasField("hello"):
            if up.hello.bundle_digest != self._bundle_digest:
                raise WireError(f"{worker_id} holds another tokenizer or model config than this job; it gets no leases")
            self._know(worker_id, up.hello.region)
            event(log, logging.INFO, "worker_joined", worker=worker_id, worker_region=up.hello.region)
            self._apply(values.WorkerJoined(worker_id, up.hello.epoch))
        elif up.HasField("gone"):
            event(log, logging.WARNING, "worker_gone", worker=worker_id, why=up.gone.reason)
            self._apply(values.WorkerLeft(worker_id, is_dead=not up.gone.connection_lost))
        elif up.HasField("capacity"):
            self._apply(values.RoomOffered(worker_id, up.capacity.num_samples))
        elif up.HasField("started"):
            self._apply(values.LeasesStarted(worker_id, tuple(up.started.lease_ids), policy_from_pb(up.started.policy)))
        elif up.HasField("failed"):
            event(log, logging.WARNING, "sample_failed", worker=worker_id, lease=up.failed.lease_id, why=up.failed.why)
            self._fail(worker_id, up.failed.lease_id, up.failed.group, up.failed.sample)

    def _know(self, worker_id: str, region: str) -> None:
        """Remember the worker's region, also after it left, when results of its may still come."""
        self.regions.pop(worker_id, None)
        self.regions[worker_id] = region
        if len(self.regions) > WORKERS_KNOWN:
            del self.regions[next(iter(self.regions))]

    def _on_proof(self, worker_id: str, proof: gateway_pb2.WeightProof) -> None:
        self.on_proof(worker_id, proof)
        if proof.ok:
            self._apply(values.PolicyReached(worker_id, policy_from_pb(proof.policy)))

    async def _commit_frames(self) -> None:
        while True:
            committed = await self._intake.take()
            for frame in committed:
                self._take_in(frame)
            await self._recorded_patiently()
            if self._syncs:
                await asyncio.to_thread(self._journal.sync_flushed)
            self._acknowledge(committed)

    def _acknowledge(self, frames: Sequence[Committed]) -> None:
        sequences: dict[tuple[str, str, int], list[int]] = {}
        for frame in frames:
            sequences.setdefault((frame.region, frame.key.worker_id, frame.key.epoch), []).append(frame.key.sequence)
        for (region, worker_id, epoch), numbers in sequences.items():
            self._link.committed(region, worker_id, epoch, numbers)

    def _take_in(self, frame: Committed) -> None:
        worker_id = frame.key.worker_id
        if frame.refusal is not None:
            self.tally.refused_messages += 1
            event(log, logging.ERROR, "frame_refused", worker=worker_id, why=frame.refusal)
        for refused in frame.refused:
            self.tally.refused += 1
            event(
                log,
                logging.ERROR,
                "sample_refused",
                worker=worker_id,
                group=refused.group,
                sample=refused.sample,
                why=refused.why,
            )
            self._fail(worker_id, refused.lease_id, refused.group, refused.sample, values.Loss.REFUSED)
        if not frame.kept:
            return
        json_bytes = self.tally.as_json([each.trajectory for each in frame.kept])
        self.tally.frames_bytes += frame.num_bytes
        self.tally.frames_json_bytes += json_bytes
        if (frame.region or self.regions.get(worker_id)) != self._home_region:
            self.on_remote_frame(frame.num_bytes, json_bytes)
        self.retention.add(frame.kept[0].frame, frame.num_bytes, len(frame.kept), self.ledger.policy.version)
        for kept in frame.kept:
            t = kept.trajectory
            if t.stop_reason is StopReason.ABANDONED:
                self._write_result(_result(kept), audit.AdmissionVerdict.ABANDONED, "")
                self._settle((kept,), self.ledger.policy.version)
                self._fail(worker_id, t.lease_id, t.group, t.sample)
            else:
                self._apply(values.ResultArrived(_result(kept)))

    def _fail(
        self, worker_id: str, lease_id: int, group: int, sample: int, why: values.Loss = values.Loss.FAILED
    ) -> None:
        if self.ledger.holds(worker_id, lease_id, group, sample):
            self._apply(values.SampleFailed(worker_id, lease_id, why))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._apply(values.ClockTicked())
            await self._recorded_patiently()

    # ---- the journal ----------------------------------------------------------------------------------------------

    async def _recorded_patiently(self) -> None:
        """For tasks that serve others: they go on waiting while the trainer is stopping, until they are cancelled."""
        await self._disk.write_patiently(self._flush)

    def _flush(self) -> None:
        self._journal.flush()
        kept_back, self._kept_back = self._kept_back, []
        for message in kept_back:
            self._link.send(message)

    # ---- effects --------------------------------------------------------------------------------------------------

    def _apply(self, ledger_event: Event) -> None:
        for effect in self.ledger.apply(ledger_event, self._now()):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case values.Granted():
                self._write_leases(effect)
                self._kept_back.append(granted_to_pb(effect))
            case values.Revoked():
                self._kept_back.append(revoked_to_pb(effect))
            case values.JudgedResult(result, arrival):
                self._judged(result, arrival)
            case values.LeaseLost(lease, worker_id, why):
                self.tally.lost += 1
                self.write(
                    audit.LostEntry(
                        lease_id=lease.lease_id, group=lease.group, sample=lease.sample, worker_id=worker_id, why=why
                    )
                )
            case values.GroupDropped():
                self._dropped(effect)
            case values.Holding(groups, until_s):
                event(log, logging.INFO, "holding", groups=len(groups), at_most_s=until_s - self._now())
            case values.BatchReady(policy, results):
                self._batch = LedgerBatch(policy, tuple(_kept(result) for result in results))
                self.wake()
            case values.EvalReady(results):
                self._evaluation = tuple(_kept(result) for result in results)
                self.wake()
            case _:
                assert_never(effect)

    def _write_leases(self, granted: values.Granted) -> None:
        region = self.regions.get(granted.worker_id, "")
        for lease in granted.leases:
            self.write(
                audit.LeaseEntry(
                    lease_id=lease.lease_id,
                    group=lease.group,
                    sample=lease.sample,
                    item=lease.item,
                    purpose=lease.purpose,
                    worker_id=granted.worker_id,
                    region=region,
                    start_at=lease.start_at,
                    consume_by_version=lease.consume_by_version,
                )
            )

    def _judged(self, result: Result, arrival: Arrival) -> None:
        match arrival:
            case Arrival.ACCEPTED:
                self._write_result(result, audit.AdmissionVerdict.ACCEPTED, "")
                return
            case Arrival.DUPLICATE:
                self.tally.duplicates += 1
                self._write_result(result, audit.AdmissionVerdict.DUPLICATE, "duplicate")
            case _:
                self.tally.refused += 1
                self._write_result(result, audit.AdmissionVerdict.REFUSED, arrival)
        self._settle((_kept(result),), self.ledger.policy.version)
        event(
            log,
            logging.WARNING,
            "result_refused",
            worker=result.worker_id,
            group=result.group,
            sample=result.sample,
            why=arrival,
        )

    def _write_result(self, result: Result, verdict: audit.AdmissionVerdict, why: str) -> None:
        kept = _kept(result)
        self.write(
            audit.ResultEntry(
                verdict=verdict,
                why=why,
                lease_id=result.lease_id,
                group=result.group,
                sample=result.sample,
                worker_id=result.worker_id,
                region=self.regions.get(result.worker_id, ""),
                digest=kept.digest,
                num_tokens=result.num_tokens,
                policies=result.policies,
                stop_reason=kept.trajectory.stop_reason,
                frame=audit.FrameId(kept.frame.epoch, kept.frame.sequence),
                index=kept.index,
            )
        )

    def _dropped(self, effect: values.GroupDropped) -> None:
        if effect.why is values.Drop.FILTERED:
            self.tally.filtered += len(effect.results)
        else:
            self.tally.dropped += len(effect.results)
            self.tally.failed_groups += effect.why is values.Drop.FAILED
            self.tally.overdue_groups += effect.why is values.Drop.OVERDUE
            event(
                log, logging.WARNING, "group_dropped", group=effect.group, why=effect.why, samples=len(effect.results)
            )
        samples = tuple(
            audit.DroppedSample(result.sample, _kept(result).digest, result.num_tokens) for result in effect.results
        )
        self.write(audit.DropEntry(group=effect.group, why=effect.why, samples=samples))
        self._settle([_kept(result) for result in effect.results], self.ledger.policy.version)

    def _settle(self, kept: Sequence[KeptTrajectory], version: int) -> None:
        for each in kept:
            self.retention.settle(each.frame, version)


def used(kept: Sequence[KeptTrajectory]) -> tuple[audit.UsedSample, ...]:
    """How the audit names samples."""
    return tuple(audit.UsedSample(each.trajectory.group, each.trajectory.sample, each.digest) for each in kept)


def _result(kept: KeptTrajectory) -> Result:
    t = kept.trajectory
    return Result(
        lease_id=t.lease_id,
        group=t.group,
        sample=t.sample,
        item=t.item,
        purpose=t.purpose,
        worker_id=t.worker_id,
        policies=t.policies,
        num_tokens=len(t.completion_ids),
        reward=t.reward,
        payload=kept,
    )


def _kept(result: Result) -> KeptTrajectory:
    assert isinstance(result.payload, KeptTrajectory)
    return result.payload
