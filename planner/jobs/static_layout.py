"""Static layout for a model whose architecture is not visible: a closed form instead of a search.

For each region that may host the trainer, rollout workers go to every allowed region that has memory for them and
measured routes in both directions. A version takes `model_bytes / rate + rtt / 2` seconds to a region, and 0 within the
trainer's region. The layout with the most regions wins; ties go to the shortest of the slowest transfers, then to the
most cores in the trainer's region, then to the first name. Regions are sorted by name first, so no answer depends on
the fleet's order.
"""

from dataclasses import dataclass

from planner.cost.tables.network import Network, Route
from planner.jobs.needs import Needs
from planner.plan import Assignment, Plan, Prediction, TaskKind
from planner.plan_of_placement import edges
from planner.problem.fleet import Fleet, Region

METHOD = "static"
"""Name of this method in plans."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A layout with the trainer in one region and rollout workers in some."""

    trainer_region: Region
    rollouts: tuple[str, ...]
    routes: tuple[Route, ...]
    """Routes from the trainer's region to each other region with rollout workers."""


def plan_static(fleet: Fleet, needs: Needs) -> Plan:
    """Return the static plan of a job that `refusals.refusal` does not rule out."""
    network = Network(fleet)
    regions = sorted(fleet.regions, key=lambda region: region.name)
    trainer_regions = [
        r for r in regions if needs.may_train(r.name) and needs.has_room(r, trains=True, rolls_out=False)
    ]
    # At most one layout for each region of the trainer.
    layouts = [
        layout
        for trainer_region in trainer_regions
        if (layout := _layout(network, regions, needs, trainer_region)) is not None
    ]
    return _plan(network, min(layouts, key=lambda layout: _rank(layout, needs)), needs)


def weights_s(route: Route, model_bytes: int) -> float:
    """Return the seconds of one uncompressed version over a route: transfer and half a round trip."""
    return model_bytes / route.bytes_per_s + route.rtt_s / 2


def _layout(network: Network, regions: list[Region], needs: Needs, trainer_region: Region) -> _Layout | None:
    """Return the layout with the trainer in `trainer_region`; None if it breaks a rule or has no rollout region."""
    able: dict[str, Route] = {}
    for region in regions:
        there, back = network.route(trainer_region.name, region.name), network.route(region.name, trainer_region.name)
        has_room = needs.has_room(region, trains=region == trainer_region, rolls_out=True)
        if there is not None and back is not None and needs.may_roll_out(region) and has_room:
            able[region.name] = there
    pinned = needs.rollout_regions or ()
    # Pinned regions come first, then the trainer's own, then the nearest.
    nearest = sorted(
        able, key=lambda name: (name not in pinned, name != trainer_region.name, weights_s(able[name], 0), name)
    )
    # The trainer's region is one of them, whether it rolls out or not.
    if needs.max_regions is not None:
        nearest = nearest[: needs.max_regions - (trainer_region.name not in nearest[: needs.max_regions])]
    used = {trainer_region.name, *nearest}
    if not nearest or not used.issuperset(pinned) or len(used) < needs.min_regions:
        return None
    names = tuple(sorted(nearest))
    return _Layout(trainer_region, names, tuple(able[name] for name in names if name != trainer_region.name))


def _rank(layout: _Layout, needs: Needs) -> tuple[int, float, int, str]:
    """Return the sort key of a layout; the least is best."""
    slowest_s = max((weights_s(route, needs.model_bytes or 0) for route in layout.routes), default=0.0)
    return -len(layout.rollouts), slowest_s, -layout.trainer_region.num_cores, layout.trainer_region.name


def _plan(network: Network, layout: _Layout, needs: Needs) -> Plan:
    trainer_region = layout.trainer_region.name
    away = [name for name in layout.rollouts if name != trainer_region]
    workers = [
        Assignment(task=TaskKind.ROLLOUT, region=name, num_workers=needs.least_workers) for name in layout.rollouts
    ]
    # Versions leave and samples return over routes of their own; the trainer's own region needs neither.
    return Plan(
        method=METHOD,
        trainer_region=trainer_region,
        assignments=(Assignment(task=TaskKind.TRAINER, region=trainer_region, num_workers=1), *workers),
        weights_tree=edges(network, [(trainer_region, name) for name in away]),
        trajectory_routes=edges(network, [(name, trainer_region) for name in away]),
        predictions=tuple(_prediction(route, needs.model_bytes) for route in layout.routes),
        binding=_binding(layout, needs.model_bytes),
    )


def _prediction(route: Route, model_bytes: int | None) -> Prediction:
    seconds = None if model_bytes is None else weights_s(route, model_bytes)
    return Prediction(region=route.hops[-1], weights_s=seconds, rtt_s=route.rtt_s)


def _binding(layout: _Layout, model_bytes: int | None) -> str:
    if not layout.routes:
        return f"everything is in {layout.trainer_region.name}: no weights cross a WAN"
    slowest = max(layout.routes, key=lambda route: (weights_s(route, model_bytes or 0), route.hops[-1]))
    ends, rtt = f"from {slowest.hops[0]} to {slowest.hops[-1]}", f"{slowest.rtt_s * 1e3:.0f} ms round trip"
    if model_bytes is None:
        return f"the delay {ends}: {rtt}; the model's size is not known here, so throughput was not weighed"
    seconds = weights_s(slowest, model_bytes)
    # The seconds are transfer plus half a round trip, so the delay is the cause if that half is the larger part.
    cause = "delay" if slowest.rtt_s > seconds else "throughput"
    return (
        f"the {cause} {ends}: {model_bytes / 1e6:.1f} MB at {slowest.bytes_per_s * 8 / 1e9:.2f} Gbit/s and {rtt} "
        f"take {seconds:.3f} s uncompressed, longest of all regions"
    )
