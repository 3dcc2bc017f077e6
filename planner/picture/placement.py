"""Who runs where: a card a region, a strip of devices for each class, coloured by the task group that has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from periplus.view import units
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement, Pool
from planner.classes import DeviceClass, classes_of
from planner.picture import svg
from planner.plan import Plan
from planner.propose import idle_pools
from planner.question.fleet import Fleet
from planner.question.workload import Task

WIDTH = 980.0
_MARGIN = 28.0
_GAP = 16.0
_CARD = (WIDTH - 2 * _MARGIN - _GAP) / 2
_PAD = 16.0
_STRIP = 22.0
_MAX_CELLS = 64
"""Devices that are drawn one by one; of larger classes only shares are."""


@dataclass(frozen=True, slots=True)
class _Share:
    """Devices of one class in one group."""

    group: Group
    pool: Pool
    idles: bool

    @property
    def words(self) -> str:
        """`generation: 3 units of 2`; layouts in short."""
        names = " + ".join(svg.task_name(task) for task in self.group.tasks)
        return f"{names}: {_layout_words(self.group, self.pool)}{', idles' if self.idles else ''}"


def placement_svg(plan: Plan) -> str:
    """The picture of a plan that has a placement and its question. Raises: ValueError for others."""
    if plan.placement is None or plan.evaluation is None or plan.question is None:
        raise ValueError("this plan has no placement to draw")
    fleet = plan.question.fleet
    shapes, y = _header(plan, plan.evaluation)
    used = set(plan.regions) | _placed_regions(plan.placement, fleet)
    names = sorted(used, key=lambda name: (name != plan.trainer_region, name))
    shares = _shares(plan.placement, idle_pools(plan))
    columns = [y, y]
    for name in names:
        column = 0 if columns[0] <= columns[1] else 1
        x = _MARGIN + column * (_CARD + _GAP)
        card, height = _region(plan, plan.evaluation, fleet, name, shares, x, columns[column])
        shapes += card
        columns[column] += height + _GAP
    height = max(columns)
    unused = sorted({region.name for region in fleet.regions} - used)
    if unused:
        lines = svg.wrapped(f"not used: {', '.join(unused)}", WIDTH - 2 * _MARGIN)
        shapes += [svg.text(_MARGIN, height + 14 + 18 * i, words, colour="soft") for i, words in enumerate(lines)]
        height += 18 * len(lines) + 10
    title = f"placement by {plan.method}"
    return svg.document(title, f"{_step_words(plan.evaluation)}. {plan.binding}", WIDTH, height + 12, shapes)


def _header(plan: Plan, evaluation: Evaluation) -> tuple[list[str], float]:
    shapes = [svg.text(_MARGIN, 42, _step_words(evaluation), size=22, bold=True)]
    facts = [f"method {plan.method}"]
    if plan.rates:
        facts.append(f"{units.short(plan.rates.completion_tokens_per_s)} completion tokens/s")
    if evaluation.usd_per_hour > 0:
        facts.append(f"{evaluation.usd_per_hour:,.2f} dollars an hour")
    if plan.gap is not None:
        facts.append("proved best" if plan.gap < 5e-5 else f"at most {units.percent(plan.gap)} from the best")
    if plan.simulated and plan.simulated.step_s is not None:
        facts.append(f"simulated {units.short(plan.simulated.step_s)} s")
    shapes.append(svg.text(_MARGIN, 66, "  ·  ".join(facts), colour="soft"))
    y = 88.0
    for words in svg.wrapped(f"binds: {plan.binding}", WIDTH - 2 * _MARGIN):
        shapes.append(svg.text(_MARGIN, y, words, colour="soft"))
        y += 18
    assert plan.placement is not None
    entries = [(svg.colour_of(g.tasks), " + ".join(map(svg.task_name, g.tasks))) for g in plan.placement.groups]
    more, y = svg.legend(_MARGIN, y + 12, [*entries, ("idle", "idle")], WIDTH - 2 * _MARGIN)
    return shapes + more, y + 22


def _step_words(evaluation: Evaluation) -> str:
    return f"{units.short(evaluation.step_s)} s a step"


def _region(
    plan: Plan, evaluation: Evaluation, fleet: Fleet, name: str, shares: dict[str, list[_Share]], x: float, y: float
) -> tuple[list[str], float]:
    inner = _CARD - 2 * _PAD
    home = name == plan.trainer_region
    shapes = [svg.text(x + _PAD, y + 26, svg.fitted(name, inner - 70, 15), size=15, bold=True)]
    if home:
        shapes.append(svg.text(x + _CARD - _PAD, y + 26, "trainer", size=12, colour="soft", anchor="end"))
    at = y + 46
    for device_class in (each for each in classes_of(fleet) if each.region.name == name):
        more, at = _class(device_class, shares.get(device_class.key, []), x + _PAD, at, inner)
        shapes += more
    times = next((each for each in evaluation.regions if each.region == name), None)
    if times is not None and not home:
        at -= 8
        words = f"weights {_time(times.weights_s)}, trajectories {_time(times.trajectories_s)}"
        shapes.append(svg.text(x + _PAD, at + 6, words, size=12, colour="soft"))
        at += 20
    height = at - y
    return [svg.box(x, y, _CARD, height, "card", radius=10), *shapes], height


def _class(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> tuple[list[str], float]:
    price = f", ${at.usd_per_gpu_hour:.2f}/h" if at.usd_per_gpu_hour is not None else ""
    name = f"{at.num_gpus:,} {at.gpu.name}{' spot' if at.is_spot else ''}"
    machines = "1 machine" if at.num_machines == 1 else f"{at.num_machines:,} machines"
    note = f"{machines} of {at.gpus_per_machine}{price}"
    shapes = [
        svg.text(x, y + 4, svg.fitted(name, width - svg.text_width(note, 12) - 12)),
        svg.text(x + width, y + 4, note, size=12, colour="soft", anchor="end"),
    ]
    y += 12
    shapes += _cells(at, shares, x, y, width) if at.num_gpus <= _MAX_CELLS else _strip(at, shares, x, y, width)
    y += _STRIP + 16
    for share in shares:
        shapes.append(svg.box(x, y - 8, 8, 8, svg.colour_of(share.group.tasks)))
        for words in svg.wrapped(share.words, width - 14, 12):
            shapes.append(svg.text(x + 14, y, words, size=12, colour="soft"))
            y += 17
    return shapes, y + 9


def _cells(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> list[str]:
    """Each device; those of a machine stand together."""
    owners = [share for share in shares for _ in range(share.pool.num_gpus)]
    gap = 5.0 if at.num_machines > 1 else 0.0
    cell = min(_STRIP, (width - gap * (at.num_machines - 1)) / at.num_gpus)
    shapes = []
    for i in range(at.num_gpus):
        left = x + i * cell + (i // at.gpus_per_machine) * gap
        owner = owners[i] if i < len(owners) else None
        colour = svg.colour_of(owner.group.tasks) if owner else "idle"
        tip = owner.words if owner else "idle"
        shapes.append(svg.box(left, y, cell - 1.5, _STRIP, colour, tip=tip))
    return shapes


def _strip(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> list[str]:
    shapes, left = [svg.box(x, y, width, _STRIP, "idle", tip="idle")], x
    for share in shares:
        wide = width * share.pool.num_gpus / at.num_gpus
        shapes.append(svg.box(left, y, max(wide - 1.5, 1.0), _STRIP, svg.colour_of(share.group.tasks), tip=share.words))
        left += wide
    return shapes


def _layout_words(group: Group, pool: Pool) -> str:
    """`24 devices, tensor 4 x pipeline 2 x data 3`."""
    layout = pool.layout(next((task for task in group.tasks if task.value.endswith("training")), group.tasks[0]))
    devices = f"{pool.num_gpus:,} device{'s' if pool.num_gpus != 1 else ''}"
    if group.trains:
        data = pool.num_units // layout.pipeline
        sharding = f", sharding {layout.sharding.value}" if layout.sharding.value != "none" else ""
        return f"{devices}, tensor {layout.tensor} x pipeline {layout.pipeline} x data {data}{sharding}"
    batch = next((of.batch for task, of in pool.layouts if task is Task.GENERATION and of.batch), 0)
    running = f", {batch} sequences each" if batch else ""
    replicas = pool.num_gpus // layout.tensor
    return f"{devices}, {replicas:,} x tensor {layout.tensor}{running}"


def _shares(placement: Placement, idle: frozenset[int]) -> dict[str, list[_Share]]:
    found: dict[str, list[_Share]] = {}
    for group in placement.groups:
        for i, pool in enumerate(group.pools):
            share = _Share(group, pool, i in idle and Task.GENERATION in group.tasks)
            found.setdefault(pool.device_class, []).append(share)
    return found


def _placed_regions(placement: Placement, fleet: Fleet) -> set[str]:
    regions = {each.key: each.region.name for each in classes_of(fleet)}
    return {regions[pool.device_class] for group in placement.groups for pool in group.pools}


def _time(seconds: float) -> str:
    return f"{units.short(seconds)} s"
