"""Step estimate of a placement: every lower bound on the step time by name, with the best choice of generating pools.

A step takes the largest of these *needs*: busy time of each group, the path through generation, the critic's path,
links and the uplink. They depend on which pools generate:

- If generation and training take turns in one group, generation is a phase of the whole mesh (`_by_turns`).
- Otherwise each region has a window for generation (`planner.cost.step.generation_window`, `_on_own_devices`).

A pool that finishes no sample in its window idles, but its rent is paid. If sending versions over a link or the uplink
would determine the step time, remote regions idle as well: they are ordered by the time on their links, and the best
prefix of that order counts. If the operator demands regions, none idles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.evaluation import RegionTimes
from planner.cost.step.fixed_terms import FixedTerms, GeneratingPool, regions_of
from planner.cost.step.generation_window import GeneratingUnits, GenerationWindows, makes
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, PhaseTable, end_s
from planner.problem.workload import SCORING, Task

IMPROVEMENT_FACTOR = 1 - 1e-9
"""Factor below which a step time counts as better than another one; it keeps rounding from deciding."""
_FAR_BEYOND = 4.0
"""Number of windows that a group takes with all slots full, beyond which its pool gets fewer sequences. Chosen by hand
(docs/planner-model.md, "The simulator")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Step estimate: what a placement needs if a given subset of its pools generates."""

    active: tuple[GeneratingPool, ...]
    """Pools that generate."""
    generation_s: float
    """Busy seconds of generation per step.

    At eta >= 1 apart from training: at full rates. Otherwise the phase, the longest of all regions.
    """
    lags_s: Mapping[str, tuple[float, float]]
    """(Weights, trajectories) in seconds of each region that generates."""
    phase_s: float | None
    """Seconds of the phase of the whole mesh if generation takes turns with training, else None."""
    before_s: float
    """Seconds of training and scoring; with windows also `other_tasks_s`."""
    other_tasks_s: float = 0.0
    """Seconds of a step that other tasks of generation's group take, where there are windows."""
    eta: int
    """Staleness bound."""
    needs: Sequence[tuple[str, float]]
    """(Name, seconds) of each lower bound on the step time, except the budget's."""
    usd_per_step: float
    """Egress dollars per step."""
    binding: str = field(init=False)
    """Name of the largest need."""
    step_s: float = field(init=False)
    """Step time in seconds: the largest need."""

    def __post_init__(self) -> None:
        binding, step_s = max(self.needs, key=lambda need: need[1])
        object.__setattr__(self, "binding", binding)
        object.__setattr__(self, "step_s", step_s)

    @property
    def regions(self) -> tuple[RegionTimes, ...]:
        """Times of each region that generates, sorted by name."""
        found, loads_s = [], dict[str, float]()
        for each in self.active:
            if each.price.phase is not None:
                loads_s[each.region] = max(loads_s.get(each.region, 0.0), each.price.phase.overlap.load_s)
        for name, (weights_s, trajectories_s) in sorted(self.lags_s.items()):
            # A window is what the path leaves of eta + 1 steps. By turns it is the phase of the whole mesh.
            left_s = (self.eta + 1) * self.step_s - self.before_s - weights_s - trajectories_s
            window_s = left_s if self.phase_s is None else self.phase_s
            found.append(
                RegionTimes(
                    region=name,
                    weights_s=weights_s,
                    trajectories_s=trajectories_s,
                    window_s=window_s,
                    load_s=loads_s.get(name, 0.0),
                )
            )
        return tuple(found)

    def limited(self, samples_per_step: float) -> tuple[tuple[GeneratingPool, float], ...]:
        """Return the pools that make less in their window than at full rate, with the samples per step that they make.

        Together with the other pools they make at least the samples of a step: a run whose pools may begin fewer never
        gets a batch. Where the windows hold fewer, each is given its share of what lacks.
        """
        if self.phase_s is not None or not self.eta:
            return ()
        windows, found = {each.region: each.window_s for each in self.regions}, []
        others = 0.0
        for each in self.active:
            assert each.price.phase is not None
            # Samples of one unit: at full rate for the whole step, and what fits into its window beside the next
            # version.
            window_s, full = (
                windows[each.region],
                each.price.rates[Task.GENERATION] * (self.step_s - self.other_tasks_s),
            )
            made = each.price.phase.overlapped_samples(
                window_s * (1 + JUMP_TOLERANCE), self.step_s - self.other_tasks_s
            )[0]
            # A group that takes many windows at full slots is given fewer sequences at a time.
            if each.price.group_s > _FAR_BEYOND * window_s:
                made = min(made, full * _in_time(each.price, window_s))
            if made < full:
                found.append((each, each.num_units * made))
            else:
                others += each.num_units * full
        lacking = (samples_per_step - others) / max(sum(made for _, made in found), 1e-9) if found else 1.0
        return tuple((each, made * max(1.0, lacking)) for each, made in found)

    def generating_s(
        self, limited: Sequence[tuple[GeneratingPool, float]], samples_per_step: float
    ) -> Mapping[str, float]:
        """Return the busy seconds per step of one unit of each region that generates, by the result of `limited`.

        At eta >= 1 apart from training: the region's share of the samples over its full rate. Otherwise a unit is busy
        for all of its window.
        """
        if self.phase_s is not None or not self.eta:
            return {each.region: min(max(0.0, each.window_s), self.step_s) for each in self.regions}
        made = {id(each): num for each, num in limited}
        sums: dict[str, tuple[float, float]] = {}
        for each in self.active:
            rate, (samples, per_s) = (
                each.num_units * each.price.rates[Task.GENERATION],
                sums.get(each.region, (0.0, 0.0)),
            )
            sums[each.region] = samples + made.get(id(each), rate * self.step_s), per_s + rate
        # Together they can make more than a step's samples if something else takes longer than generation.
        scale = samples_per_step / sum(samples for samples, _ in sums.values())
        return {region: min(self.step_s, scale * samples / per_s) for region, (samples, per_s) in sums.items()}


def estimate_step(cost_tables: CostTables, terms: FixedTerms) -> StepEstimate:
    """Return the step estimate with the best choice of generating pools.

    All of them generate if the operator demands regions.
    """
    is_free = not cost_tables.problem.rules.demands_regions
    if terms.generating.trains:
        best = _by_turns(cost_tables, terms, terms.making)
        if is_free:
            # Pools without a sample in the phase idle. The rest decides which regions receive weights.
            active = tuple(each for each in terms.making if makes(_table(each), best.generation_s))
            best = best if len(active) == len(terms.making) else _by_turns(cost_tables, terms, active)
        return best
    best = _on_own_devices(cost_tables, terms, terms.making)
    # Leaving out remote regions helps only if a link or the uplink determines the step time.
    links_s = [need_s for name, need_s in best.needs if name.startswith(("link:", "up:"))]
    if not is_free or max(links_s, default=0.0) < best.step_s:
        return best
    # Try the first 0, 1, 2 ... remote regions in the order of the time on their links.
    far = {each.region for each in terms.making} - {terms.trainer.name}
    order = sorted(far, key=lambda name: (_link_s(terms, name), name))
    for count in range(len(order)):
        some = tuple(each for each in terms.making if each.region not in order[count:])
        if some:
            found = _on_own_devices(cost_tables, terms, some)
            best = found if found.step_s < best.step_s * IMPROVEMENT_FACTOR else best
    return best


def alone_s(cost_tables: CostTables, terms: FixedTerms, each: GeneratingPool) -> float:
    """Return the least step time at which this pool, if only it generated, makes a sample.

    Its link must also carry a version in each step.
    """
    receives = _receiving(terms, (each,))
    links = [need_s for _, need_s in _link_needs(terms, receives, with_critics=False)]
    before_s = terms.training_s + terms.scoring_s + others_s(cost_tables, terms)
    return max(_first_s(cost_tables, before_s, _lags_s(terms, (each,)), each), *links, 0.0)


# ---- apart from training ---------------------------------------------------------------------------------------------


def _on_own_devices(cost_tables: CostTables, terms: FixedTerms, pools: Sequence[GeneratingPool]) -> StepEstimate:
    """Return the step estimate with these pools, where generation has devices of its own."""
    demands = cost_tables.problem.rules.demands_regions
    windows = _windows(cost_tables, terms, pools)
    step_s = windows.least_s()
    # Pools that make nothing in their window idle. Without them less weights share the uplink, so solve again.
    active = [each for each in pools if demands or makes(_table(each), windows.window_s(each.region, step_s))]
    if len(active) < len(pools):
        pools, windows = active, _windows(cost_tables, terms, active)
        step_s = windows.least_s()
    made = {name: each[0] for name, each in windows.made(step_s).items()}
    # The path is named after the region that makes most.
    path = f"path:{max(made, key=lambda name: (made[name], name))}"
    longest_s = max(windows.window_s(name, step_s) for name in made)
    generation_s = windows.full_s() if windows.eta else longest_s
    needs = [*_group_needs(terms, generation_s), *_link_needs(terms, _receiving(terms, pools))]
    needs += _critic_needs(terms, windows.eta)
    # At eta >= 1 full rates may bind instead of a window; then the group's need names them already.
    if not windows.eta or step_s > (generation_s + windows.others_s) / IMPROVEMENT_FACTOR:
        needs.append((path, step_s))
    lags_s = _lags_s(terms, pools)
    # A demanded region must finish at least one sample in its window.
    if demands:
        needs += [(f"path:{each.region}", _first_s(cost_tables, windows.before_s, lags_s, each)) for each in pools]
    return StepEstimate(
        active=tuple(pools),
        generation_s=generation_s,
        lags_s=lags_s,
        phase_s=None,
        before_s=windows.before_s,
        other_tasks_s=windows.others_s,
        eta=windows.eta,
        needs=needs,
        usd_per_step=_usd_per_step(cost_tables, terms, pools),
    )


def _windows(cost_tables: CostTables, terms: FixedTerms, pools: Sequence[GeneratingPool]) -> GenerationWindows:
    """Return the constants of all windows if these pools generate."""
    start, workload, other_tasks_s = terms.trainer, cost_tables.problem.workload, others_s(cost_tables, terms)
    units: dict[str, list[GeneratingUnits]] = {}
    for each in sorted(pools, key=lambda each: each.region):
        one = GeneratingUnits(count=each.num_units, rate=each.price.rates[Task.GENERATION], table=_table(each))
        units.setdefault(each.region, []).append(one)
    # A window begins when training, scoring and other tasks on the same devices leave it, less each region's lag.
    return GenerationWindows(
        units=units,
        trainer_region=start.name,
        lag_s={name: sum(lag) for name, lag in _lags_s(terms, pools).items()},
        caps={name: start.transfers[name].samples_per_s for name in units},
        down_per_s=start.samples_per_s,
        before_s=terms.training_s + terms.scoring_s + other_tasks_s,
        others_s=other_tasks_s,
        eta=workload.eta,
        samples=float(workload.samples_per_step),
    )


def _table(each: GeneratingPool) -> PhaseTable:
    assert each.price.phase is not None
    return each.price.phase


def _names(pools: Sequence[GeneratingPool]) -> list[str]:
    """Return the names of the pools' regions, sorted."""
    return sorted({each.region for each in pools})


def others_s(cost_tables: CostTables, terms: FixedTerms) -> float:
    """Return the seconds that other tasks of generation's group take of a window.

    It is 0 at eta 0, where scoring follows generation, and in groups that train, where all tasks of the group count.
    """
    if cost_tables.problem.workload.eta == 0 or terms.generating.trains:
        return 0.0
    return sum(terms.busy_s[task] for task in terms.generating.tasks if task is not Task.GENERATION)


def _first_s(
    cost_tables: CostTables, before_s: float, lags_s: Mapping[str, tuple[float, float]], each: GeneratingPool
) -> float:
    """Return the least step time whose window holds the pool's first sample."""
    return (before_s + sum(lags_s[each.region]) + _table(each).first_s) / (cost_tables.problem.workload.eta + 1)


# ---- by turns with training ------------------------------------------------------------------------------------------


def _by_turns(cost_tables: CostTables, terms: FixedTerms, pools: Sequence[GeneratingPool]) -> StepEstimate:
    """Return the step estimate with these pools, where generation is a phase of a mesh."""
    eta = cost_tables.problem.workload.eta
    phase_s, lags_s = _phase_s(cost_tables, terms, pools), _lags_s(terms, pools)
    before_s = terms.training_s + terms.scoring_s
    # The whole mesh generates at once, so each region's path has the same phase and differs in its transfers only.
    needs = [(f"path:{name}", (before_s + sum(lag_s) + phase_s) / (eta + 1)) for name, lag_s in sorted(lags_s.items())]
    needs += [*_group_needs(terms, phase_s), *_link_needs(terms, _receiving(terms, pools))]
    needs += _critic_needs(terms, eta)
    return StepEstimate(
        active=tuple(pools),
        generation_s=phase_s,
        lags_s=lags_s,
        phase_s=phase_s,
        before_s=before_s,
        eta=eta,
        needs=needs,
        usd_per_step=_usd_per_step(cost_tables, terms, pools),
    )


def _phase_s(cost_tables: CostTables, terms: FixedTerms, pools: Sequence[GeneratingPool]) -> float:
    """Return the least seconds in which these pools together make a step's samples and deliver them."""
    samples, seconds, start = (
        float(cost_tables.problem.workload.samples_per_step),
        cost_tables.phase_seconds,
        terms.trainer,
    )
    # Samples by each knot of the time grid, [num_knots]: in the trainer's region, and of all others together.
    whole, remote = np.zeros(len(seconds)), np.zeros(len(seconds))
    for name in _names(pools):
        made = np.zeros(len(seconds))
        # Samples of each region by each knot of the grid; remote ones within their route's rate, then the downlink's.
        for each in (m for m in pools if m.region == name):
            made = made + each.num_units * _table(each).samples
        if name == start.name:
            whole = made
        else:
            remote = remote + np.minimum(made, seconds * start.transfers[name].samples_per_s)
    if remote.any():
        whole = whole + np.minimum(remote, seconds * start.samples_per_s)
    return end_s(seconds, whole, samples)


# ---- what both need --------------------------------------------------------------------------------------------------


def _lags_s(terms: FixedTerms, pools: Sequence[GeneratingPool]) -> dict[str, tuple[float, float]]:
    """Return (weights, trajectories) in seconds of each region that generates."""
    receives = _receiving(terms, pools)
    found = {}
    for name in _names(pools):
        transfer, weights_s = terms.trainer.transfers[name], 0.0
        # All receiving regions share the uplink; the slower of link and uplink counts, plus half a round trip.
        if name in receives:
            weights_s = (
                max(_link_s(terms, name), terms.trainer.uplink_s * len(receives)) + transfer.weights_s - transfer.link_s
            )
        found[name] = (weights_s, transfer.trajectories_s)
    return found


def _link_s(terms: FixedTerms, name: str) -> float:
    """Return the seconds that a version, and the critic's weights on the same link, occupy the link to a region."""
    critic = terms.critics.get((terms.trainer.name, name))
    return terms.trainer.transfers[name].link_s + (critic.link_s if critic else 0.0)


def _receiving(terms: FixedTerms, pools: Sequence[GeneratingPool]) -> list[str]:
    """Return the names of the remote regions that receive each version."""
    return sorted({each.region for each in pools if not each.has_version and each.region != terms.trainer.name})


def _group_needs(terms: FixedTerms, generation_s: float) -> Iterator[tuple[str, float]]:
    """Yield the busy seconds of each group."""
    busy = {**terms.busy_s, Task.GENERATION: generation_s}
    for group in terms.placement.groups:
        yield "group:" + "+".join(group.tasks), sum(busy[task] for task in group.tasks)


def _critic_needs(terms: FixedTerms, eta: int) -> Iterator[tuple[str, float]]:
    """Yield the path of the critic: its training, the transfer of its weights, and scoring with them."""
    for transfer in terms.critics.values():
        yield "path:critic", (terms.training_s + transfer.weights_s + terms.critic_scoring_s) / (eta + 1)


def _link_needs(
    terms: FixedTerms, receives: Sequence[str], *, with_critics: bool = True
) -> Iterator[tuple[str, float]]:
    """Yield the seconds that versions occupy each link and the trainer's uplink.

    `with_critics` includes links that only the critic's weights use.
    """
    # The critic's weights may take the same link as the actor's, so their seconds add up.
    links = {(terms.trainer.name, name): terms.trainer.transfers[name].link_s for name in receives}
    for ends, transfer in terms.critics.items():
        if with_critics or ends in links:
            links[ends] = links.get(ends, 0.0) + transfer.link_s
    for (src, dst), link_s in sorted(links.items()):
        if src != dst:
            yield f"link:{src}>{dst}", link_s
    if receives and terms.trainer.uplink_s:
        yield f"up:{terms.trainer.name}", terms.trainer.uplink_s * len(receives)


def _usd_per_step(cost_tables: CostTables, terms: FixedTerms, pools: Sequence[GeneratingPool]) -> float:
    """Return the egress dollars per step.

    They are: a version for each receiving region; all samples to the trainer's region at the most expensive route in
    use, and to where they are scored and trained on; the critic's weights; gradients between the regions of a mesh.
    """
    transfers = terms.trainer.transfers
    usd = sum(transfers[name].usd_per_version for name in _receiving(terms, pools))
    # Which pool makes how many samples is not counted, so all of them pay the most expensive route.
    usd += max(transfers[each.region].usd_per_step_to_trainer for each in pools)
    for group in terms.placement.groups:
        here = [transfers[name] for name in regions_of(cost_tables, group) if name != terms.trainer.name]
        # Scored samples travel to the group and back. A group that scores and trains receives them once.
        if any(task in SCORING for task in group.tasks):
            usd += max(
                (transfer.usd_per_step_from_trainer + transfer.usd_per_step_to_trainer for transfer in here),
                default=0.0,
            )
        elif group.trains:
            usd += max((transfer.usd_per_step_from_trainer for transfer in here), default=0.0)
        if group.trains:
            ring = cost_tables.ring_usd_per_gbyte(
                [cost_tables.classes[p.device_class].region.name for p in group.pools]
            )
            usd += ring * cost_tables.gradient_bytes(group.tasks) / 1e9
    return usd + sum(transfer.usd_per_version for transfer in terms.critics.values())


def _in_time(price: UnitCost, window_s: float) -> float:
    """Return the fraction of its full rate that a unit has with so few sequences that a group takes one window.

    A decoding step is assumed to grow linearly from one sequence to all slots; a rate is sequences over time.
    """
    assert price.phase is not None
    first_s = price.phase.first_s
    running = max(0.0, window_s - first_s) / (price.group_s - first_s)
    return max(1 / price.batch, running) * price.group_s / window_s
