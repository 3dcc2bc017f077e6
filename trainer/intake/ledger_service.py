"""The I/O shell of the ledger: it performs what the ledger's driver returns, in an order that survives a crash.

    gateway --frame----> frames.FrameIntake --committed--> driver --effects--> lines of the audit
            --message------------------------------------> driver              then leases, acknowledgements, batches

`LedgerService` holds the clock, the audit's journal and the queue to the gateway. All decisions are the ledger's
(trainer/ledger/machine.py), and what they mean for lines, messages and counts is the driver's (ledger_driver.py).

Invariants:
- What the ledger decides is written to the audit before anybody acts on it (write_ahead.py).
- A frame is acknowledged only when the decisions about all its trajectories are in the audit.
- Messages are handled in the order in which they came, also while the training loop waits for a batch.
- When a lost connection to the gateway is open again, all leases end before any worker is heard over it. So the ledger
  agrees with the gateway, which has forgotten all workers too. Frames that were on their way come again from their
  spools. Those that are in the store already are acknowledged again and count once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from periplus.audit import records as audit
from periplus.errors import StateError, WireError
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.values.policy import Policy
from trainer.intake.committed import Committed, KeptTrajectory
from trainer.intake.effects import EvaluationDone, EventLogged, IntakeEffect, LedgerBatch, LineWritten
from trainer.intake.entries import used_samples
from trainer.intake.frames import FrameIntake
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.messages import (
    AnchorWanted,
    DownMessage,
    FrameReceived,
    FramesAcknowledged,
    GatewayFound,
    HelloReceived,
    LedgerMessage,
    ProofReceived,
    UnreadableMessage,
    UpMessage,
)
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.ledger.values import Granted, Revoked

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Seconds between two clock events: how late a lease may expire or a hold may end. Chosen by hand."""

Notice = AnchorWanted | GatewayFound | HelloReceived | ProofReceived
"""Messages of the gateway that concern the publisher or the checks of samples. The ledger service returns them; it
knows neither."""


class LedgerService:
    """The ledger of one trainer in one fork, connected to its gateway, its store of frames and the audit.

    `send` passes a message to the gateway. `now` is a monotonic clock. `syncs`: whether the audit is synced to disk
    before frames are acknowledged, so that it survives the machine and not only the process.
    """

    def __init__(
        self,
        driver: LedgerDriver,
        intake: FrameIntake,
        journal: WriteAheadJournal,
        send: Callable[[DownMessage], None],
        *,
        syncs: bool,
        now: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._intake = intake
        self._journal = journal
        self._send = send
        self._syncs = syncs
        self._now = now
        self._is_closed = False
        # What the training loop waits for, until it takes it, and the event that something of it has come.
        self._batch: LedgerBatch | None = None
        self._evaluation: EvaluationDone | None = None
        self._evaluated: Policy | None = None  # the policy at which the evaluation in the background began
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Commit frames, and tell the ledger the time every TICK_S, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_frames())
            tasks.create_task(self._tick())

    def refuse_messages(self) -> None:
        """Ignore all messages of the gateway from now on; lines may still be written to the audit."""
        self._is_closed = True

    async def close(self, end: audit.EndEntry, exported: audit.ExportEntry | None = None) -> None:
        """Refuse messages from now on, and write the audit's last line, after that of an export if one is given.

        Raises: DiskFull, as `batch`.
        """
        self.refuse_messages()
        if exported is not None:
            await self._journal.write_milestone(exported)
        await self._journal.write_milestone(end)

    # ---- for the training loop ------------------------------------------------------------------------------------

    def replay(self, frames: Iterable[tuple[Position, int, Sequence[KeptTrajectory]]]) -> None:
        """Give the ledger what earlier forks kept, as `LedgerDriver.replay` says. To be called before any message."""
        self._perform(self._driver.replay(frames, self._now()))

    async def batch(self, stop: asyncio.Event) -> LedgerBatch | None:
        """Wait for the next batch and return it, or None if `stop` is set first.

        Raises: DiskFull if `stop` is set while the disk is full.
        """
        self._perform(self._driver.want_batch(self._now()))
        await self._journal.flush()
        # The batch may be there already, or come with any later frame or tick.
        await self._until(lambda: self._batch is not None, stop)
        await self._journal.flush()
        # What led to the batch is on record now, so it may be trained on.
        batch, self._batch = self._batch, None
        return batch

    async def step_done(self, batch: LedgerBatch, line: audit.ConsumeEntry) -> None:
        """Tell the ledger that the batch was consumed, so the version rises, and write `line` to the audit.

        Raises: DiskFull, as `batch`.
        """
        # First the line, then the version: leases of the new version must follow it in the journal.
        self._journal.write_sealed(line)
        self._perform(self._driver.step_done(batch, self._now()))
        await self._journal.flush()

    async def evaluation(self, items: Sequence[int], stop: asyncio.Event) -> tuple[KeptTrajectory, ...] | None:
        """Return one sample of each item, or None if `stop` is set first. Training waits meanwhile.

        Samples that no worker could produce are left out. Raises: DiskFull, as `batch`.
        """
        # Training waits for the evaluation, so this is also the version when it is done.
        policy = self._driver.policy
        self._perform(self._driver.want_evaluation(items, self._now()))
        await self._journal.flush()
        await self._until(lambda: self._evaluation is not None, stop)
        return await self._end_evaluation(policy, is_background=False)

    async def begin_evaluation(self, items: Sequence[int]) -> None:
        """Ask for one sample of each item while training goes on; `background_evaluation` returns them later.

        Raises: StateError if an evaluation runs; DiskFull, as `batch`.
        """
        policy = self._driver.policy
        # First the line, then the leases, which follow it in the journal.
        self._journal.write(audit.EvalBeginEntry(policy=policy))
        self._perform(self._driver.want_evaluation(items, self._now(), is_background=True))
        self._evaluated = policy
        await self._journal.flush()

    async def background_evaluation(self, stop: asyncio.Event | None = None) -> tuple[KeptTrajectory, ...] | None:
        """Return the samples that `begin_evaluation` asked for, or None if they are not all there yet.

        With `stop` wait for them until it is set. Samples that no worker could produce are left out.
        Raises: DiskFull, as `batch`.
        """
        assert self._evaluated is not None, "an evaluation was begun"
        if stop is not None:
            await self._until(lambda: self._evaluation is not None, stop)
        return await self._end_evaluation(self._evaluated, is_background=True)

    async def _end_evaluation(self, policy: Policy, *, is_background: bool) -> tuple[KeptTrajectory, ...] | None:
        done, self._evaluation = self._evaluation, None
        if done is None:
            return None
        runs = (run.policy for kept in done.kept for run in kept.trajectory.policies)
        newest = max([policy, *runs]) if is_background else None
        self._journal.write_sealed(audit.EvalEntry(policy=policy, samples=used_samples(done.kept), newest=newest))
        self._evaluated = None
        # These samples are used up, so they do not keep their frames any longer.
        self._driver.settle(done.kept, self._driver.policy.version)
        await self._journal.flush()
        return done.kept

    async def _until(self, done: Callable[[], bool], stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        # One event wakes for both reasons, so a stop is noticed while nothing comes in.
        stopping.add_done_callback(lambda _: self._changed.set())
        try:
            while not (done() or stop.is_set()):
                self._changed.clear()
                await self._changed.wait()
        finally:
            stopping.cancel()

    # ---- for the gateway ------------------------------------------------------------------------------------------

    async def on_message(self, message: UpMessage) -> Notice | None:
        """Handle one message of the gateway; return it if it concerns others too.

        A bad message is counted and logged; nothing is raised for it.
        """
        if self._is_closed:
            return None
        match message:
            case AnchorWanted():
                return message
            case GatewayFound():
                self._journal.forget_messages()  # they are for workers of the lost connection
                self._perform(self._driver.lose_workers(self._now()))
                await self._journal.flush_patiently()
                return message
            case FrameReceived(key, region, frame):
                # Waits while too much is queued; the gateway's stream is not read meanwhile.
                await self._intake.put(key, region, frame)
                return None
            case UnreadableMessage(worker_id, why):
                self._perform(self._driver.refuse_message(worker_id, why))
                return None
            case _:
                return await self._on_ledger_message(message)

    async def _on_ledger_message(self, message: LedgerMessage) -> Notice | None:
        try:
            effects = self._driver.on_message(message, self._now())
        except (WireError, StateError) as error:
            self._perform(self._driver.refuse_message(message.worker_id, error))
            return None
        self._perform(effects)
        await self._journal.flush_patiently()  # a lease is on record before it is on its way
        return message if isinstance(message, HelloReceived | ProofReceived) else None

    async def _commit_frames(self) -> None:
        """Take in committed frames, then flush the audit, then acknowledge the frames: in this order, endlessly."""
        while True:
            committed = await self._intake.take()
            for frame in committed:
                self._perform(self._driver.on_frame(frame, self._now()))
            await self._journal.flush_patiently()
            if self._syncs:
                await asyncio.to_thread(self._journal.sync_flushed)
            for message in acknowledgements(committed):
                self._send(message)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self._driver.tick(self._now()))
            await self._journal.flush_patiently()

    def _perform(self, effects: Sequence[IntakeEffect]) -> None:
        for effect in effects:
            match effect:
                case LineWritten(entry):
                    self._journal.write(entry)
                case EventLogged(level, name, fields):
                    event(log, level, name, **fields)
                case Granted() | Revoked():
                    # Not sent here: the flush that follows sends it after the lines before it.
                    self._journal.send_once_recorded(effect)
                case LedgerBatch():
                    self._batch = effect
                    self._changed.set()
                case EvaluationDone():
                    self._evaluation = effect
                    self._changed.set()
                case _:
                    assert_never(effect)


def acknowledgements(frames: Sequence[Committed]) -> tuple[FramesAcknowledged, ...]:
    """Return the messages that acknowledge these frames, one for each start of a worker and region that spools it."""
    sequences: dict[tuple[str, str, int], list[int]] = {}
    for frame in frames:
        sequences.setdefault((frame.region, frame.key.worker_id, frame.key.epoch), []).append(frame.key.sequence)
    return tuple(
        FramesAcknowledged(region=region, worker_id=worker_id, epoch=epoch, sequences=tuple(numbers))
        for (region, worker_id, epoch), numbers in sequences.items()
    )
