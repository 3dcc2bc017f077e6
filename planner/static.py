"""The static layout: one trainer, rollout workers everywhere, weights spread as a star. A closed form, not a search.

For each region that may host the trainer, rollout workers go to every allowed region with memory for them. The time of
a version to a region is `model_bytes x 8 / throughput + rtt / 2`, and 0 within the trainer's region. The winner serves
the most regions; then the slowest of these times is shortest; then it has most cores; then the first name.

A refusal names the smallest conflict, from the pins outwards: a region that is not in the fleet, memory, a link that
nobody measured, too few regions. Where each candidate fails for its own reason, the one that came furthest speaks.
Regions are sorted by name first, so no answer depends on the order of the fleet.
"""

from dataclasses import dataclass

from planner.plan import Assignment, Edge, Infeasible, Plan, Prediction, TaskKind
from planner.problem import Fleet, Link, Region, Workload

METHOD = "static"


@dataclass(frozen=True, slots=True)
class _Layout:
    trainer: Region
    rollouts: tuple[Region, ...]
    links: tuple[Link, ...]
    """From the trainer's region to each other region with rollout workers."""


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why a region cannot host the trainer, and how many of the checks it passed before."""

    num_passed: int
    conflict: str


def plan_static(fleet: Fleet, workload: Workload) -> Plan | Infeasible:
    """The static plan, or the fact that rules it out."""
    regions = sorted(fleet.regions, key=lambda region: region.name)
    if conflict := _pin_conflict([region.name for region in regions], workload):
        return Infeasible(conflict=conflict)
    candidates = [region for region in regions if workload.trainer_region in (None, region.name)]
    layouts = [_layout(fleet, regions, workload, region) for region in candidates]
    feasible = [layout for layout in layouts if isinstance(layout, _Layout)]
    if not feasible:
        obstacles = [layout for layout in layouts if isinstance(layout, _Obstacle)]
        return Infeasible(conflict=max(obstacles, key=lambda obstacle: obstacle.num_passed).conflict)
    best = min(feasible, key=lambda layout: _rank(layout, workload))
    num_regions = len({best.trainer.name, *(region.name for region in best.rollouts)})
    if num_regions < workload.min_regions:
        return Infeasible(
            conflict=f"the job asks for at least {workload.min_regions} regions, but only {num_regions} of the fleet's "
            f"{len(regions)} may take part and have the memory"
        )
    return _plan(best, workload)


def weights_s(link: Link, model_bytes: int) -> float:
    """Seconds of one uncompressed version over a link: its bits at the link's rate, and one way of the round trip."""
    return model_bytes * 8 / link.throughput_bits_per_s + link.rtt_s / 2


def _pin_conflict(names: list[str], workload: Workload) -> str | None:
    if not names:
        return "the fleet has no region"
    pins = [("regions.trainer", workload.trainer_region)] if workload.trainer_region else []
    for key, name in (*pins, *(("regions.rollout", name) for name in sorted(workload.rollout_regions or ()))):
        if name not in names:
            return f"{key} names {name}, but the fleet has only {', '.join(names)}"
    return None


def _layout(fleet: Fleet, regions: list[Region], workload: Workload, trainer: Region) -> _Layout | _Obstacle:
    if trainer.memory_bytes < workload.trainer_memory_bytes:
        return _Obstacle(0, _shortage("the trainer", workload.trainer_memory_bytes, trainer))
    pins = workload.rollout_regions
    allowed = [region for region in regions if pins is None or region.name in pins]
    lacking = [region for region in allowed if region.memory_bytes < _needed_bytes(workload, region, trainer)]
    if lacking and (pins is not None or lacking == allowed):
        region = lacking[0]
        what = "the trainer and the rollout workers" if region == trainer else "the rollout workers"
        return _Obstacle(1, _shortage(what, _needed_bytes(workload, region, trainer), region))
    rollouts = tuple(region for region in allowed if region not in lacking)
    links = []
    for region in rollouts:
        if region == trainer:
            continue
        there, back = fleet.link(trainer.name, region.name), fleet.link(region.name, trainer.name)
        if there is None or back is None:
            src, dst = (trainer, region) if there is None else (region, trainer)
            return _Obstacle(2, f"no link was measured from {src.name} to {dst.name}")
        links.append(there)
    return _Layout(trainer, rollouts, tuple(links))


def _needed_bytes(workload: Workload, region: Region, trainer: Region) -> int:
    beside = workload.trainer_memory_bytes if region == trainer else 0
    return workload.workers_per_region * workload.rollout_memory_bytes + beside


def _shortage(what: str, needed_bytes: int, region: Region) -> str:
    return f"memory for {what}: {needed_bytes / 1e9:.2f} GB, but {region.name} has {region.memory_bytes / 1e9:.2f} GB"


def _rank(layout: _Layout, workload: Workload) -> tuple[int, float, int, str]:
    slowest_s = max((weights_s(link, workload.model_bytes or 0) for link in layout.links), default=0.0)
    return -len(layout.rollouts), slowest_s, -layout.trainer.num_cores, layout.trainer.name


def _plan(layout: _Layout, workload: Workload) -> Plan:
    home = layout.trainer.name
    names = [region.name for region in layout.rollouts]
    away = [name for name in names if name != home]
    return Plan(
        method=METHOD,
        trainer_region=home,
        assignments=(
            Assignment(task=TaskKind.TRAINER, region=home, num_workers=1),
            *(Assignment(task=TaskKind.ROLLOUT, region=n, num_workers=workload.workers_per_region) for n in names),
        ),
        weights_tree=tuple(Edge(src_region=home, dst_region=name) for name in away),
        trajectory_routes=tuple(Edge(src_region=name, dst_region=home) for name in away),
        predictions=tuple(_prediction(link, workload.model_bytes) for link in layout.links),
        binding=_binding(layout, workload.model_bytes),
    )


def _prediction(link: Link, model_bytes: int | None) -> Prediction:
    seconds = None if model_bytes is None else weights_s(link, model_bytes)
    return Prediction(region=link.dst_region, weights_s=seconds, rtt_s=link.rtt_s)


def _binding(layout: _Layout, model_bytes: int | None) -> str:
    if not layout.links:
        return f"everything is in {layout.trainer.name}: no weights cross a WAN"
    slowest = max(layout.links, key=lambda link: (weights_s(link, model_bytes or 0), link.dst_region))
    ends, rtt = f"from {slowest.src_region} to {slowest.dst_region}", f"{slowest.rtt_s * 1e3:.0f} ms round trip"
    if model_bytes is None:
        return f"the delay {ends}: {rtt}; the model's size is not known here, so throughput was not weighed"
    seconds = weights_s(slowest, model_bytes)
    cause = "delay" if slowest.rtt_s > seconds else "throughput"
    return (
        f"the {cause} {ends}: {model_bytes / 1e6:.1f} MB at {slowest.throughput_bits_per_s / 1e9:.2f} Gbit/s and {rtt} "
        f"take {seconds:.3f} s uncompressed, longest of all regions"
    )
