"""The sampler with an engine that a test scripts: what begins when, and what becomes of each lease."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from periplus.codec.registry import trajectory_decoder
from periplus.environment.prompts import PromptEncoder
from periplus.errors import PeriplusError
from periplus.net import rpc
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Trajectory, TrajectoryLimits
from periplus.values.transport_keys import KeyedFrame
from rollout_worker.engines.engine import EngineDied, RequestFailed
from rollout_worker.episodes import framing, sampler
from rollout_worker.episodes.episode import DrawSettings, EpisodeDesk, EpisodeSettings, FailedLease
from rollout_worker.episodes.queue import LeaseQueue
from rollout_worker.episodes.sampler import MAX_FAILURES_IN_A_ROW, Sampler
from rollout_worker.episodes.scoring import EnvironmentScorer, SampleScore, ScoredSample
from rollout_worker.messages import SamplingStarted, WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.serving import Serving
from tests.support.engines.scripted import ScriptedEngine
from tests.support.episodes import Counting, Letters, lease

V0, V1 = Policy(0, 0), Policy(0, 1)
SETTINGS = EpisodeSettings(
    seed=3,
    training=DrawSettings(temperature=0.5, max_new_tokens=4),
    evaluation=DrawSettings(temperature=0.0, max_new_tokens=4),
    worker_id="w",
    limits=TrajectoryLimits(vocab_size=50, max_prompt_tokens=9, max_completion_tokens=4),
)


class Told(EnvironmentScorer):
    """Scores by the environment, and keeps what it is told of samples."""

    def __init__(self, environment: Any, lock: asyncio.Lock, told: list[ScoredSample]) -> None:
        super().__init__(environment, lock)
        self.told = told

    async def score(self, item: Any, completion: str, *, num_tokens: int, **rest: Any) -> SampleScore:
        self.told.append(rest["sample"])
        return await super().score(item, completion, num_tokens=num_tokens)


class Scene:
    """A sampler whose engine may serve version 0, and everything that it put into the outbox."""

    def __init__(self, num_slots: int) -> None:
        self.engine, self.queue, self.serving = ScriptedEngine(num_slots), LeaseQueue(), Serving()
        self.outbox = Outbox[WorkerMessage]("w", 1)
        self.environment: Any = Counting()
        self.messages: list[WorkerMessage] = []
        self.frames: list[tuple[Trajectory, ...]] = []
        desk = EpisodeDesk(PromptEncoder(tokenizer=Letters()), self, SETTINGS)
        lock = asyncio.Lock()
        self.scored: list[ScoredSample] = []
        scorer = Told(self, lock, self.scored)
        self.sampler = Sampler(self.engine, desk, scorer, lock, self.queue, self.serving, self.outbox, zstd_level=1)
        self.serving.sound(V0)

    def __len__(self) -> int:
        return len(self.environment)

    def item(self, index: int) -> Any:
        return self.environment.item(index)

    def score(self, index: int, completion: str) -> float:
        return float(self.environment.score(index, completion))

    async def write_out(self) -> None:
        while True:
            match await self.outbox.next():
                case KeyedFrame(key, frame):
                    decode = trajectory_decoder(frame.codec)
                    self.frames.append(decode(frame.payload, max_content_bytes=1 << 20))
                    self.outbox.acknowledge(key.epoch, [key.sequence])
                case message:
                    self.messages.append(message)

    def give(self, *leases: Any) -> None:
        for each in leases:
            self.queue.add(each)
        self.sampler.wake()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.001)

    async def running(self, *request_ids: str) -> None:
        await self.until(lambda: set(self.engine.running) == set(request_ids))

    async def quiet(self) -> None:
        """Wait for longer than the sampler gathers."""
        await asyncio.sleep(3 * sampler.GATHER_S)

    @property
    def started(self) -> list[tuple[int, ...]]:
        return [each.lease_ids for each in self.messages if isinstance(each, SamplingStarted)]

    @property
    def failed(self) -> list[int]:
        return [each.lease.lease_id for each in self.messages if isinstance(each, FailedLease)]

    @property
    def sent(self) -> list[list[int]]:
        return [[trajectory.lease_id for trajectory in frame] for frame in self.frames]


def play(scene: Callable[[Scene], Awaitable[None]], *, num_slots: int = 4) -> None:
    async def run() -> None:
        it = Scene(num_slots)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(it.sampler.run()), tasks.create_task(it.write_out())]
            await scene(it)
            for task in running:
                task.cancel()

    asyncio.run(run())


def test_leases_begin_while_there_is_room_and_one_message_names_those_that_begin_together() -> None:
    async def scene(it: Scene) -> None:
        it.give(*(lease(number) for number in range(1, 7)))
        await it.running("0.1", "0.2", "0.3", "0.4")
        assert it.started == [(1, 2, 3, 4)]
        it.engine.complete("0.2", PolicyRun(V0, 1))
        it.engine.complete("0.3", PolicyRun(V0, 1))
        await it.running("0.1", "0.4", "0.5", "0.6")
        assert it.started == [(1, 2, 3, 4), (5, 6)]

    play(scene)


def test_a_scorer_is_told_which_sample_it_scores_with_its_tokens_and_newest_version() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(3, group=5))
        await it.running("0.3")
        it.engine.complete("0.3", PolicyRun(V0, 2))
        await it.until(lambda: it.scored)
        (told,) = it.scored
        assert (told.group, told.sample, told.version) == (5, 0, V0.version)
        assert len(told.token_ids) == 2

    play(scene)


def test_one_message_names_the_leases_for_slots_that_become_free_one_after_the_other() -> None:
    async def scene(it: Scene) -> None:
        it.give(*(lease(number) for number in range(1, 24)))
        await it.until(lambda: len(it.engine.running) == 20)
        for number in (1, 2, 3, 4):
            it.engine.complete(f"0.{number}", PolicyRun(V0, 1))
            await asyncio.sleep(0)
        await it.until(lambda: "0.23" in it.engine.running)
        assert [len(each) for each in it.started] == [20, 3]

    play(scene, num_slots=20)


def test_the_last_sample_is_sent_at_once_and_others_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "LINGER_S", 30.0)

    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2), lease(3))
        await it.running("0.1", "0.2", "0.3")
        it.engine.complete("0.3", PolicyRun(V0, 2))
        it.engine.complete("0.1", PolicyRun(V0, 1))
        await it.quiet()
        assert it.sent == []
        it.engine.complete("0.2", PolicyRun(V0, 1), PolicyRun(V1, 1, kept_kv=True))
        await it.until(lambda: it.frames)
        assert it.sent == [[1, 2, 3]]
        assert it.frames[0][1].policies == (PolicyRun(V0, 1), PolicyRun(V1, 1, kept_kv=True))
        assert [trajectory.reward for trajectory in it.frames[0]] == [1.0, 2.0, 2.0]

    play(scene)


def test_a_sample_that_has_lingered_is_sent_though_others_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "LINGER_S", 0.05)

    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2))
        await it.running("0.1", "0.2")
        it.engine.complete("0.1", PolicyRun(V0, 1))
        await it.until(lambda: it.frames)
        assert it.sent == [[1]]
        assert list(it.engine.running) == ["0.2"]

    play(scene)


def test_a_request_that_fails_costs_one_lease() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2))
        await it.running("0.1", "0.2")
        it.engine.fail(RequestFailed("a prompt of 99 tokens"), "0.1")
        await it.until(lambda: it.failed)
        it.engine.complete("0.2", PolicyRun(V0, 1))
        await it.until(lambda: it.frames)
        assert (it.failed, it.sent) == ([1], [[2]])

    play(scene)


def test_an_environment_that_raises_before_or_after_generation_costs_one_lease() -> None:
    class Moody(Counting):
        def item(self, index: int) -> Any:
            return super().item(1 // (index - 1) * 0 + index)

        def score(self, index: int, completion: str) -> float:
            return super().score(index, completion) / (index - 2)

    async def scene(it: Scene) -> None:
        it.environment = Moody()
        it.give(lease(1), lease(2), lease(3))
        await it.running("0.2", "0.3")
        await it.until(lambda: it.failed)
        assert it.failed == [1]
        it.engine.complete("0.2", PolicyRun(V0, 1))
        it.engine.complete("0.3", PolicyRun(V0, 1))
        await it.until(lambda: it.frames and len(it.failed) == 2)
        assert (it.failed, it.sent) == ([1, 2], [[3]])

    play(scene)


def test_too_many_failures_in_a_row_end_the_process_and_a_sample_between_them_counts() -> None:
    async def scene(it: Scene) -> None:
        it.give(*(lease(number) for number in range(1, 2 * MAX_FAILURES_IN_A_ROW)))
        for number in range(1, 2 * MAX_FAILURES_IN_A_ROW):
            await it.until(partial(it.engine.running.__contains__, f"0.{number}"))
            if number == MAX_FAILURES_IN_A_ROW - 1:
                it.engine.complete(f"0.{number}", PolicyRun(V0, 1))
                await it.until(lambda: it.frames or len(it.failed) == MAX_FAILURES_IN_A_ROW - 2)
                await it.quiet()
            else:
                it.engine.fail(RequestFailed("the device is lost"), f"0.{number}")
        await asyncio.sleep(20)

    with pytest.raises(ExceptionGroup) as caught:
        play(scene)
    error = rpc.first_of(caught.value)
    assert isinstance(error, PeriplusError)
    assert f"{MAX_FAILURES_IN_A_ROW} samples in a row failed (the last one: " in str(error)
    assert "the device is lost" in str(error)


def test_an_engine_that_died_ends_the_process_at_once() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2))
        await it.running("0.1", "0.2")
        it.engine.fail(EngineDied("the core was killed"))
        await asyncio.sleep(20)

    with pytest.raises(ExceptionGroup) as caught:
        play(scene)
    assert isinstance(rpc.first_of(caught.value), EngineDied)


def test_a_lease_that_is_to_be_generated_alone_waits_for_the_others_and_they_for_it() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2, alone=True), lease(3))
        await it.running("0.1")
        await it.quiet()
        assert list(it.engine.running) == ["0.1"]
        it.engine.complete("0.1", PolicyRun(V0, 1))
        await it.running("0.2")
        await it.quiet()
        assert list(it.engine.running) == ["0.2"]
        it.engine.complete("0.2", PolicyRun(V0, 1))
        await it.running("0.3")

    play(scene)


@pytest.mark.parametrize("still_wanted", [False, True])
def test_a_revoked_lease_is_ended_unless_its_sample_is_still_wanted(still_wanted: bool) -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2, start=V1))
        await it.running("0.1")
        await it.sampler.revoke({1, 2}, still_wanted=still_wanted)
        assert it.engine.aborted == ([] if still_wanted else ["0.1"])
        if still_wanted:
            it.engine.complete("0.1", PolicyRun(V0, 1))
            await it.until(lambda: it.frames)
            assert it.sent == [[1]]
        it.serving.sound(V1)
        await it.quiet()
        assert not it.engine.running
        assert not it.failed
        assert len(it.queue) == 0

    play(scene)


def test_a_result_in_doubt_waits_and_goes_out_when_its_version_is_proven() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1))
        await it.running("0.1")
        it.serving.written(V1, may_serve=True, in_doubt=True)
        it.engine.complete("0.1", PolicyRun(V0, 1), PolicyRun(V1, 1))
        it.give(lease(2))
        await it.running("0.2")
        await it.quiet()
        assert it.frames == []
        it.serving.sound(V1)
        it.engine.complete("0.2", PolicyRun(V1, 1))
        await it.until(lambda: sum(map(len, it.sent)) == 2)

    play(scene)


def test_what_a_failed_check_costs_is_generated_again_with_newer_weights_and_not_reported_as_failed() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2))
        await it.running("0.1", "0.2")
        it.serving.written(V1, may_serve=True, in_doubt=True)
        it.engine.complete("0.1", PolicyRun(V1, 1))
        await it.engine.abort(it.serving.condemn())
        await it.quiet()
        assert not it.engine.running
        it.serving.sound(V1)
        await it.running("0.1", "0.2")
        assert it.started == [(1, 2), (1, 2)]
        for request_id in ("0.1", "0.2"):
            it.engine.complete(request_id, PolicyRun(V1, 2))
        await it.until(lambda: sum(map(len, it.sent)) == 2)
        assert it.failed == []
        assert all(run.num_tokens == 2 for frame in it.frames for each in frame for run in each.policies)

    play(scene)


def test_requests_of_a_fork_that_was_left_are_dropped() -> None:
    async def scene(it: Scene) -> None:
        it.give(lease(1), lease(2, start=Policy(1, 0)))
        await it.running("0.1")
        await it.engine.abort(it.serving.leave_fork(1))
        it.serving.sound(Policy(1, 0))
        await it.running("1.2")
        await it.quiet()
        assert (it.engine.asked, it.failed, it.frames) == (["0.1", "1.2"], [], [])

    play(scene)
