"""Fixtures with small problems of real catalogue data."""

from collections.abc import Callable

import pytest

from planner.devices.catalogue import architectures, gpu_types
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Goal, Problem, Rules
from planner.problem.lengths import lognormal
from planner.problem.workload import Task, Workload

MakeProblem = Callable[..., Problem]


def region(name: str, *machines: Machines) -> Region:
    return Region(name=name, machines=machines, fabric_bytes_per_s=12.5e9)


def fleet(*regions: Region, bytes_per_s: float = 1e9) -> Fleet:
    names = [each.name for each in regions]
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.05, bytes_per_s=bytes_per_s, usd_per_gbyte=0.02)
        for a in names
        for b in names
        if a != b
    )
    return Fleet(regions=regions, links=links, gpu_types=gpu_types())


def workload(*, eta: int, model: str = "Qwen3-4B", critic: bool = False) -> Workload:
    tasks = [Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING]
    tasks += [Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING] if critic else []
    arch = architectures()[model]
    return Workload(
        algorithm="ppo" if critic else "grpo",
        models=dict.fromkeys(tasks, arch),
        eta=eta,
        prompts_per_step=32,
        group_size=8,
        prompt_tokens=lognormal(median_tokens=200, sigma=0.4, cap_tokens=512),
        completion_tokens=lognormal(median_tokens=350, sigma=0.6, cap_tokens=1024),
    )


def two_regions(num_a100: int = 1, num_l40s: int = 1) -> Fleet:
    return fleet(
        region("east", Machines(gpu="A100-40GB-SXM", gpus_per_machine=8, num_machines=num_a100, usd_per_gpu_hour=2.0)),
        region("west", Machines(gpu="L40S", gpus_per_machine=8, num_machines=num_l40s, usd_per_gpu_hour=1.0)),
    )


@pytest.fixture
def make_problem() -> MakeProblem:
    def make(
        *,
        eta: int = 1,
        critic: bool = False,
        of: Fleet | None = None,
        goal: Goal | None = None,
        rules: Rules | None = None,
        model: str = "Qwen3-4B",
    ) -> Problem:
        return Problem(
            fleet=of or two_regions(),
            workload=workload(eta=eta, critic=critic, model=model),
            goal=goal or Goal(),
            rules=rules or Rules(),
        )

    return make
