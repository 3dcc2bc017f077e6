"""The I/O shell around the ledger: messages from the gateway become its events, and its effects become messages.

    gateway --frame----> frames.FrameIntake --committed--> ledger --effects--> lines of the audit
            --message------------------------------------> ledger              then leases, acknowledgements, batches

`LedgerService` holds the clock, the audit's journal and the link to the gateway. All decisions are the ledger's
(trainer/ledger/machine.py).

Invariants:
- What the ledger decides is written to the audit before anybody acts on it. Messages that follow from an event are kept
  back until its lines are written, which takes as long as the disk is full (disk_wait.py).
- A frame is acknowledged only when the decisions about all its trajectories are in the audit.
- Messages are handled in the order in which they came, also while the training loop waits for a batch.
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
from trainer.intake.committed import Committed, KeptTrajectory
from trainer.intake.convert import granted_to_pb, proof_from_pb, revoked_to_pb
from trainer.intake.frames import FrameIntake
from trainer.intake.gateway import GatewayLink
from trainer.intake.held_trajectories import HeldTrajectories
from trainer.intake.retention import Retention
from trainer.ledger import values
from trainer.ledger.machine import Ledger
from trainer.ledger.values import Arrival, Effect, Event, Result
from trainer.reporting.delivery import ReaderProof

log = logging.getLogger(__name__)

JSON_TOKENS = 20_000
"""Number of tokens in each step whose size as JSON is measured, at about 1 us each; chosen by hand. The size is only
reported, beside that of the compressed frames."""

WORKERS_KNOWN = 1 << 14
"""Number of workers whose region is remembered; those that connected longest ago are forgotten first. Chosen by hand,
far above the number of workers of a job."""

TICK_S = 1.0
"""Seconds between two clock events: how late a lease may expire or a hold may end. Chosen by hand."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of what came in since the run recorder last took them: frames, samples, groups and refusals.

    `frames_bytes` is the compressed size of the frames, and `frames_json_bytes` the estimated size of the same
    trajectories as JSON. `refused` and `duplicates` count samples, `refused_messages` messages and frames, `dropped`
    and `filtered` the samples of dropped groups, `lost` leases that ended without a result.
    """

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
        """Return the size of the trajectories as JSON, in bytes.

        It is measured for the first JSON_TOKENS tokens of a step, and extrapolated by tokens beyond.
        """
        num_tokens = sum(len(t.completion_ids) for t in trajectories)
        if self.json_measured_tokens < JSON_TOKENS:
            num_bytes = trajectory_codec.json_bytes(trajectories)
            self.json_measured_tokens += num_tokens
            self.json_measured_bytes += num_bytes
            return num_bytes
        return num_tokens * self.json_measured_bytes // self.json_measured_tokens


@dataclass(frozen=True, slots=True)
class RemoteBytes:
    """Size of the frames that came from other regions, in bytes, and the estimated size of the same as JSON."""

    num_bytes: int = 0
    json_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AnchorWanted:
    """A reader has nothing to start from: the gateway asks for a full state of the newest version."""


@dataclass(frozen=True, slots=True)
class ProofReceived:
    """A worker says what became of one version of the weights."""

    worker_id: str
    proof: ReaderProof


Notice = AnchorWanted | ProofReceived
"""Messages of the gateway that concern the publisher. The ledger service returns them; it knows no publisher."""


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """The trajectories that a step trains on, and the policy that the step starts from."""

    policy: Policy
    kept: tuple[KeptTrajectory, ...]


class LedgerService:
    """The ledger of one trainer in one fork, connected to its gateway, its store of frames and the audit.

    `now` is a monotonic clock, and `wall` counts the seconds since 1970, for the audit. `syncs`: whether the audit is
    synced to disk before frames are acknowledged, so that it survives the machine and not only the process.
    `bundle_digest` identifies the tokenizer and model config that each worker must have. `regions` maps the workers
    that were seen last to their regions.
    """

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
        self._held = HeldTrajectories()
        self._tally = Tally()
        self._remote = RemoteBytes()
        self.regions: dict[str, str] = {}
        self.retention = retention
        self._intake = intake
        self._journal = journal
        self._link = link
        self._disk = disk
        self._kept_back: list[gateway_pb2.RolloutDown] = []  # to send once the audit's lines are written
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
        """Commit frames, and tell the ledger the time every TICK_S, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_frames())
            tasks.create_task(self._tick())

    def replay(self, frames: Iterable[tuple[Position, int, Sequence[KeptTrajectory]]]) -> None:
        """Give the ledger what earlier forks kept on disk and did not consume. To be called before any message.

        Each of `frames` is a position in the store, a size in bytes and the frame's training trajectories.
        """
        version = self.ledger.policy.version
        results: list[Result] = []
        for position, num_bytes, kept in frames:
            found = [each for each in kept if self.ledger.may_want(each.trajectory.group)]
            self.retention.add(position, num_bytes, len(found), version)
            results += [self._held.hold(each) for each in found]
        if results:
            self._apply(values.Replayed(tuple(results)))

    async def batch(self, stop: asyncio.Event) -> LedgerBatch | None:
        """Wait for the next batch and return it, or None if `stop` is set first.

        Raises: DiskFull if `stop` is set while the disk is full.
        """
        self._apply(values.BatchWanted())
        await self.recorded()
        await self._until(lambda: self._batch is not None, stop)
        await self.recorded()
        batch, self._batch = self._batch, None
        return batch

    async def step_done(self, batch: LedgerBatch, line: audit.ConsumeEntry) -> None:
        """Tell the ledger that the batch was consumed, so the version rises, and write `line` to the audit.

        Raises: DiskFull, as `batch`.
        """
        self._write_sealed(line)
        self._settle(batch.kept, batch.policy.version)
        self._apply(values.StepDone())
        await self.recorded()

    async def evaluation(self, items: Sequence[int], stop: asyncio.Event) -> tuple[KeptTrajectory, ...] | None:
        """Return one greedy sample of each item, or None if `stop` is set first.

        Samples that no worker could produce are left out. Raises: DiskFull, as `batch`.
        """
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
        """Append a line to the audit and return its number. It is flushed with the next commit or milestone."""
        return self._journal.append(record, self._wall())

    async def milestone(self, record: audit.Entry) -> None:
        """Append a line to the audit and return once it would survive this process.

        After `certified` the line is sealed: a signature follows it. Raises: DiskFull, as `batch`.
        """
        self._write_sealed(record)
        await self.recorded()

    def _write_sealed(self, record: audit.Entry) -> None:
        self._journal.append(record, self._wall(), None if self._sealer is None else self._sealer.seal)

    async def certified(self, sealer: Sealer) -> None:
        """Sign the audit's journal from its start, and from now on with each milestone.

        To be called when the trainer's key is certified. Raises: DiskFull, as `batch`.
        """
        await self.milestone(sealer.seal(*self._journal.position))
        self._sealer = sealer

    async def recorded(self) -> None:
        """Flush the audit, so that all lines so far would survive this process, and send the messages kept back.

        Raises: DiskFull, as `batch`.
        """
        await self._disk.write(self._flush)

    def refuse_messages(self) -> None:
        """Ignore all messages of the gateway from now on; lines may still be written to the audit."""
        self._is_closed = True

    async def close(self, end: audit.EndEntry) -> None:
        """Refuse messages from now on, and write the audit's last line. Raises: DiskFull, as `batch`."""
        self.refuse_messages()
        await self.milestone(end)

    def wake(self) -> None:
        """Let a waiting `batch` or `evaluation` check again whether it is done or should stop."""
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

    # ---- counts ---------------------------------------------------------------------------------------------------

    def take_tally(self) -> Tally:
        """Return the counts since they were last taken, and begin anew."""
        tally, self._tally = self._tally, Tally()
        return tally

    def take_remote_bytes(self) -> RemoteBytes:
        """Return the bytes from other regions since they were last taken, and begin anew."""
        remote, self._remote = self._remote, RemoteBytes()
        return remote

    # ---- messages -------------------------------------------------------------------------------------------------

    async def on_message(self, message: gateway_pb2.TrainerDown) -> Notice | None:
        """Handle one message of the gateway; return what it says to the publisher, if anything.

        A bad message is counted and logged; nothing is raised for it.
        """
        if self._is_closed:
            return None
        if message.HasField("anchor"):
            return AnchorWanted()
        up = message.up
        try:
            if up.HasField("frame"):
                frame = trajectory_frame_from_pb(up.frame)
                key = FrameKey(worker_id=up.worker_id, epoch=up.frame.epoch, sequence=up.frame.sequence)
                await self._intake.put(key, up.frame.region, frame)
            elif up.HasField("proof"):
                proof = proof_from_pb(up.proof)
                if proof.ok:
                    self._apply(values.PolicyReached(up.worker_id, proof.policy))
                await self._recorded_patiently()
                return ProofReceived(up.worker_id, proof)
            else:
                self._on_worker(up)
                await self._recorded_patiently()  # a lease is on record before it is on its way
        except (WireError, StateError) as error:
            self._tally.refused_messages += 1
            event(log, logging.ERROR, "message_refused", worker=up.worker_id, why=error)
        return None

    def _on_worker(self, up: gateway_pb2.RolloutUp) -> None:
        worker_id = up.worker_id
        if up.HasField("hello"):
            if up.hello.bundle_digest != self._bundle_digest:
                raise WireError(
                    f"worker {worker_id} has another tokenizer or model config than this job; it gets no leases"
                )
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
        """Remember the worker's region, also after it has left, since results of it may still come."""
        self.regions.pop(worker_id, None)
        self.regions[worker_id] = region
        if len(self.regions) > WORKERS_KNOWN:
            del self.regions[next(iter(self.regions))]

    async def _commit_frames(self) -> None:
        """Take in committed frames, then flush the audit, then acknowledge the frames: in this order, endlessly."""
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
        """Tell the ledger what a committed frame holds: refused samples, abandoned samples and results."""
        worker_id = frame.key.worker_id
        if frame.refusal is not None:
            self._tally.refused_messages += 1
            event(log, logging.ERROR, "frame_refused", worker=worker_id, why=frame.refusal)
        for refused in frame.refused:
            self._tally.refused += 1
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
        json_bytes = self._tally.as_json([each.trajectory for each in frame.kept])
        self._tally.frames_bytes += frame.num_bytes
        self._tally.frames_json_bytes += json_bytes
        if (frame.region or self.regions.get(worker_id)) != self._home_region:
            self._remote = RemoteBytes(self._remote.num_bytes + frame.num_bytes, self._remote.json_bytes + json_bytes)
        self.retention.add(frame.kept[0].frame, frame.num_bytes, len(frame.kept), self.ledger.policy.version)
        for kept in frame.kept:
            t = kept.trajectory
            if t.stop_reason is StopReason.ABANDONED:
                self._write_result(kept, audit.AdmissionVerdict.ABANDONED, "")
                self._settle((kept,), self.ledger.policy.version)
                self._fail(worker_id, t.lease_id, t.group, t.sample)
            else:
                self._apply(values.ResultArrived(self._held.hold(kept)))

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
        """Flush as `recorded` does, but keep waiting for a full disk after a stop, until the caller is cancelled."""
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
                self._on_arrival(result, arrival)
            case values.LeaseLost(lease, worker_id, why):
                self._tally.lost += 1
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
                self._batch = LedgerBatch(policy, self._taken(results))
                self.wake()
            case values.EvalReady(results):
                self._evaluation = self._taken(results)
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

    def _on_arrival(self, result: Result, arrival: Arrival) -> None:
        """Record whether a result was accepted. A refused one settles its sample, and is logged."""
        kept = self._held.look_up(result)
        match arrival:
            case Arrival.ACCEPTED:
                self._write_result(kept, audit.AdmissionVerdict.ACCEPTED, "")
                return
            case Arrival.DUPLICATE:
                self._tally.duplicates += 1
                self._write_result(kept, audit.AdmissionVerdict.DUPLICATE, "duplicate")
            case _:
                self._tally.refused += 1
                self._write_result(kept, audit.AdmissionVerdict.REFUSED, arrival)
        self._settle(self._taken((result,)), self.ledger.policy.version)
        event(
            log,
            logging.WARNING,
            "result_refused",
            worker=result.worker_id,
            group=result.group,
            sample=result.sample,
            why=arrival,
        )

    def _write_result(self, kept: KeptTrajectory, verdict: audit.AdmissionVerdict, why: str) -> None:
        t = kept.trajectory
        self.write(
            audit.ResultEntry(
                verdict=verdict,
                why=why,
                lease_id=t.lease_id,
                group=t.group,
                sample=t.sample,
                worker_id=t.worker_id,
                region=self.regions.get(t.worker_id, ""),
                digest=kept.digest,
                num_tokens=len(t.completion_ids),
                policies=t.policies,
                stop_reason=t.stop_reason,
                frame=audit.FrameId(kept.frame.epoch, kept.frame.sequence),
                index=kept.index,
            )
        )

    def _dropped(self, effect: values.GroupDropped) -> None:
        if effect.why is values.Drop.FILTERED:
            self._tally.filtered += len(effect.results)
        else:
            self._tally.dropped += len(effect.results)
            self._tally.failed_groups += effect.why is values.Drop.FAILED
            self._tally.overdue_groups += effect.why is values.Drop.OVERDUE
            event(
                log, logging.WARNING, "group_dropped", group=effect.group, why=effect.why, samples=len(effect.results)
            )
        dropped = self._taken(effect.results)
        samples = tuple(
            audit.DroppedSample(each.trajectory.sample, each.digest, len(each.trajectory.completion_ids))
            for each in dropped
        )
        self.write(audit.DropEntry(group=effect.group, why=effect.why, samples=samples))
        self._settle(dropped, self.ledger.policy.version)

    def _taken(self, results: Sequence[Result]) -> tuple[KeptTrajectory, ...]:
        return tuple(self._held.take(result) for result in results)

    def _settle(self, kept: Sequence[KeptTrajectory], version: int) -> None:
        for each in kept:
            self.retention.settle(each.frame, version)


def used(kept: Sequence[KeptTrajectory]) -> tuple[audit.UsedSample, ...]:
    """Return the names by which the audit refers to these samples: group, sample and digest of the content."""
    return tuple(audit.UsedSample(each.trajectory.group, each.trajectory.sample, each.digest) for each in kept)
