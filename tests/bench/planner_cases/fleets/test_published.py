from collections import Counter

import pytest

from bench.planner_cases.fleets.published import HetrlScenario, areal_hex_fleet, hetrl_fleet
from bench.planner_cases.fleets.published_workloads import (
    AREAL_HEX_MODELS,
    HETRL_MODELS,
    areal_hex_workload,
    hetrl_workload,
)
from planner.files.fleet_file import fleet_of, to_tree
from planner.problem.device_classes import classes_of
from planner.problem.workload import TASKS, Task


@pytest.mark.parametrize("scenario", HetrlScenario)
def test_each_scenario_has_hetrls_devices_and_names_its_guesses(scenario: HetrlScenario) -> None:
    published = hetrl_fleet(scenario)
    counts = Counter[str]()
    for each in classes_of(published.fleet):
        counts[each.gpu.name] += each.num_gpus
    assert counts == {"A100-40GB-SXM": 24, "L40S": 24, "L4": 16}
    assert published.guesses
    assert fleet_of(to_tree(published.fleet), "f") == published.fleet
    num = len(published.fleet.regions)
    assert len(published.fleet.links) == num * (num - 1)


@pytest.mark.parametrize(
    ("scenario", "one_way_s", "gbit_per_s"),
    [
        (HetrlScenario.MULTI_REGION_HYBRID, (0.01, 0.01), (1, 5)),
        (HetrlScenario.MULTI_COUNTRY, (0.005, 0.03), None),
        (HetrlScenario.MULTI_CONTINENT, (0.005, 0.06), (0.9, 5)),
    ],
)
def test_links_lie_within_what_is_published(
    scenario: HetrlScenario, one_way_s: tuple[float, float], gbit_per_s: tuple[float, float] | None
) -> None:
    links = hetrl_fleet(scenario).fleet.links
    assert all(one_way_s[0] <= link.rtt_s / 2 <= one_way_s[1] for link in links)
    rates = [link.bytes_per_s * 8 / 1e9 for link in links]
    if gbit_per_s is None:
        assert "bandwidth: nothing is published" in " ".join(hetrl_fleet(scenario).guesses)
    else:
        assert (min(rates), max(rates)) == gbit_per_s


def test_areal_hexs_machines_have_step_3s_prices() -> None:
    fleet = areal_hex_fleet(num_h800_machines=2, num_h20_machines=3).fleet
    prices = {each.gpu.name: (each.num_gpus, each.usd_per_gpu_hour) for each in classes_of(fleet)}
    assert prices == {"H800-SXM": (16, 2.0), "H20": (24, 0.8)}
    assert [each.gpu.name for each in classes_of(areal_hex_fleet(num_h800_machines=0, num_h20_machines=1).fleet)] == [
        "H20"
    ]


@pytest.mark.parametrize("model", HETRL_MODELS)
@pytest.mark.parametrize(("algorithm", "tasks"), [("ppo", 6), ("grpo", 4)])
@pytest.mark.parametrize("is_async", [False, True])
def test_hetrls_jobs_have_a_global_batch_of_1024(model: str, algorithm: str, tasks: int, is_async: bool) -> None:
    setting = hetrl_workload(model, algorithm, is_async=is_async)
    workload = setting.workload
    assert (len(workload.tasks), workload.samples_per_step, workload.group_size) == (tasks, 1024, 8)
    assert workload.eta == int(is_async)
    assert max(workload.prompt_tokens.largest, workload.completion_tokens.largest) <= 1024
    assert len({shape.name for shape in workload.models.values()}) == 1
    assert setting.guesses


@pytest.mark.parametrize("model", AREAL_HEX_MODELS)
def test_areal_hexs_jobs_generate_and_train(model: str) -> None:
    assert areal_hex_workload(model).workload.tasks == (Task.GENERATION, Task.ACTOR_TRAINING)
    assert list(hetrl_workload("Qwen3-4B", "ppo", is_async=False).workload.models) == list(TASKS)
