"""A job on two regions, or three, for tests of re-planning."""

from dataclasses import replace

from planner.devices.catalogue import architectures, gpu_types
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import STUDY, Problem
from planner.problem.lengths import lognormal
from planner.problem.workload import Task, Workload


def problem(num_a100: int = 4, num_l40s: int = 4, num_l4: int = 0, bytes_per_s: float = 2e9, eta: int = 1) -> Problem:
    """GRPO of Qwen3-4B; machines of eight devices: A100s in the east, L40S in the west, L4s in the south."""
    machines = {"east": ("A100-40GB-SXM", num_a100), "west": ("L40S", num_l40s), "south": ("L4", num_l4)}
    regions = tuple(
        Region(
            name=name,
            machines=(Machines(gpu=gpu, gpus_per_machine=8, num_machines=num),),
            fabric_bytes_per_s=12.5e9,
        )
        for name, (gpu, num) in machines.items()
        if num
    )
    names = [region.name for region in regions]
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.02, bytes_per_s=bytes_per_s) for a in names for b in names if a != b
    )
    arch = architectures()["Qwen3-4B"]
    workload = Workload(
        algorithm="grpo",
        models=dict.fromkeys((Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING), arch),
        eta=eta,
        prompts_per_step=64,
        group_size=8,
        prompt_tokens=lognormal(median_tokens=200, sigma=0.4, cap_tokens=512),
        completion_tokens=lognormal(median_tokens=350, sigma=0.6, cap_tokens=1024),
    )
    return Problem(
        fleet=Fleet(regions=regions, links=links, gpu_types=gpu_types()),
        workload=workload,
        limits=replace(STUDY, max_train_blocks=1),
    )
