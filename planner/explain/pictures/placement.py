"""Picture of a placement: a card per region with a strip of devices per class, coloured by task group."""

from collections.abc import Sequence
from dataclasses import dataclass

from periplus.view import units
from periplus.view.svg import Markup
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Placement, Pool
from planner.cost.step.binding import names
from planner.explain.effects import percent
from planner.explain.lines import NOTHING
from planner.explain.money import usd_words
from planner.explain.pictures import drawing
from planner.plan import Plan
from planner.plan_of_placement import idle_pools
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Fleet
from planner.problem.workload import Task

WIDTH = 980.0
"""Width of the picture in pixels. The other lengths are pixels too."""
_MARGIN = 28.0
_GAP = 16.0
_CARD = (WIDTH - 2 * _MARGIN - _GAP) / 2
_PAD = 16.0
_STRIP = 22.0
_MAX_CELLS = 64
"""Largest class whose devices are drawn one by one; larger classes are drawn as shares."""
_MAX_CARDS = 8
"""Number of regions that get a card; the others get a line with numbers of devices."""
_MAX_UNUSED = 8
"""Number of kinds of unused devices that a card names."""


@dataclass(frozen=True, slots=True)
class _Share:
    """Devices of one class in one group."""

    group: Group
    pool: Pool
    idles: bool

    @property
    def colour(self) -> str:
        """Name of the colour."""
        return "idling" if self.idles else drawing.colour_of(self.group.tasks)

    @property
    def words(self) -> str:
        """Description such as `generation: 24 devices, 12 x tensor 2`."""
        names = " + ".join(drawing.task_name(task) for task in self.group.tasks)
        return f"{names}: {_layout_words(self.group, self.pool)}{', idles' if self.idles else ''}"


def placement_svg(plan: Plan) -> str:
    """Return the picture of a plan. Raises: ValueError if the plan has no placement or does not hold its problem."""
    if plan.placement is None or plan.evaluation is None or plan.question is None:
        raise ValueError("this plan has no placement to draw")
    fleet = plan.question.fleet
    # Processes are in regions that train or generate; scoring may use others.
    used = set(plan.regions) | _placed_regions(plan.placement, fleet)
    shares = _shares(plan.placement, idle_pools(plan))
    shapes, y = _header(plan, plan.evaluation, fleet, shares)
    # Cards go into two columns, each card below the shorter one. `columns` has their current heights.
    columns = [y, y]
    order = _order(plan.trainer_region, used, fleet, shares)
    for name in order[:_MAX_CARDS]:
        column = 0 if columns[0] <= columns[1] else 1
        x = _MARGIN + column * (_CARD + _GAP)
        card, height = _region(plan, plan.evaluation, fleet, name, shares, x, columns[column])
        shapes += card
        columns[column] += height + _GAP
    height = max(columns)
    more, height = _rows(order[_MAX_CARDS:], fleet, shares, height)
    shapes += more
    unused = sorted({region.name for region in fleet.regions} - used)
    if unused:
        lines = drawing.wrapped(f"not used: {', '.join(unused)}", WIDTH - 2 * _MARGIN)
        shapes += [drawing.text(_MARGIN, height + 14 + 18 * i, words, colour="soft") for i, words in enumerate(lines)]
        height += 18 * len(lines) + 10
    title = f"placement by {plan.method}"
    return drawing.document(title, f"{_step_words(plan.evaluation)}. {plan.binding}", WIDTH, height + 12, shapes)


def _order(trainer_region: str, used: set[str], fleet: Fleet, shares: dict[str, list[_Share]]) -> list[str]:
    """Return the used regions, the trainer's first and then by name; regions with most busy devices get the cards."""
    num = dict.fromkeys(used, 0)
    for at in classes_of(fleet):
        # Devices that idle do not count: a region with many of them is of little interest.
        busy = sum(share.pool.num_gpus for share in shares.get(at.key, []) if not share.idles)
        num |= {at.region.name: num[at.region.name] + busy} if busy else {}
    by_size = sorted(used, key=lambda name: (name != trainer_region, -num[name], name))
    # The choice is by size, the order of the cards by name.
    cards = sorted(by_size[:_MAX_CARDS], key=lambda name: (name != trainer_region, name))
    return [*cards, *sorted(by_size[_MAX_CARDS:])]


def _rows(
    regions: Sequence[str], fleet: Fleet, shares: dict[str, list[_Share]], y: float
) -> tuple[list[Markup], float]:
    """Return a line for each region without a card, with the number of devices per group."""
    shapes, label = [], max((drawing.text_width(name) for name in regions), default=0.0) + 16
    for name in regions:
        num: dict[tuple[str, str], int] = {}
        for share in (s for at in classes_of(fleet) if at.region.name == name for s in shares.get(at.key, [])):
            # Devices of the same tasks are counted together, whatever their layouts.
            words = names("+".join(share.group.tasks)) + (", idling" if share.idles else "")
            num[share.colour, words] = num.get((share.colour, words), 0) + share.pool.num_gpus
        shapes.append(drawing.text(_MARGIN, y + 14, name, bold=True))
        entries = [(colour, f"{count:,} {words}") for (colour, words), count in num.items()]
        more, y = drawing.legend(_MARGIN + label, y + 14, entries, WIDTH - 2 * _MARGIN - label)
        shapes += more
        y += 8
    return shapes, y + (10 if regions else 0)


def _header(
    plan: Plan, evaluation: Evaluation, fleet: Fleet, shares: dict[str, list[_Share]]
) -> tuple[list[Markup], float]:
    """Return the shapes of title, facts and legend, and the height below them."""
    shapes = [drawing.text(_MARGIN, 42, _step_words(evaluation), size=22, bold=True)]
    facts = [f"method {plan.method}"]
    if plan.rates:
        facts.append(f"{units.short(plan.rates.completion_tokens_per_s)} completion tokens/s")
    if usd := usd_words(fleet, plan.placement, evaluation) if plan.placement else "":
        # Devices without a price follow after a plus sign; the unit belongs before it.
        dollars, plus, rest = usd.partition(" + ")
        facts.append(f"{dollars} dollars an hour{plus}{rest}")
    if plan.gap is not None:
        facts.append(_proof(plan.gap))
    if plan.simulated and plan.simulated.step_s is not None:
        facts.append(f"simulated {units.short(plan.simulated.step_s)} s")
    shapes.append(drawing.text(_MARGIN, 66, "  ·  ".join(facts), colour="soft"))
    y = 88.0
    for words in drawing.wrapped(f"binds: {plan.binding}", WIDTH - 2 * _MARGIN):
        shapes.append(drawing.text(_MARGIN, y, words, colour="soft"))
        y += 18
    assert plan.placement is not None
    entries = [(drawing.colour_of(g.tasks), " + ".join(map(drawing.task_name, g.tasks))) for g in plan.placement.groups]
    entries += [("idling", "too slow or too far to help")] * any(
        s.idles for of_class in shares.values() for s in of_class
    )
    # The legend needs the colour of unused devices only if a class that is drawn has some.
    free = (at for at in classes_of(fleet) if sum(s.pool.num_gpus for s in shares.get(at.key, [])) < at.num_gpus)
    entries += [("idle", "unused")] * any(at.key in shares for at in free)
    more, y = drawing.legend(_MARGIN, y + 12, entries, WIDTH - 2 * _MARGIN)
    return shapes + more, y + 22


def _proof(gap: float) -> str:
    if gap > NOTHING:
        return "next to nothing proved"
    return "proved best" if gap < 5e-5 else f"at most {percent(gap)} from the best"


def _step_words(evaluation: Evaluation) -> str:
    return f"{units.short(evaluation.step_s)} s a step"


def _region(
    plan: Plan, evaluation: Evaluation, fleet: Fleet, name: str, shares: dict[str, list[_Share]], x: float, y: float
) -> tuple[list[Markup], float]:
    """Return the shapes of a region's card, and its height."""
    inner = _CARD - 2 * _PAD
    has_trainer = name == plan.trainer_region
    shapes = [drawing.text(x + _PAD, y + 26, drawing.fitted(name, inner - 70, 15), size=15, bold=True)]
    if has_trainer:
        shapes.append(drawing.text(x + _CARD - _PAD, y + 26, "trainer", size=12, colour="soft", anchor="end"))
    at = y + 46
    here = [each for each in classes_of(fleet) if each.region.name == name]
    # Classes in use get a strip each; the others are summed up in a line of text.
    for device_class in (each for each in here if each.key in shares):
        more, at = _class(device_class, shares[device_class.key], x + _PAD, at, inner)
        shapes += more
    more, at = _unused([each for each in here if each.key not in shares], x + _PAD, at, inner)
    shapes += more
    times = next((each for each in evaluation.regions if each.region == name), None)
    # Within the trainer's region nothing crosses a wide-area link.
    if times is not None and not has_trainer:
        at -= 8
        words = f"weights {_time(times.weights_s)}, trajectories {_time(times.trajectories_s)}"
        shapes.append(drawing.text(x + _PAD, at + 6, words, size=12, colour="soft"))
        at += 20
    height = at - y
    return [drawing.box(x, y, _CARD, height, "card", radius=10), *shapes], height


def _unused(classes: Sequence[DeviceClass], x: float, y: float, width: float) -> tuple[list[Markup], float]:
    """Return a few lines of text on classes that nothing uses."""
    if not classes:
        return [], y
    kinds: dict[str, int] = {}
    for at in sorted(classes, key=lambda at: (-at.num_gpus, at.key)):
        # Classes that differ only in price or machine size are one kind here.
        kinds[_kind(at)] = kinds.get(_kind(at), 0) + at.num_gpus
    words = [f"{num:,} {kind}" for kind, num in list(kinds.items())[:_MAX_UNUSED]]
    words += [f"and {len(kinds) - _MAX_UNUSED} more"] if len(kinds) > _MAX_UNUSED else []
    lines = drawing.wrapped(f"unused: {', '.join(words)}", width, 12)
    shapes = [drawing.text(x, y + 4 + 17 * i, line, size=12, colour="soft") for i, line in enumerate(lines)]
    return shapes, y + 17 * len(lines) + 9


def _kind(at: DeviceClass) -> str:
    return f"{at.gpu.name}{' spot' if at.is_spot else ''}"


def _class(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> tuple[list[Markup], float]:
    """Return the shapes of one class on a card, and the height below them."""
    price = f", ${at.usd_per_gpu_hour:.2f}/h a device" if at.usd_per_gpu_hour is not None else ""
    name = f"{at.num_gpus:,} {_kind(at)}"
    machines = "1 machine" if at.num_machines == 1 else f"{at.num_machines:,} machines"
    note = f"{machines} of {at.gpus_per_machine}{price}"
    shapes = [
        drawing.text(x, y + 4, drawing.fitted(name, width - drawing.text_width(note, 12) - 12)),
        drawing.text(x + width, y + 4, note, size=12, colour="soft", anchor="end"),
    ]
    y += 12
    # Small classes show single devices, large ones shares of a strip.
    shapes += _cells(at, shares, x, y, width) if at.num_gpus <= _MAX_CELLS else _strip(at, shares, x, y, width)
    y += _STRIP + 16
    for share in shares:
        shapes.append(drawing.box(x, y - 8, 8, 8, share.colour))
        for words in drawing.wrapped(share.words, width - 14, 12):
            shapes.append(drawing.text(x + 14, y, words, size=12, colour="soft"))
            y += 17
    return shapes, y + 9


def _cells(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> list[Markup]:
    """Return a box per device; devices of one machine are drawn together."""
    # Devices in the order of the shares. The placement does not say which device is whose; only the numbers are exact.
    owners = [share for share in shares for _ in range(share.pool.num_gpus)]
    gap = 5.0 if at.num_machines > 1 else 0.0
    cell = min(_STRIP, (width - gap * (at.num_machines - 1)) / at.num_gpus)
    shapes = []
    for i in range(at.num_gpus):
        left = x + i * cell + (i // at.gpus_per_machine) * gap
        owner = owners[i] if i < len(owners) else None
        colour = owner.colour if owner else "idle"
        tip = owner.words if owner else "unused"
        shapes.append(drawing.box(left, y, cell - 1.5, _STRIP, colour, tip=tip))
    return shapes


def _strip(at: DeviceClass, shares: Sequence[_Share], x: float, y: float, width: float) -> list[Markup]:
    shapes, left = [drawing.box(x, y, width, _STRIP, "idle", tip="unused")], x
    for share in shares:
        wide = width * share.pool.num_gpus / at.num_gpus
        shapes.append(drawing.box(left, y, max(wide - 1.5, 1.0), _STRIP, share.colour, tip=share.words))
        left += wide
    return shapes


def _layout_words(group: Group, pool: Pool) -> str:
    """Format a layout as `24 devices, tensor 4 x pipeline 2 x data 3`."""
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
