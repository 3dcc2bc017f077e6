"""Levels 1 and 2 of HetRL: groupings of the tasks, and size vectors of the groups."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.methods.hetrl.group_sizes import size_vectors
from planner.problem.goal import STUDY
from planner.problem.groupings import groupings
from planner.problem.workload import Task
from tests.support.planner.searches import problem


@pytest.mark.parametrize(("algorithm", "num"), [("grpo", 15), ("ppo", 203)])
def test_level_one_is_every_partition_of_the_tasks(algorithm: str, num: int) -> None:
    found = groupings(problem(algorithm=algorithm))
    assert len(set(found)) == len(found) == num
    assert all(sorted(t for group in each for t in group) == sorted(found[0][0]) for each in found)


def test_a_runtime_that_does_not_share_devices_has_one_grouping() -> None:
    limits = replace(STUDY, colocates=False)
    assert groupings(problem(limits=limits)) == (tuple((task,) for task in problem().workload.tasks),)


def test_roles_of_the_trainer_are_in_its_group() -> None:
    limits = replace(STUDY, colocates=False, roles_on_trainer=frozenset({Task.REFERENCE, Task.ACTOR_TRAINING}))
    found = groupings(problem(limits=limits))
    assert found
    for grouping in found:
        trainer = next(group for group in grouping if Task.ACTOR_TRAINING in group)
        assert Task.REFERENCE in trainer


@settings(max_examples=30, deadline=None)
@given(num_gpus=st.integers(4, 500), seed=st.integers(0, 1 << 20), all_of_them=st.booleans())
def test_sizes_are_at_least_one_each_and_at_most_the_fleet(num_gpus: int, seed: int, all_of_them: bool) -> None:
    asked = problem()
    for grouping in groupings(asked)[:: 4 + seed % 3]:
        endless = size_vectors(asked.workload, grouping, num_gpus, np.random.default_rng(seed), all_of_them=all_of_them)
        for vector in islice(endless, 6):
            assert len(vector) == len(grouping)
            assert min(vector) >= 1
            assert sum(vector) == num_gpus if all_of_them else sum(vector) <= num_gpus
