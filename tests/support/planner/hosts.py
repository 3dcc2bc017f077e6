"""Fleets of CPU hosts and what a job needs of them, for the tests of how jobs are planned."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from periplus.config.loading import validate
from periplus.job.job_file import JobFile, resolve
from planner.jobs.needs import Needs
from planner.plan import Plan, TaskKind
from planner.problem.fleet import Fleet, Link, Region

GB = 10**9
NEEDS = Needs(
    algorithm="grpo",
    engine="torch",
    staleness=2,
    trainer_region=None,
    rollout_regions=None,
    forbidden_regions=(),
    min_regions=1,
    max_regions=None,
    workers_per_region=2,
    has_own_code=False,
    trainer_devices=1,
    model_bytes=GB,
    trainer_memory_bytes=4 * GB,
    rollout_memory_bytes=GB,
)


def host(name: str, num_cores: int = 2, memory_gb: int = 8) -> Region:
    return Region(name=name, machines=(), fabric_bytes_per_s=1e9, num_cores=num_cores, memory_bytes=memory_gb * GB)


def mesh(regions: Iterable[Region], slow: frozenset[str] = frozenset(), rtt_s: float = 0.1) -> Fleet:
    """All links at 8 Gbit/s, those from a slow region at 1 Gbit/s."""
    regions = tuple(regions)
    links = [
        Link(src_region=a.name, dst_region=b.name, rtt_s=rtt_s, bytes_per_s=1.25e8 if a.name in slow else 1e9)
        for a, b in itertools.permutations(regions, 2)
    ]
    return Fleet(regions=regions, links=tuple(links), gpu_types={})


def without_link(fleet: Fleet, src: str, dst: str) -> Fleet:
    return replace(fleet, links=tuple(k for k in fleet.links if (k.src_region, k.dst_region) != (src, dst)))


def tiny_job(**changes: object) -> JobFile:
    """A job of the built-in model."""
    tree = {"name": "sums", "environment": {"name": "chain_sum"}} | changes
    return resolve(validate(JobFile, tree, "job"))


def rollout_regions(plan: Plan) -> tuple[str, ...]:
    """The regions of a plan that have rollout workers, in its order."""
    return tuple(each.region for each in plan.assignments if each.task is TaskKind.ROLLOUT)
