"""Transfer constants of pairs of regions, computed by hand."""

from dataclasses import replace

import pytest

from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.transfers import critic_transfer, trainer_transfers
from planner.problem.workload import TASKS, Task, WeightTransfer
from tests.support.planner.cost import MODEL, fleet, machines, problem, region, workload

PAIR = (Task.GENERATION, Task.ACTOR_TRAINING)
ON = fleet(region("x", machines()), region("y", machines()), region("z", machines()), bytes_per_s=1e8, rtt_s=0.2)


def test_a_version_takes_its_bytes_and_half_a_round_trip() -> None:
    transfer = trainer_transfers(CostTables(problem(ON, workload(PAIR))), "x").transfers["y"]
    assert transfer.link_s == pytest.approx(2 * MODEL.num_params / 1e8)
    assert transfer.weights_s == pytest.approx(transfer.link_s + 0.1)
    assert transfer.usd_per_version == pytest.approx(2 * MODEL.num_params / 1e9 * 0.05)


def test_deltas_and_adapters_are_smaller() -> None:
    deltas = replace(workload(PAIR), weights=WeightTransfer(bytes_per_param=0.02, is_delta=True))
    adapters = replace(workload(PAIR), lora_rank=8)
    whole, some, few = (
        trainer_transfers(CostTables(problem(ON, of)), "x").transfers["y"].link_s
        for of in (workload(PAIR), deltas, adapters)
    )
    assert some == pytest.approx(whole / 100)
    assert few < whole / 20


def test_samples_go_home_a_group_at_last() -> None:
    of = workload(PAIR)
    transfer = trainer_transfers(CostTables(problem(ON, of)), "x").transfers["y"]
    a_sample = 5 * (100 + 300)
    assert transfer.trajectories_s == pytest.approx(4 * a_sample / 1e8 + 0.1)
    assert transfer.scoring_s == pytest.approx(2 * transfer.trajectories_s)
    assert transfer.samples_per_s == pytest.approx(1e8 / a_sample)


def test_at_home_nothing_crosses_a_gateway() -> None:
    transfer = trainer_transfers(CostTables(problem(ON, workload(PAIR))), "x").transfers["x"]
    assert (transfer.weights_s, transfer.link_s, transfer.scoring_s, transfer.usd_per_version) == (0, 0, 0, 0)


def test_two_hidden_regions_meet_in_a_public_one() -> None:
    hidden = tuple(replace(each, is_public=each.name == "z") for each in ON.regions)
    asked = problem(replace(ON, regions=hidden), workload(PAIR))
    transfer = trainer_transfers(CostTables(asked), "x").transfers["y"]
    assert transfer.weights_s == pytest.approx(transfer.link_s + 0.2)
    alone = problem(replace(ON, regions=hidden[:2], links=ON.links[:2]), workload(PAIR))
    assert set(trainer_transfers(CostTables(alone), "x").transfers) == {"x"}


def test_caps_bind_the_uplink_and_the_downlink() -> None:
    capped = tuple(replace(each, wan_up_bytes_per_s=5e7, wan_down_bytes_per_s=2e6) for each in ON.regions)
    start = trainer_transfers(CostTables(problem(replace(ON, regions=capped), workload(PAIR))), "x")
    assert start.uplink_s == pytest.approx(2 * MODEL.num_params / 5e7)
    assert start.samples_per_s == pytest.approx(2e6 / 2000)
    assert start.transfers["y"].link_s == pytest.approx(2 * MODEL.num_params / 2e6)


def test_the_critics_weights_have_no_head() -> None:
    transfer = critic_transfer(CostTables(problem(ON, workload(TASKS))), "x", "y")
    assert transfer is not None
    assert transfer.link_s == pytest.approx(2 * (MODEL.num_params - MODEL.embedding_params) / 1e8)
