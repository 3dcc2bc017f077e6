"""Levels 3 to 5 of HetRL: genomes decode to placements that fit, and swaps keep group sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answer.evaluation import Violation
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.hetrl import evolution, genome
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.problem.goal import Rules
from planner.problem.groupings import groupings
from planner.problem.workload import TRAINING
from tests.support.planner.searches import problem

ASKED = problem()
PRICES = CostTables(ASKED)
MENU = CandidateLists(PRICES)
GROUPINGS = groupings(ASKED)


@settings(max_examples=25, deadline=None)
@given(which=st.integers(0, len(GROUPINGS) - 1), seed=st.integers(0, 1 << 20), data=st.data())
def test_every_decoded_genome_fits_its_machines(which: int, seed: int, data: st.DataObject) -> None:
    space = genome.grouping_decoder(MENU, GROUPINGS[which])
    rng = np.random.default_rng(seed)
    cuts = sorted(
        data.draw(st.lists(st.integers(1, 60), min_size=len(GROUPINGS[which]), max_size=len(GROUPINGS[which])))
    )
    sizes = tuple(int(n) for n in np.diff([0, *cuts])) if len(set(cuts)) == len(cuts) else (1,) * len(cuts)
    each = evolution.seeded(space, sizes, rng)
    seeded = np.array(each.held).sum(axis=1).tolist()
    assert all(held <= size for held, size in zip(seeded, sizes, strict=True))
    for change in (evolution.swapped, evolution.mutated, evolution.relaid):
        each = change(space, each, rng)
        assert np.array(each.held).min() >= 0
        assert (np.array(each.held).sum(axis=0) <= [at.num_gpus for at in space.classes]).all()
        assert np.array(each.held).sum(axis=1).tolist() == seeded
        placement = space.placement(each)
        if placement is not None:
            estimate = evaluate(PRICES, placement)
            assert not isinstance(estimate, Violation) or estimate.kind not in ("shape", "inventory", "memory")


def test_a_region_that_is_forbidden_to_a_task_is_not_held_by_its_group() -> None:
    asked = problem(rules=Rules(forbidden_regions=frozenset({"cloud-b"})))
    lists = CandidateLists(CostTables(asked))
    space = genome.grouping_decoder(lists, GROUPINGS[0])
    held = evolution.seeded(space, (64,), np.random.default_rng(0)).held
    assert all(not n for at, n in zip(space.classes, held[0], strict=True) if at.region.name == "cloud-b")


@pytest.mark.parametrize("num_gpus", [1, 7, 8, 24])
def test_the_menu_lists_meshes_of_at_most_the_devices_given(num_gpus: int) -> None:
    tasks = tuple(task for task in ASKED.workload.tasks if task in TRAINING)
    key = next(key for key in PRICES.classes if "A100" in key)
    options = MENU.meshes(tasks, ((key, num_gpus),))
    assert all(sum(pool.num_gpus for pool in option.pools) <= num_gpus for option in options)
    assert [option.busy_s for option in options] == sorted(option.busy_s for option in options)
