"""What an environment and a tokenizer make of leases and completions, and what each failure costs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from periplus.environment.completions import CompletionDecoder
from periplus.environment.environment import Item
from periplus.environment.prompts import PromptEncoder
from periplus.errors import CorruptFrame
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, TrajectoryLimits
from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.engines.stop_strings import StopStrings
from rollout_worker.episodes.episode import (
    WHY_CHARACTERS,
    DrawSettings,
    EpisodeDesk,
    EpisodeSettings,
    FailedLease,
    FinishedEpisode,
)
from rollout_worker.episodes.scoring import SampleScore
from tests.support.episodes import Counting, Letters, lease

SETTINGS = EpisodeSettings(
    seed=3,
    training=DrawSettings(temperature=0.5, max_new_tokens=4),
    evaluation=DrawSettings(temperature=0.0, max_new_tokens=4),
    worker_id="w",
    limits=TrajectoryLimits(vocab_size=50, max_prompt_tokens=9, max_completion_tokens=4),
)
RUNS = (PolicyRun(Policy(0, 1), 2), PolicyRun(Policy(0, 2), 1, kept_kv=True))


def desk(environment: Any = None) -> EpisodeDesk:
    return EpisodeDesk(PromptEncoder(tokenizer=Letters()), environment or Counting(), SETTINGS)


def finished(lease_id: int, **changed: Any) -> FinishedEpisode:
    completion = Completion(
        token_ids=(7, 8, 2), logprobs=(-0.5, -1.0, -0.25), runs=RUNS, end=CompletionEnd.EOS, longest_gap_s=0.0
    )
    return FinishedEpisode(
        lease=lease(lease_id), prompt_ids=(4, 5), completion=replace(completion, **changed), generation_s=1.5
    )


def failing(on: str, item: int, error: Exception) -> Any:
    class Failing(Counting):
        def item(self, index: int) -> Item:
            if (on, item) == ("item", index):
                raise error
            return super().item(index)

        def score(self, index: int, completion: str) -> float:
            if (on, item) == ("score", index):
                raise error
            return super().score(index, completion)

    return Failing()


def test_a_request_is_keyed_by_its_lease_and_evaluation_is_greedy() -> None:
    train, evaluation = desk().requests([lease(1), replace(lease(2), purpose=Purpose.EVAL)])
    assert isinstance(train, SampleRequest)
    assert isinstance(evaluation, SampleRequest)
    assert (train.request_id, train.seed, train.group, train.sample) == ("0.1", 3, 1, 0)
    assert (train.temperature, train.greedy, evaluation.greedy) == (0.5, False, True)


STOPPING = replace(
    SETTINGS,
    training=DrawSettings(
        temperature=0.5, max_new_tokens=4, stop=StopStrings(CompletionDecoder(tokenizer=Letters()), [" 8"])
    ),
    evaluation=DrawSettings(temperature=0.6, max_new_tokens=3, top_p=0.9, top_k=5, min_new_tokens=1),
)


def test_what_a_job_sets_for_each_purpose_is_in_its_requests_and_on_record() -> None:
    stopping = EpisodeDesk(PromptEncoder(tokenizer=Letters()), Counting(), STOPPING)
    measured = replace(lease(2), purpose=Purpose.EVAL)
    train, evaluation = stopping.requests([lease(1), measured])
    assert isinstance(train, SampleRequest)
    assert isinstance(evaluation, SampleRequest)
    assert train.stop is STOPPING.training.stop
    assert (train.top_p, train.top_k, train.min_new_tokens, train.max_new_tokens) == (1.0, 0, 0, 4)
    assert (evaluation.greedy, evaluation.temperature, evaluation.stop) == (False, 0.6, None)
    assert (evaluation.top_p, evaluation.top_k, evaluation.min_new_tokens, evaluation.max_new_tokens) == (0.9, 5, 1, 3)
    trained = stopping.trajectory(finished(1), SampleScore(reward=1.0))
    held_out = stopping.trajectory(replace(finished(2), lease=measured), SampleScore(reward=1.0))
    assert trained.sampling == SamplingParams(temperature=0.5, top_p=1.0, top_k=0)
    assert held_out.sampling == SamplingParams(temperature=0.6, top_p=0.9, top_k=5)


def test_a_stopped_completion_is_scored_before_its_stop_string_and_trained_on_to_its_end() -> None:
    stopping = EpisodeDesk(PromptEncoder(tokenizer=Letters()), Counting(), STOPPING)
    stopped = finished(1, token_ids=(7, 8), logprobs=(-0.5, -1.0), runs=RUNS[:1], end=CompletionEnd.STOP)
    answer = stopping.answer(stopped)
    assert (answer.text, answer.num_tokens) == ("7", 2)
    trajectory = stopping.trajectory(stopped, SampleScore(reward=1.0))
    assert (trajectory.stop_reason, trajectory.completion_ids.tolist()) == (StopReason.STOP, [7, 8])
    assert trajectory.mask.all()


def test_a_trajectory_has_the_runs_of_its_completion() -> None:
    trajectory = desk().trajectory(finished(1), SampleScore(reward=1.0))
    assert (trajectory.policies, trajectory.stop_reason, trajectory.generation_s) == (RUNS, StopReason.EOS, 1.5)
    assert trajectory.mask.all()
    assert trajectory.logprobs.tolist() == [-0.5, -1.0, -0.25]


def test_an_environment_that_raises_costs_the_one_lease() -> None:
    made = desk(failing("item", 2, KeyError("no such item"))).requests([lease(1), lease(2), lease(3)])
    assert [type(each) for each in made] == [SampleRequest, FailedLease, SampleRequest]
    assert made[1] == FailedLease(lease(2), "KeyError: 'no such item'")
    assert len(FailedLease.of(lease(2), ValueError("x" * 10_000)).why) == WHY_CHARACTERS


def test_what_is_scored_is_the_problem_and_the_text_of_the_completion() -> None:
    answer = desk().answer(finished(7))
    assert (answer.item.prompt, answer.text) == ("count to 7", "7 8 2")


def test_the_parts_of_a_reward_travel_in_the_metadata() -> None:
    plain = desk().trajectory(finished(1), SampleScore(reward=0.5))
    parted = desk().trajectory(finished(1), SampleScore(reward=0.5, parts={"exact": 1.0, "length": -1.0}))
    assert (plain.reward, plain.metadata) == (0.5, "")
    assert json.loads(parted.metadata) == {"reward_parts": {"exact": 1.0, "length": -1.0}}


@pytest.mark.parametrize(
    ("episode", "reward", "why"),
    [
        (finished(2), 1e200, "1e\\+200"),
        (finished(3, logprobs=(-1.0, float("nan"), -1.0)), 1.0, "logprob"),
        (finished(4, runs=(PolicyRun(Policy(0, 1), 3, kept_kv=True),)), 1.0, "kept_kv"),
    ],
)
def test_a_sample_that_the_trainer_would_refuse_is_refused_here(
    episode: FinishedEpisode, reward: float, why: str
) -> None:
    with pytest.raises(CorruptFrame, match=why):
        desk().trajectory(episode, SampleScore(reward=reward))
