import time
from dataclasses import replace

import pytest

from planner.answer.outcome import Found
from planner.devices.catalogue import architecture, gpu_types
from planner.files.capabilities import load_capabilities
from planner.jobs.hosts import problems, without_trainer
from planner.jobs.job_workload import workload_of_job
from planner.jobs.needs import Needs
from planner.plan import TaskKind
from planner.problem.device_classes import classes_of
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Machines
from planner.problem.goal import Problem
from planner.problem.workload import Task
from planner.solve import Thinking, plan_job
from tests.support.planner.hosts import GB, NEEDS, host, mesh, tiny_job

WORKLOAD = workload_of_job(tiny_job(), architecture("builtin:qwen3-tiny"))
CARDS = {"gpu": "L4", "gpus_per_machine": 2, "num_machines": 1}
ABC = mesh([host("c"), host("a"), host("b")])


def asked(fleet: Fleet, needs: Needs = NEEDS) -> dict[str, Problem]:
    return dict(problems(fleet, needs, WORKLOAD, load_capabilities().limits))


def generating(problem: Problem) -> set[str]:
    return {r.name for r in problem.fleet.regions if problem.rules.allows(Task.GENERATION, r.name, False)}


def test_each_region_that_may_train_is_asked_about_and_has_a_device_more() -> None:
    found = asked(ABC)
    assert list(found) == ["a", "b", "c"]
    for home, problem in found.items():
        assert {at.region.name: at.num_gpus for at in classes_of(problem.fleet)} == {
            name: 3 if name == home else 2 for name in "abc"
        }
        assert problem.rules.allows(Task.ACTOR_TRAINING, home, False)
        assert sum(problem.rules.allows(Task.ACTOR_TRAINING, name, False) for name in "abc") == 1


def test_a_trainer_of_several_processes_has_a_device_for_each_and_trains_on_no_more() -> None:
    needs = replace(NEEDS, trainer_devices=3)
    for home, problem in asked(ABC, needs).items():
        assert {at.region.name: at.num_gpus for at in classes_of(problem.fleet)} == {
            name: 5 if name == home else 2 for name in "abc"
        }
        assert problem.limits.max_data == 3
    bare = [without_trainer(problem, home) for home, problem in asked(ABC, needs).items()]
    assert bare[0] == bare[1] == bare[2]
    assert {problem.limits.max_data for problem in asked(ABC).values()} == {1}, "as many as the job has"


def test_processes_share_the_cores_of_their_host() -> None:
    core = gpu_types()["cpu"]
    fleet = asked(mesh([host("a", num_cores=2), host("b", num_cores=64)]))["a"].fleet
    shares = {at.region.name: at.gpu.matmul_flop_per_s / core.matmul_flop_per_s for at in classes_of(fleet)}
    assert abs(shares["a"] - 2 / 3) < 1e-9, "a trainer and two workers on two cores"
    assert shares["b"] == 1.0, "a process has one thread"


def test_a_fleets_own_cores_are_believed() -> None:
    fast = replace(gpu_types()["cpu"], matmul_flop_per_s=1e12)
    fleet = asked(replace(ABC, gpu_types={"cpu": fast}))["a"].fleet
    assert {at.gpu.matmul_flop_per_s for at in classes_of(fleet)} == {1e12, 1e12 * 2 / 3}


def test_a_host_without_memory_for_both_trains_or_rolls_out() -> None:
    found = asked(mesh([host("a", memory_gb=5), host("b")]))
    assert generating(found["a"]) == {"b"}
    assert generating(found["b"]) == {"a", "b"}


def cards(*machines: tuple[str, int]) -> Fleet:
    """A region `a` with accelerators, as (type, number), and a region `b` with cores."""
    owned = tuple(Machines(gpu=gpu, gpus_per_machine=number, num_machines=1) for gpu, number in machines)
    regions = replace(host("a", memory_gb=64), machines=owned), host("b", memory_gb=64)
    return replace(mesh(regions), gpu_types=dict(gpu_types()))


def test_processes_compute_with_the_accelerators_of_their_machine() -> None:
    """A trainer and two workers, with one accelerator each, or with a part of one where there are fewer."""
    l4 = gpu_types()["L4"]
    for number, worker_devices, share in ((3, 1, 1.0), (8, 1, 1.0), (1, 1, 1 / 3), (6, 2, 2.0)):
        needs = replace(NEEDS, worker_devices=worker_devices)
        of_region = {at.region.name: at for at in classes_of(asked(cards(("L4", number)), needs)["a"].fleet)}
        assert of_region["a"].gpu.matmul_flop_per_s == pytest.approx(l4.matmul_flop_per_s * share)
        assert of_region["a"].gpu.memory_bytes == pytest.approx(l4.memory_bytes * share)
        assert (of_region["a"].num_gpus, of_region["a"].gpu.is_cpu, of_region["b"].gpu.is_cpu) == (3, False, True)
    unlike = classes_of(asked(cards(("H100-SXM", 2), ("L4", 2)))["a"].fleet)
    assert {at.gpu.name for at in unlike if not at.gpu.is_cpu} == {"L4*1"}, "any of them may become the trainer's"


def test_the_trainer_goes_where_the_accelerators_are_fast() -> None:
    both = cards(("L4", 4))
    fast = replace(both.regions[1], machines=(Machines(gpu="H100-SXM", gpus_per_machine=4, num_machines=1),))
    found = plan_job(
        replace(both, regions=(both.regions[0], fast)),
        tiny_job(model={"path": "SomeBody/SomeModel"}),
        architecture=architecture("Qwen3-0.6B"),
        model_bytes=1_200_000_000,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=2.0, now_s=time.monotonic),
    )
    assert isinstance(found, Found)
    assert found.best.trainer_region == "b"


def test_pins_and_numbers_of_regions_are_rules() -> None:
    needs = replace(NEEDS, trainer_region="b", rollout_regions=("a", "c"), min_regions=2, max_regions=3)
    (problem,) = asked(ABC, needs).values()
    assert generating(problem) == {"a", "c"} == problem.rules.generating
    assert (problem.rules.min_regions, problem.rules.max_regions) == (2, 3)


def test_a_pinned_region_without_room_leaves_no_question() -> None:
    needs = replace(NEEDS, rollout_regions=("a",), rollout_memory_bytes=5 * GB)
    assert asked(ABC, needs) == {}


def test_the_questions_of_one_job_are_equal_without_the_trainer() -> None:
    fleet = mesh([host("a", num_cores=3), host("b", num_cores=1), host("c")])
    bare = {home: without_trainer(problem, home) for home, problem in asked(fleet).items()}
    assert len(bare) == 3
    assert bare["a"] == bare["b"] == bare["c"]
    slower = replace(fleet, links=tuple(replace(link, rtt_s=2 * link.rtt_s) for link in fleet.links))
    fewer = mesh([host("a", num_cores=2), host("b", num_cores=1), host("c")])
    more = asked(fleet, replace(NEEDS, workers_per_region=NEEDS.least_workers + 1))["a"]
    for other in (asked(slower)["a"], asked(fewer)["a"], more):
        assert without_trainer(other, "a").fleet != bare["a"].fleet


def test_a_region_keeps_its_fabric_if_it_has_several_machines() -> None:
    """One host has none: processes on cores are planned on one machine, and so are those that share accelerators."""
    several = cards(("L4", 8), ("H100-SXM", 8))
    for fleet, a_bytes_per_s in ((cards(("L4", 8)), ONE_HOST_BYTES_PER_S), (several, 1e9), (ABC, ONE_HOST_BYTES_PER_S)):
        needs = replace(NEEDS, workers_per_region=None)
        rates = {region.name: region.fabric_bytes_per_s for region in asked(fleet, needs)["a"].fleet.regions}
        assert rates["a"] == a_bytes_per_s
        assert rates["b"] == ONE_HOST_BYTES_PER_S


@pytest.mark.parametrize(("asked_for", "expected"), [("auto", "hybrid"), ("hybrid", ""), ("full", "full")])
def test_machines_of_a_trainer_have_copies_where_that_is_faster_or_the_job_says_so(
    asked_for: str, expected: str
) -> None:
    cards = Machines(gpu="A100-80GB-SXM", gpus_per_machine=2, num_machines=3)
    region = replace(host("a", memory_gb=64), machines=(cards,), fabric_bytes_per_s=1e9)
    found = plan_job(
        replace(mesh([region]), gpu_types=dict(gpu_types())),
        tiny_job(
            model={"path": "SomeBody/SomeModel"},
            sampling={"max_new_tokens": 1024},
            train={"devices": 4, "sharding": asked_for, "groups_per_step": 256},
            staleness=2,
        ),
        architecture=architecture("Qwen3-4B"),
        model_bytes=1_200_000_000,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=5.0, now_s=time.monotonic),
    )
    assert isinstance(found, Found)
    (trainer,) = (each for each in found.best.assignments if each.task is TaskKind.TRAINER)
    assert trainer.sharding == expected
    assert (trainer.data == 4) == (asked_for != "full")
