"""What an environment and a tokenizer make of leases and completions, and what each failure costs."""

from dataclasses import replace
from typing import Any

import numpy as np

from periplus.environment.environment import Item
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, StopReason, TrajectoryLimits
from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.episodes.episode import (
    WHY_CHARACTERS,
    EpisodeDesk,
    EpisodeSettings,
    FailedLease,
    FinishedEpisode,
)
from tests.support.episodes import Counting, Letters, lease

SETTINGS = EpisodeSettings(
    seed=3,
    temperature=0.5,
    max_new_tokens=4,
    worker_id="w",
    limits=TrajectoryLimits(vocab_size=50, max_prompt_tokens=9, max_completion_tokens=4),
)
RUNS = (PolicyRun(Policy(0, 1), 2), PolicyRun(Policy(0, 2), 1, kept_kv=True))


def desk(environment: Any = None) -> EpisodeDesk:
    return EpisodeDesk(Letters(), environment or Counting(), SETTINGS)


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


def test_a_trajectory_has_the_runs_of_its_completion() -> None:
    (trajectory,), failed = desk().scored([finished(1)])
    assert failed == ()
    assert (trajectory.policies, trajectory.stop_reason, trajectory.generation_s) == (RUNS, StopReason.EOS, 1.5)
    assert trajectory.mask.all()
    assert trajectory.logprobs.tolist() == [-0.5, -1.0, -0.25]


def test_an_environment_that_raises_costs_the_one_lease() -> None:
    made = desk(failing("item", 2, KeyError("no such item"))).requests([lease(1), lease(2), lease(3)])
    assert [type(each) for each in made] == [SampleRequest, FailedLease, SampleRequest]
    assert made[1] == FailedLease(lease(2), "KeyError: 'no such item'")
    trajectories, failed = desk(failing("score", 2, ValueError("x" * 10_000))).scored([finished(i) for i in (1, 2, 3)])
    assert [trajectory.lease_id for trajectory in trajectories] == [1, 3]
    assert [each.lease.lease_id for each in failed] == [2]
    assert len(failed[0].why) == WHY_CHARACTERS


def test_a_sample_that_the_trainer_would_refuse_costs_its_own_lease_alone() -> None:
    class Generous(Counting):
        def score(self, index: int, completion: str) -> float:
            return 1e200 if index == 2 else 1.0

    nan = finished(3, logprobs=(-1.0, float("nan"), -1.0))
    first_kept = finished(4, runs=(PolicyRun(Policy(0, 1), 3, kept_kv=True),))
    trajectories, failed = desk(Generous()).scored([finished(1), finished(2), nan, first_kept])
    assert [trajectory.lease_id for trajectory in trajectories] == [1]
    assert [each.lease.lease_id for each in failed] == [2, 3, 4]
    assert "1e+200" in failed[0].why
    assert "logprob" in failed[1].why
    assert "kept_kv" in failed[2].why
    assert np.isfinite(trajectories[0].reward)
