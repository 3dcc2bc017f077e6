from typing import Any

import pytest

from periplus.config.loading import validate
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, resolve
from planner.devices.catalogue import architectures
from planner.jobs.job_workload import rules_of_job, tasks_of_job, workload_of_job
from planner.problem.workload import Task, WeightTransfer

TINY = architectures()["builtin:qwen3-tiny"]


def job(**changes: Any) -> JobFile:
    tree = {"name": "a", "environment": {"name": "chain_sum"}, "algorithm": {"name": "grpo", "group_size": 4}}
    return resolve(validate(JobFile, tree | changes, "job"))


def test_a_workload_says_what_the_job_says() -> None:
    workload = workload_of_job(job(staleness=3, train={"groups_per_step": 16, "epochs": 2, "minibatches": 4}), TINY)
    assert (workload.algorithm, workload.eta, workload.samples_per_step) == ("grpo", 3, 64)
    assert (workload.epochs_per_step, workload.minibatches_per_step) == (2, 4)
    assert workload.gradient_bytes_per_param == 4.0  # trainers sum gradients in float32


def test_what_nobody_measured_is_as_long_and_as_large_as_it_can_be() -> None:
    workload = workload_of_job(job(sampling={"max_new_tokens": 99, "prompt_tokens": 10}), TINY)
    assert (workload.completion_tokens.quantiles, workload.prompt_tokens.quantiles) == ((99.0,), (10.0,))
    assert workload.weights == WeightTransfer(bytes_per_param=2.0, is_delta=True)


def test_the_measured_size_of_weights_comes_in_as_an_argument() -> None:
    weights = WeightTransfer(bytes_per_param=0.01, is_delta=True)
    assert workload_of_job(job(), TINY, weights=weights).weights == weights


def test_an_expected_length_is_the_mean_and_the_largest_stays() -> None:
    completions = workload_of_job(job(sampling={"max_new_tokens": 99, "expected_tokens": 20}), TINY).completion_tokens
    assert completions.mean == pytest.approx(20)
    assert completions.largest == 99.0


def test_an_expected_length_above_the_largest_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampling.expected_tokens is 100, but .* sampling.max_new_tokens = 99"):
        job(sampling={"max_new_tokens": 99, "expected_tokens": 100})


@pytest.mark.parametrize(
    ("algorithm", "tasks"),
    [
        ({"name": "grpo"}, {Task.GENERATION, Task.ACTOR_TRAINING}),
        ({"name": "grpo", "kl_coefficient": 0.1}, {Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING}),
        (
            {"name": "ppo"},
            {Task.GENERATION, Task.CRITIC_INFERENCE, Task.ACTOR_TRAINING, Task.CRITIC_TRAINING},
        ),
        ({"name": "ppo", "kl_coefficient": 0.1}, set(Task) - {Task.REWARD}),
    ],
)
def test_a_jobs_tasks_are_those_that_the_runtime_does_for_it(algorithm: dict[str, Any], tasks: set[Task]) -> None:
    assert set(tasks_of_job(job(algorithm=algorithm))) == tasks
    assert set(workload_of_job(job(algorithm=algorithm), TINY).tasks) == tasks


def test_a_free_job_has_no_rules() -> None:
    rules = rules_of_job(job())
    assert (rules.pins, rules.generating, rules.min_regions) == ((), frozenset(), 1)


def test_pins_hold_for_all_that_the_trainer_does_and_for_rollouts() -> None:
    rules = rules_of_job(
        job(
            algorithm={"name": "ppo", "kl_coefficient": 0.1},
            regions={"trainer": "x", "rollout": ["y", "z"], "min": 3},
        )
    )
    assert rules.generating == {"y", "z"}
    assert rules.min_regions == 3
    for task in tasks_of_job(job(algorithm={"name": "ppo", "kl_coefficient": 0.1})):
        allowed = {region for region in "wxyz" if rules.allows(task, region, is_spot=False)}
        assert allowed == ({"y", "z"} if task is Task.GENERATION else {"x"})
