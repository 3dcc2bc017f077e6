"""Conflicts that rule a job out on a fleet before any search, each one a single fact.

Checks go from the runtime's limits and the operator's pins outwards: regions that do not exist, memory and devices,
links that were not measured, too few regions. If each region that may train fails for a reason of its own, the reason
of the region that passed most checks is reported.
"""

from periplus.values.machine import DeviceCount
from planner.answer.outcome import Fact, Infeasible
from planner.cost.tables.network import Network
from planner.files.capabilities import Capabilities
from planner.jobs.needs import Needs
from planner.problem.fleet import Fleet, Region


def refusal(fleet: Fleet, needs: Needs, capabilities: Capabilities) -> Infeasible | None:
    """Return the first fact that rules the job out by itself, or None if there is none.

    A search may still find that several facts together allow no plan.
    """
    # From what nobody can change on this fleet to what the operator pinned, then hosts and links.
    if what := _beyond(needs, capabilities):
        return _infeasible("limits", "runtime", what)
    if what := _pins(fleet, needs):
        return _infeasible("rules", "regions", what)
    if what := _hosts(fleet, needs):
        return _infeasible("inventory", "hosts", what)
    return None


def _infeasible(kind: str, name: str, what: str) -> Infeasible:
    return Infeasible(facts=(Fact(kind=kind, name=name, what=what),))


def _beyond(needs: Needs, capabilities: Capabilities) -> str | None:
    if needs.algorithm not in capabilities.algorithms:
        return f"the runtime executes {', '.join(sorted(capabilities.algorithms))}, not {needs.algorithm}"
    if needs.staleness > capabilities.max_staleness:
        return f"the runtime executes a staleness bound of at most {capabilities.max_staleness}, not {needs.staleness}"
    if needs.engine is not None and needs.engine not in capabilities.engines:
        return f"the runtime has the engines {', '.join(sorted(capabilities.engines))}, not {needs.engine}"
    return None


def _pins(fleet: Fleet, needs: Needs) -> str | None:
    names = sorted(region.name for region in fleet.regions)
    if not names:
        return "the fleet has no region"
    pins = [("regions.trainer", needs.trainer_region)] if needs.trainer_region else []
    # The first refusal counts. Unknown names come before forbidden ones, so that a typing error is reported as such.
    for key, name in (*pins, *(("regions.rollout", name) for name in sorted(needs.rollout_regions or ()))):
        if name not in names:
            return f"{key} names {name}, but the fleet has only {', '.join(names)}"
        if name in needs.forbidden_regions:
            return f"{key} names {name}, which regions.forbid forbids"
    if set(names) <= set(needs.forbidden_regions):
        return f"regions.forbid names every region of the fleet: {', '.join(names)}"
    return _lacks_engine(fleet, needs) or _denies_code(fleet, needs)


def _lacks_engine(fleet: Fleet, needs: Needs) -> str | None:
    install = f"; install it, and start the agent with --engine {needs.engine}=PYTHON (docs/engines.md)"
    lacking = sorted(region.name for region in fleet.regions if not needs.has_engine(region))
    if pinned := [name for name in lacking if name in (needs.rollout_regions or ())]:
        return f"regions.rollout names {pinned[0]}, which has no engine {needs.engine}{install}"
    lacking = [name for name in lacking if name not in needs.forbidden_regions]
    if lacking and not any(map(needs.may_roll_out, fleet.regions)):
        return f"no region that may generate has the engine {needs.engine}: {', '.join(lacking)}{install}"
    return None


def _denies_code(fleet: Fleet, needs: Needs) -> str | None:
    allow = "; its operator allows it by starting the agent with --allow-code (docs/rewards.md)"
    denying = sorted(region.name for region in fleet.regions if not needs.is_let_in(region))
    if pinned := [name for name in denying if name in (needs.rollout_regions or ())]:
        return f"regions.rollout names {pinned[0]}, which runs no reward functions of a user's own{allow}"
    if denying and not any(map(needs.may_roll_out, fleet.regions)):
        return f"the job has reward functions of its user's own, which no region runs: {', '.join(denying)}{allow}"
    return None


def _hosts(fleet: Fleet, needs: Needs) -> str | None:
    regions = sorted(fleet.regions, key=lambda region: region.name)
    trainer_regions = [region for region in regions if needs.may_train(region.name)]
    obstacles = [obstacle(fleet, needs, trainer_region) for trainer_region in trainer_regions]
    # One region that passes is enough; otherwise the region that passed most checks gives the most useful reason.
    return None if None in obstacles else max((o for o in obstacles if o), key=lambda o: o[0])[1]


def obstacle(fleet: Fleet, needs: Needs, trainer_region: Region) -> tuple[int, str] | None:
    """Return (number of checks passed, conflict) of one region as the trainer's; None if it passes all checks."""
    regions = sorted(fleet.regions, key=lambda region: region.name)
    workers = [region for region in regions if needs.may_roll_out(region)]
    if not needs.has_room(trainer_region, trains=True, rolls_out=False):
        return 0, _shortage(needs, "the trainer", trainer_region, trains=True, rolls_out=False)
    lacking = [r for r in workers if not needs.has_room(r, trains=r == trainer_region, rolls_out=True)]
    # Regions that the operator pinned must all take part. Otherwise it is enough that one has room.
    if lacking and (needs.rollout_regions is not None or lacking == list(workers)):
        region = lacking[0]
        what = "the trainer and the rollout workers" if region == trainer_region else "the rollout workers"
        return 1, _shortage(needs, what, region, trains=region == trainer_region, rolls_out=True)
    able = [region for region in workers if region not in lacking]
    network = Network(fleet)
    # Regions with room but without a measured route, each with the direction that lacks.
    missing = [(region, direction) for region in able if (direction := _unmeasured(network, trainer_region, region))]
    if missing and (needs.rollout_regions is not None or len(missing) == len(able)):
        src, dst = missing[0][1]
        return 2, f"no link was measured from {src} to {dst}"
    # Regions that could take part: the trainer's own, and those with room and routes.
    used = {trainer_region.name, *(region.name for region in able)} - {region.name for region, _ in missing}
    if len(used) < needs.min_regions:
        why = f"; no link was measured from {missing[0][1][0]} to {missing[0][1][1]}" if missing else ""
        if other := [region.name for region in regions if not needs.has_engine(region)]:
            why += f"; no engine {needs.engine} in {', '.join(other)}"
        if denying := [region.name for region in regions if not needs.is_let_in(region)]:
            why += f"; no reward functions of a user's own (--allow-code) in {', '.join(denying)}"
        return 3, (
            f"the job asks for at least {needs.min_regions} regions, but only {len(used)} of the fleet's "
            f"{len(fleet.regions)} may take part and have room{why}"
        )
    return None


def _unmeasured(network: Network, trainer_region: Region, region: Region) -> tuple[str, str] | None:
    """Return the direction between the two regions that has neither a link nor a relay; None if both have one."""
    directions = ((trainer_region.name, region.name), (region.name, trainer_region.name))
    return next((direction for direction in directions if network.route(*direction) is None), None)


def _shortage(needs: Needs, what: str, region: Region, *, trains: bool, rolls_out: bool) -> str:
    if not needs.has_devices(region, trains=trains, rolls_out=rolls_out):
        count = (needs.devices or {}).get(region.name, DeviceCount(0, 0))
        wanted = needs.devices_for(trains=trains, rolls_out=rolls_out)
        return f"devices for {what}: {wanted}, but {region.name} has {count.free} of {count.usable} free"
    needed_gb, has_gb = needs.bytes_for(trains=trains, rolls_out=rolls_out) / 1e9, region.memory_bytes / 1e9
    return f"memory for {what}: {needed_gb:.2f} GB, but {region.name} has {has_gb:.2f} GB"
