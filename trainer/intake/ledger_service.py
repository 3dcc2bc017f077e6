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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from periplus.audit import records as audit
from periplus.errors import StateError, WireError, WrongRewards
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.values.policy import Policy
from trainer.intake.committed import Committed, KeptTrajectory
from trainer.intake.effects import EvaluationDone, EventLogged, IntakeEffect, LedgerBatch, LineWritten
from trainer.intake.entries import drop_entry, used_samples
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
from trainer.intake.waiting import wait_sentence
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.ledger.values import Granted, Revoked

log = logging.getLogger(__name__)

TICK_S = 0.5
"""Seconds between two clock events: how late a lease may expire, a hold may end or a silent worker may be noticed.
Chosen by hand."""

WAIT_TOLD_S = 3.0
"""Seconds for which a step waits for samples before the job's watchers are told. Chosen by hand."""

MAX_ASKED = 8
"""Times that an evaluation asks for samples. Chosen by hand: a worker that is stopped ends long before, unless it does
not want to."""

WrongGroups = Callable[[Sequence[KeptTrajectory]], Awaitable[frozenset[int]]]
"""Returns the groups of samples whose rewards do not count. Raises: WrongRewards."""

Notice = AnchorWanted | GatewayFound | HelloReceived | ProofReceived
"""Messages of the gateway that concern the publisher or the checks of samples. The ledger service returns them; it
knows neither."""


@dataclass(slots=True, kw_only=True)
class _Evaluation:
    """An evaluation that was begun at `policy`, and its samples so far, whose rewards count."""

    policy: Policy
    items: Sequence[int]
    is_background: bool
    kept: list[KeptTrajectory] = field(default_factory=list)
    num_asked: int = 0


class LedgerService:
    """The ledger of one trainer in one fork, connected to its gateway, its store of frames and the audit.

    `send` passes a message to the gateway. `now` is a monotonic clock. `syncs`: whether the audit is synced to disk
    before frames are acknowledged, so that it survives the machine and not only the process. `wrong_groups` returns the
    groups of an evaluation that do not count since their rewards are wrong: they are dropped, and asked for again.
    `say` shows a phase to the job's watchers, and `unix_s` is the time of day.
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
        wrong_groups: WrongGroups,
        say: Callable[[str], None] = lambda phase: None,
        unix_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._say = say
        self._unix_s = unix_s
        self._told_wait_s: float | None = None  # when watchers were last told what the present step waits for
        self._wrong_groups = wrong_groups
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
        self._evaluating: _Evaluation | None = None  # the one that runs
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
        if self._told_wait_s is not None:
            self._told_wait_s = None
            self._say("training")
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

        Samples that no worker could produce are left out. Raises: DiskFull, as `batch`; WrongRewards.
        """
        await self._ask(_Evaluation(policy=self._driver.policy, items=items, is_background=False), items)
        return await self.evaluated(stop)

    async def begin_evaluation(self, items: Sequence[int]) -> None:
        """Ask for one sample of each item while training goes on; `evaluated` returns them later.

        Raises: StateError if an evaluation runs; DiskFull, as `batch`.
        """
        # First the line, then the leases, which follow it in the journal.
        self._journal.write(audit.EvalBeginEntry(policy=self._driver.policy))
        await self._ask(_Evaluation(policy=self._driver.policy, items=items, is_background=True), items)

    async def evaluated(self, stop: asyncio.Event | None = None) -> tuple[KeptTrajectory, ...] | None:
        """Return the samples of the evaluation that was begun, or None if they are not all there yet.

        With `stop` wait for them until it is set. Samples that no worker could produce are left out.
        Raises: DiskFull, as `batch`; WrongRewards.
        """
        of = self._evaluating
        assert of is not None, "an evaluation was begun"
        while True:
            if stop is not None:
                await self._until(lambda: self._evaluation is not None, stop)
            done, self._evaluation = self._evaluation, None
            if done is None:
                return None
            again = await self._take_right(of, done.kept)
            if not again:
                break
            await self._ask(of, again)
        # While training waits, its policy is also that of all samples.
        runs = (run.policy for kept in of.kept for run in kept.trajectory.policies)
        newest = max([of.policy, *runs]) if of.is_background else None
        # Items that were asked for again came last.
        place = {item: at for at, item in enumerate(of.items)}
        found = tuple(sorted(of.kept, key=lambda each: place[each.trajectory.item]))
        self._journal.write_sealed(audit.EvalEntry(policy=of.policy, samples=used_samples(found), newest=newest))
        self._evaluating = None
        # These samples are used up, so they do not keep their frames any longer.
        self._driver.settle(found, self._driver.policy.version)
        await self._journal.flush()
        return found

    async def _ask(self, of: _Evaluation, items: Sequence[int]) -> None:
        self._perform(self._driver.want_evaluation(items, self._now(), is_background=of.is_background))
        self._evaluating = of
        await self._journal.flush()

    async def _take_right(self, of: _Evaluation, kept: Sequence[KeptTrajectory]) -> list[int]:
        """Add samples to the evaluation, drop those whose rewards do not count, and return their items."""
        came = [*of.kept, *kept]  # a worker may have been stopped since its earlier samples came
        wrong = await self._wrong_groups(came)
        dropped = [each for each in came if each.trajectory.group in wrong]
        of.kept = [each for each in came if each.trajectory.group not in wrong]
        of.num_asked += 1
        for each in dropped:
            self._journal.write(drop_entry(each.trajectory.group, audit.UNSOUND, [each]))
        self._driver.settle(dropped, self._driver.policy.version)
        if dropped and of.num_asked >= MAX_ASKED:
            raise WrongRewards(
                f"{len(dropped)} samples of an evaluation had wrong rewards, or were of workers that are stopped for "
                f"them, though they were asked for {MAX_ASKED} times; end these workers, and resume the job"
            )
        return [each.trajectory.item for each in dropped]

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
        """Take in committed frames, then flush the audit, then acknowledge the frames: in this order, endlessly.

        The next frames are committed to the store meanwhile.
        """
        taking = asyncio.create_task(self._intake.take())
        try:
            while True:
                committed = await taking
                taking = asyncio.create_task(self._intake.take())
                for frame in committed:
                    self._perform(self._driver.on_frame(frame, self._now()))
                await self._journal.flush_patiently()
                if self._syncs:
                    await asyncio.to_thread(self._journal.sync_flushed)
                for message in acknowledgements(committed):
                    self._send(message)
        finally:
            taking.cancel()
            # Whoever closes the store must not meet its thread.
            await asyncio.gather(taking, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self._driver.tick(self._now()))
            await self._journal.flush_patiently()
            self._tell_wait()

    def _tell_wait(self) -> None:
        now_s, wait = self._now(), self._driver.batch_wait()
        if wait is None or now_s - max(wait.since_s + WAIT_TOLD_S - 1.0, self._told_wait_s or 0.0) < 1.0:
            return
        self._told_wait_s = now_s
        self._say(wait_sentence(wait, self._unix_s() - now_s))

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
