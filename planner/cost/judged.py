"""A placement taken apart, judged: what a step must hold, by name, with the best choice of which pools generate.

Where generation takes turns with training it is a phase of the whole mesh. Apart from training each region has its
window (`planner.cost.window`). A pool that makes nothing in its window idles and is paid. Where versions over a link
or the uplink would bind the step, remote regions with slow links idle, too: in the order of what their links need, the
best first few count. Where the operator demands regions, none idles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.evaluation import RegionTimes
from planner.cost.phases import KNOT, PhaseTable, end_s
from planner.cost.placed import Making, Placed, regions_of
from planner.cost.pools import PoolPrice, Prices
from planner.cost.window import Generating, Units, makes
from planner.question.workload import SCORING, Task

BETTER = 1 - 1e-9
"""A choice of pools counts as better than another from here."""
_FAR_BEYOND = 4.0
"""Of a window: where a group takes so long with all slots full, a pool is given fewer sequences at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a placement needs with some of its pools generating."""

    active: tuple[Making, ...]
    generation_s: float
    """Apart from training at eta >= 1: busy seconds a step at full rates; else the phase, the longest of them."""
    lags_s: Mapping[str, tuple[float, float]]
    """Of each region that generates: weights and trajectories."""
    phase_s: float | None
    """Of the whole mesh, where generation takes turns with training."""
    before_s: float
    """Training and scoring; and what others take of generation's group, where it has windows."""
    beside_s: float = 0.0
    """Of it, what others take of generation's group."""
    eta: int
    needs: Sequence[tuple[str, float]]
    """What tau must be at least, each with its name; budget apart."""
    usd_per_step: float
    binding: str = field(init=False)
    step_s: float = field(init=False)

    def __post_init__(self) -> None:
        binding, step_s = max(self.needs, key=lambda need: need[1])
        object.__setattr__(self, "binding", binding)
        object.__setattr__(self, "step_s", step_s)

    @property
    def regions(self) -> tuple[RegionTimes, ...]:
        """Of each region that generates, by name."""
        found = []
        for name, (weights_s, trajectories_s) in sorted(self.lags_s.items()):
            left_s = (self.eta + 1) * self.step_s - self.before_s - weights_s - trajectories_s
            window_s = left_s if self.phase_s is None else self.phase_s
            found.append(
                RegionTimes(region=name, weights_s=weights_s, trajectories_s=trajectories_s, window_s=window_s)
            )
        return tuple(found)

    @property
    def limited(self) -> tuple[tuple[Making, float], ...]:
        """Pools that make less in their window than at their full rate, and the samples a step that they make."""
        if self.phase_s is not None or not self.eta:
            return ()
        windows, found = {each.region: each.window_s for each in self.regions}, []
        for each in self.active:
            assert each.price.phase is not None
            window_s, full = windows[each.region], each.price.rates[Task.GENERATION] * (self.step_s - self.beside_s)
            made = each.price.phase.beside(window_s * (1 + KNOT), self.step_s - self.beside_s)[0]
            if each.price.group_s > _FAR_BEYOND * window_s:
                made = min(made, full * _in_time(each.price, window_s))
            if made < full:
                found.append((each, each.num_units * made))
        return tuple(found)


def judge(prices: Prices, placed: Placed) -> Judged:
    """With the best of the placement's generating pools; with all of them where the operator demands regions."""
    is_free = not prices.problem.rules.demands_regions
    if placed.generating.trains:
        best = _by_turns(prices, placed, placed.making)
        if is_free:
            active = tuple(each for each in placed.making if makes(_table(each), best.generation_s))
            best = best if len(active) == len(placed.making) else _by_turns(prices, placed, active)
        return best
    best = _apart(prices, placed, placed.making)
    links_s = [need_s for name, need_s in best.needs if name.startswith(("link:", "up:"))]
    if not is_free or max(links_s, default=0.0) < best.step_s:
        return best
    far = {each.region for each in placed.making} - {placed.home.name}
    order = sorted(far, key=lambda name: (_link_s(placed, name), name))
    for count in range(len(order)):
        some = tuple(each for each in placed.making if each.region not in order[count:])
        if some:
            found = _apart(prices, placed, some)
            best = found if found.step_s < best.step_s * BETTER else best
    return best


def alone_s(prices: Prices, placed: Placed, each: Making) -> float:
    """The least step in which a pool makes anything, and its link carries versions, as if only it generated."""
    receives = _receiving(placed, (each,))
    links = [need_s for _, need_s in _link_needs(placed, receives, with_critics=False)]
    before_s = placed.training_s + placed.scoring_s + others_s(prices, placed)
    return max(_first_s(prices, before_s, _lags_s(placed, (each,)), each), *links, 0.0)


# ---- apart from training ---------------------------------------------------------------------------------------------


def _apart(prices: Prices, placed: Placed, pools: Sequence[Making]) -> Judged:
    demands = prices.problem.rules.demands_regions
    windows = _windows(prices, placed, pools)
    step_s = windows.least_s()
    active = [each for each in pools if demands or makes(_table(each), windows.window_s(each.region, step_s))]
    if len(active) < len(pools):
        pools, windows = active, _windows(prices, placed, active)
        step_s = windows.least_s()
    made = {name: each[0] for name, each in windows.made(step_s).items()}
    path = f"path:{max(made, key=lambda name: (made[name], name))}"
    longest_s = max(windows.window_s(name, step_s) for name in made)
    generation_s = windows.full_s() if windows.eta else longest_s
    needs = [*_group_needs(placed, generation_s), *_link_needs(placed, _receiving(placed, pools))]
    needs += _critic_needs(placed, windows.eta)
    if not windows.eta or step_s > (generation_s + windows.others_s) / BETTER:
        needs.append((path, step_s))
    lags_s = _lags_s(placed, pools)
    if demands:
        needs += [(f"path:{each.region}", _first_s(prices, windows.before_s, lags_s, each)) for each in pools]
    return Judged(
        active=tuple(pools), generation_s=generation_s, lags_s=lags_s, phase_s=None, before_s=windows.before_s,
        beside_s=windows.others_s, eta=windows.eta, needs=needs, usd_per_step=_usd_per_step(prices, placed, pools),
    )  # fmt: skip


def _windows(prices: Prices, placed: Placed, pools: Sequence[Making]) -> Generating:
    start, workload, beside_s = placed.home, prices.problem.workload, others_s(prices, placed)
    units: dict[str, list[Units]] = {}
    for each in sorted(pools, key=lambda each: each.region):
        one = Units(count=each.num_units, rate=each.price.rates[Task.GENERATION], table=_table(each))
        units.setdefault(each.region, []).append(one)
    return Generating(
        units=units, home=start.name, lag_s={name: sum(lag) for name, lag in _lags_s(placed, pools).items()},
        caps={name: start.ways[name].samples_per_s for name in units}, down_per_s=start.samples_per_s,
        before_s=placed.training_s + placed.scoring_s + beside_s, others_s=beside_s, eta=workload.eta,
        samples=float(workload.samples_per_step),
    )  # fmt: skip


def _table(each: Making) -> PhaseTable:
    assert each.price.phase is not None
    return each.price.phase


def _names(pools: Sequence[Making]) -> list[str]:
    return sorted({each.region for each in pools})


def others_s(prices: Prices, placed: Placed) -> float:
    """What other tasks of generation's group take of a window. None at eta 0, where scoring comes after generation, and
    by turns with training, where all of a group is counted."""
    if prices.problem.workload.eta == 0 or placed.generating.trains:
        return 0.0
    return sum(placed.busy_s[task] for task in placed.generating.tasks if task is not Task.GENERATION)


def _first_s(prices: Prices, before_s: float, lags_s: Mapping[str, tuple[float, float]], each: Making) -> float:
    """The least step with the pool's first sample in its window."""
    return (before_s + sum(lags_s[each.region]) + _table(each).first_s) / (prices.problem.workload.eta + 1)


# ---- by turns with training ------------------------------------------------------------------------------------------


def _by_turns(prices: Prices, placed: Placed, pools: Sequence[Making]) -> Judged:
    """With these pools of the mesh generating."""
    eta = prices.problem.workload.eta
    phase_s, lags_s = _phase_s(prices, placed, pools), _lags_s(placed, pools)
    before_s = placed.training_s + placed.scoring_s
    needs = [(f"path:{name}", (before_s + sum(lag_s) + phase_s) / (eta + 1)) for name, lag_s in sorted(lags_s.items())]
    needs += [*_group_needs(placed, phase_s), *_link_needs(placed, _receiving(placed, pools))]
    needs += _critic_needs(placed, eta)
    return Judged(
        active=tuple(pools), generation_s=phase_s, lags_s=lags_s, phase_s=phase_s, before_s=before_s, eta=eta,
        needs=needs, usd_per_step=_usd_per_step(prices, placed, pools),
    )  # fmt: skip


def _phase_s(prices: Prices, placed: Placed, pools: Sequence[Making]) -> float:
    """The least seconds in which all of them together make a step's samples, and get them home."""
    samples, seconds, start = float(prices.problem.workload.samples_per_step), prices.phase_seconds, placed.home
    whole, remote = np.zeros(len(seconds)), np.zeros(len(seconds))
    for name in _names(pools):
        made = np.zeros(len(seconds))
        for each in (m for m in pools if m.region == name):
            made = made + each.num_units * _table(each).samples
        if name == start.name:
            whole = made
        else:
            remote = remote + np.minimum(made, seconds * start.ways[name].samples_per_s)
    if remote.any():
        whole = whole + np.minimum(remote, seconds * start.samples_per_s)
    return end_s(seconds, whole, samples)


# ---- what both need --------------------------------------------------------------------------------------------------


def _lags_s(placed: Placed, pools: Sequence[Making]) -> dict[str, tuple[float, float]]:
    """(weights, trajectories) of each region that generates."""
    receives = _receiving(placed, pools)
    found = {}
    for name in _names(pools):
        way, weights_s = placed.home.ways[name], 0.0
        if name in receives:
            weights_s = max(_link_s(placed, name), placed.home.uplink_s * len(receives)) + way.weights_s - way.link_s
        found[name] = (weights_s, way.trajectories_s)
    return found


def _link_s(placed: Placed, name: str) -> float:
    """What a version, and the critic's weights with it, need of the link to a region."""
    critic = placed.critics.get((placed.home.name, name))
    return placed.home.ways[name].link_s + (critic.link_s if critic else 0.0)


def _receiving(placed: Placed, pools: Sequence[Making]) -> list[str]:
    """Regions that are sent each version."""
    return sorted({each.region for each in pools if not each.has_version and each.region != placed.home.name})


def _group_needs(placed: Placed, generation_s: float) -> Iterator[tuple[str, float]]:
    busy = {**placed.busy_s, Task.GENERATION: generation_s}
    for group in placed.placement.groups:
        yield "group:" + "+".join(group.tasks), sum(busy[task] for task in group.tasks)


def _critic_needs(placed: Placed, eta: int) -> Iterator[tuple[str, float]]:
    for way in placed.critics.values():
        yield "path:critic", (placed.training_s + way.weights_s + placed.critic_scoring_s) / (eta + 1)


def _link_needs(placed: Placed, receives: Sequence[str], *, with_critics: bool = True) -> Iterator[tuple[str, float]]:
    """`with_critics`: links that only the critic's weights use, too."""
    links = {(placed.home.name, name): placed.home.ways[name].link_s for name in receives}
    for ends, way in placed.critics.items():
        if with_critics or ends in links:
            links[ends] = links.get(ends, 0.0) + way.link_s
    for (src, dst), link_s in sorted(links.items()):
        if src != dst:
            yield f"link:{src}>{dst}", link_s
    if receives and placed.home.uplink_s:
        yield f"up:{placed.home.name}", placed.home.uplink_s * len(receives)


def _usd_per_step(prices: Prices, placed: Placed, pools: Sequence[Making]) -> float:
    """Egress: versions to each region; samples home at the dearest way among them, and to where they are scored and
    trained on, once to a group that does both; the critic's weights; gradients between a mesh's regions."""
    ways = placed.home.ways
    usd = sum(ways[name].usd_per_version for name in _receiving(placed, pools))
    usd += max(ways[each.region].usd_per_step_home for each in pools)
    for group in placed.placement.groups:
        here = [ways[name] for name in regions_of(prices, group) if name != placed.home.name]
        if any(task in SCORING for task in group.tasks):
            usd += max((way.usd_per_step_there + way.usd_per_step_home for way in here), default=0.0)
        elif group.trains:
            usd += max((way.usd_per_step_there for way in here), default=0.0)
        if group.trains:
            ring = prices.ring_usd_per_gbyte([prices.classes[p.device_class].region.name for p in group.pools])
            usd += ring * prices.gradient_bytes(group.tasks) / 1e9
    return usd + sum(way.usd_per_version for way in placed.critics.values())


def _in_time(price: PoolPrice, window_s: float) -> float:
    """Of a unit's full rate, what it has with so few sequences at a time that a group takes a window.

    What a step takes grows in proportion to its sequences, from one to all slots; and a rate is sequences over time.
    """
    assert price.phase is not None
    first_s = price.phase.first_s
    running = max(0.0, window_s - first_s) / (price.group_s - first_s)
    return max(1 / price.batch, running) * price.group_s / window_s
