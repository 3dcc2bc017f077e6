"""Runs a worker's samples: leases begin while the engine has room, and each ends by itself.

    lease -> (started is told) -> request -> engine -> verdict -> scored and validated -> frame
                                     |          |         |                |
                                  failed     failed   waits again       failed

Three kinds of tasks share the state here. `_begin_leases` takes the leases that may start, tells the gateway that they
do, and starts a task for each. That task waits for the engine, and then until no token is in doubt
(weights/serving.py): if the result is condemned, its lease waits again, which changes nothing for the ledger. Then it
has the sample scored; the engine has gone on with other leases meanwhile, so that a slow reward costs no tokens.
`_send` packs finished samples into frames. A failure costs one lease. Only when so many fail in a row that the worker
must be at fault does the process end.

What is under way is bounded by the leases that the worker holds, which the ledger bounds by the room that the worker's
hello told. When the outbox is full, finished samples wait here, and no new leases come. The environment and the
tokenizer are called in threads, and one at a time because they need not be safe to call at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from enum import Enum, auto

from periplus import clock
from periplus.errors import PeriplusError
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory
from rollout_worker.engines.engine import CompletionEnd, Engine, EngineDied, RequestFailed, SampleRequest
from rollout_worker.episodes.episode import EpisodeDesk, FailedLease, FinishedEpisode, request_id_of
from rollout_worker.episodes.framing import LingeringResults, frames_of
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.episodes.scoring import SampleScore, ScoredSample, Scorer, turn_score
from rollout_worker.episodes.turns import TurnDriver
from rollout_worker.messages import SamplingStarted, WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.serving import ServedRequest, Serving

log = logging.getLogger(__name__)

STARTED_DEADLINE_S = 5.0
"""Seconds that generation waits until the message that names its samples is written to the gateway.

A sample may kill this process, and its death counts as an attempt at the samples that are known to have started.
Writing takes about a millisecond, unless the gateway is away. Chosen by hand.
"""

GATHER_S = 0.02
"""Seconds in which slots that become free are gathered at most, so that one message names the samples that begin in
them. The slots of a full engine become free one by one, and each message crosses the network between regions. A slot
that is idle for so long costs a few tokens. Chosen by hand.
"""

GATHER_SHARE = 0.25
"""Share of the engine's slots that is not left idle to gather more. Chosen by hand."""

MAX_FAILURES_IN_A_ROW = 64
"""Number of leases that fail in a row, without a sample between them, after which the process ends: then not the
problems but the process is at fault. Four groups of 16 are as many. Chosen by hand.
"""


class _Unfinished(Enum):
    AGAIN = auto()  # the lease waits again
    DROPPED = auto()  # nobody waits for the sample


class Sampler:
    """Samples with one engine. Call `wake` when leases came.

    `environment_lock` is held by whoever calls the environment or the tokenizer of `desk`. `turns` plays the episodes
    of a job whose environment answers the model; then a sample is an episode.
    """

    def __init__(
        self,
        engine: Engine,
        desk: EpisodeDesk,
        scorer: Scorer,
        environment_lock: asyncio.Lock,
        queue: LeaseQueue,
        serving: Serving,
        outbox: Outbox[WorkerMessage],
        *,
        zstd_level: int,
        turns: TurnDriver | None = None,
    ) -> None:
        self._engine, self._desk, self._queue, self._serving = engine, desk, queue, serving
        self._scorer, self._desk_lock = scorer, environment_lock
        self._out, self._zstd_level = outbox, zstd_level
        self._turns = turns
        self._news, self._ended = asyncio.Event(), asyncio.Event()
        self._num_starting = 0  # taken, and not yet given to the engine
        self._num_under_way = 0  # taken, and not yet finished, failed or put back
        self._alone: QueuedLease | None = None
        self._results = LingeringResults()
        self._num_failed_in_a_row = 0

    def wake(self) -> None:
        """Note that leases may begin that could not before."""
        self._news.set()
        self._ended.set()  # finished samples may wait for others, or need not wait any more

    async def revoke(self, lease_ids: Collection[int], *, still_wanted: bool) -> None:
        """Drop leases that are over. Unless samples are `still_wanted`, end those that are under way too.

        Raises: EngineDied.
        """
        revoked = self._queue.revoke(lease_ids)
        if revoked and not still_wanted:
            ids = [request_id_of(lease) for lease in revoked]
            if self._turns is not None:
                self._turns.abort(ids)
            await self._engine.abort(ids)

    async def run(self) -> None:
        """Sample until cancelled. Raises: EngineDied; PeriplusError when too many leases fail in a row."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._follow_serving())
            await self._begin_leases(tasks)

    async def _follow_serving(self) -> None:
        while True:
            await self._serving.changed()
            self.wake()

    # ---- begin ----------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._engine.room - self._num_starting

    async def _begin_leases(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._news.wait()
            await self._gather_room()
            # Clear the event before looking, so that what comes while leases begin wakes the loop again.
            self._news.clear()
            policy = self._serving.policy
            if policy is None or self._room <= 0 or self._alone is not None:
                continue  # whatever changes one of these wakes the loop
            leases = self._queue.take(policy, self._room, is_idle=not self._num_under_way)
            if leases:
                await self._begin(tasks, leases, policy)

    async def _gather_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self._num_under_way and self._room < GATHER_SHARE * self._engine.num_slots:
                    self._news.clear()
                    await self._news.wait()

    async def _begin(self, tasks: asyncio.TaskGroup, leases: Sequence[QueuedLease], policy: Policy) -> None:
        self._num_starting += len(leases)
        self._num_under_way += len(leases)
        self._alone = leases[0] if leases[0].alone else None
        # Tell the gateway which samples start, before one of them can kill this process.
        await self._out.put(SamplingStarted(tuple(lease.lease_id for lease in leases), policy))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STARTED_DEADLINE_S):
                await self._out.written()
        async with self._desk_lock:
            made = await asyncio.to_thread(self._desk.requests, leases)
        for lease, request in zip(leases, made, strict=True):
            tasks.create_task(self._sample(lease, request, policy))

    async def _sample(self, lease: QueuedLease, request: SampleRequest | FailedLease, started_with: Policy) -> None:
        try:
            outcome = await self._outcome(lease, request)
            if outcome is _Unfinished.AGAIN:
                self._queue.put_back(lease, started_with)
                return
            self._queue.end(lease)
            self.wake()  # the engine has room again, however long scoring takes
            result = await self._scored(outcome) if isinstance(outcome, FinishedEpisode) else outcome
            if isinstance(result, FailedLease):
                await self._fail(result)
            elif isinstance(result, Trajectory):
                self._num_failed_in_a_row = 0
                self._results.add([result], clock.monotonic_s())
        finally:
            self._num_under_way -= 1
            if self._alone is lease:
                self._alone = None
            self.wake()

    async def _outcome(
        self, lease: QueuedLease, request: SampleRequest | FailedLease
    ) -> FinishedEpisode | FailedLease | _Unfinished:
        self._num_starting -= 1  # nothing is awaited between this and `submit`
        if isinstance(request, FailedLease):
            return request
        policy = self._serving.policy
        if policy is None or policy.fork != lease.start_at.fork:
            return _Unfinished.AGAIN  # the engine stopped serving since the lease was taken
        # The environment of an episode is foreign code, and may raise anything.
        costs_one_lease = RequestFailed if self._turns is None else Exception
        with self._serving.request(request.request_id, lease.start_at.fork) as served:
            try:
                finished = await self._generated(lease, request, served)
            except EngineDied:
                raise
            except costs_one_lease as error:
                return _Unfinished.AGAIN if served.is_condemned else FailedLease.of(lease, error)
            if not await self._serving.verdict(served, finished.completion.runs):
                return _Unfinished.AGAIN
        if finished.completion.end is CompletionEnd.ABORTED:
            return _Unfinished.DROPPED  # it was revoked, or is of a fork that was left
        return finished

    async def _generated(self, lease: QueuedLease, request: SampleRequest, served: ServedRequest) -> FinishedEpisode:
        if self._turns is None:
            began_s = clock.monotonic_s()
            completion = await self._engine.submit(request)
            generation_s = clock.monotonic_s() - began_s
            return FinishedEpisode(
                lease=lease, prompt_ids=request.prompt_ids, completion=completion, generation_s=generation_s
            )
        played = await self._turns.play(lease, request, served)
        return FinishedEpisode(
            lease=lease,
            prompt_ids=played.prompt_ids,
            completion=played.completion,
            generation_s=played.generation_s,
            mask=played.mask,
            turn_rewards=played.turn_rewards,
        )

    # ---- finish ---------------------------------------------------------------------------------------------------

    async def _scored(self, finished: FinishedEpisode) -> Trajectory | FailedLease:
        try:
            score = await self._score(finished)
            return await asyncio.to_thread(self._desk.trajectory, finished, score)
        except Exception as error:  # the root of foreign code: a person's environment or reward may raise anything
            return FailedLease.of(finished.lease, error)

    async def _score(self, finished: FinishedEpisode) -> SampleScore:
        if finished.turn_rewards is not None:
            return turn_score(finished.turn_rewards)
        async with self._desk_lock:
            answer = await asyncio.to_thread(self._desk.answer, finished)
        lease, completion = finished.lease, finished.completion
        sample = ScoredSample(
            group=lease.group,
            sample=lease.sample,
            token_ids=tuple(completion.token_ids),
            version=max((run.policy.version for run in completion.runs), default=0),
        )
        return await self._scorer.score(answer.item, answer.text, num_tokens=answer.num_tokens, sample=sample)

    async def _send(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._ended.wait()
            self._ended.clear()
            if self._wait_s() == 0.0:
                for frame in frames_of(self._results.take(), zstd_level=self._zstd_level):
                    await self._out.put_frame(frame)

    def _wait_s(self) -> float | None:
        policy = self._serving.policy
        more_come = bool(self._num_under_way) or self._queue.has_startable(policy)
        return self._results.wait_s(clock.monotonic_s(), more_come=more_come)

    async def _fail(self, failed: FailedLease) -> None:
        event(log, logging.ERROR, "sample_failed", lease=failed.lease.lease_id, item=failed.lease.item, why=failed.why)
        await self._out.put(failed)
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row >= MAX_FAILURES_IN_A_ROW:
            at_fault = "reward function" if failed.reward_failure else "engine or the environment of this worker"
            raise PeriplusError(
                f"{self._num_failed_in_a_row} samples in a row failed (the last one: {failed.why}); the {at_fault} is "
                "broken; see the worker's log"
            )
