from typing import get_args

from periplus.job.algorithm import GROUPLESS, AlgorithmSection
from trainer.learning.losses.registry import ALGORITHMS


def test_a_job_can_name_exactly_the_algorithms_that_exist() -> None:
    assert set(get_args(AlgorithmSection.model_fields["name"].annotation)) == set(ALGORITHMS)


def test_only_ppo_has_a_critic() -> None:
    assert {name for name, algorithm in ALGORITHMS.items() if algorithm.has_critic} == {"ppo"}
    assert set(ALGORITHMS) > GROUPLESS
