"""Each picture is a well-formed, self-contained document with the right texts. How it looks is not tested."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from planner.explain.pictures.gantt import gantt_svg
from planner.explain.pictures.links import links_svg
from planner.explain.pictures.placement import placement_svg
from planner.explain.pictures.quality import quality_svg
from planner.problem.fleet import Fleet
from planner.simulate.run_record import BusySpan, Simulated
from planner.simulate.simulator import simulate
from tests.support.planner.gpu_plan import FLEET, PLACEMENT, PROBLEM, gpu_plan
from tests.support.planner.static_plan import PLAN

_SVG = "{http://www.w3.org/2000/svg}"


def checked(picture: str) -> tuple[ElementTree.Element, str]:
    """The document and its words."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{_SVG}svg"
    assert root.find(f"{_SVG}title") is not None
    assert root.find(f"{_SVG}desc") is not None
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", ""), "it refers to nothing outside"
    width, height = (float(x) for x in root.attrib["viewBox"].split()[2:])
    for shape in root.iter():
        x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
        right = x + float(shape.get("width", "0")) if shape is not root else 0
        assert -1 <= x <= width, shape.attrib
        assert -1 <= y <= height, shape.attrib
        assert right <= width + 1, shape.attrib
    classes = {name for shape in root.iter() for name in shape.get("class", "").split()}
    assert classes <= set(re.findall(r"\.([a-z_]+)\{", picture)), "every class has a style"
    return root, " ".join(text.text or "" for text in root.iter(f"{_SVG}text"))


def test_a_placement_shows_each_region_its_classes_and_who_has_them() -> None:
    root, words = checked(placement_svg(gpu_plan()))
    for word in ("us", "eu", "16 A100-80GB-SXM", "8 L40S spot", "critic training", "trainer", "not used: ap"):
        assert word in words
    cells = [shape for shape in root.iter(f"{_SVG}rect") if shape.find(f"{_SVG}title") is not None]
    assert len(cells) == 16 + 8, "a cell a device of the regions in use"
    assert sum(shape.get("class") == "generation" for shape in cells) == 8


def test_a_class_too_large_for_cells_is_a_strip() -> None:
    regions = tuple(
        replace(region, machines=tuple(replace(m, num_machines=500) for m in region.machines))
        for region in FLEET.regions
    )
    root, words = checked(placement_svg(gpu_plan(replace(PROBLEM, fleet=replace(FLEET, regions=regions)))))
    assert "4,000 A100-80GB-SXM" in words
    assert len(list(root.iter(f"{_SVG}rect"))) < 60


def test_a_static_plan_has_no_placement_to_draw() -> None:
    with pytest.raises(ValueError, match="no placement"):
        placement_svg(PLAN)


def test_a_simulated_step_has_a_row_a_unit_and_bars_by_task() -> None:
    simulated = simulate(PROBLEM, PLACEMENT, seed=1, num_steps=2)
    root, words = checked(gantt_svg(simulated))
    assert "weights from us" in words
    bars = {shape.get("class") for shape in root.iter(f"{_SVG}rect") if shape.find(f"{_SVG}title") is not None}
    assert {"generation", "actor_training", "critic_training", "reward"} <= bars


def span(place: str, begin_s: float, end_s: float, what: str = "reward") -> BusySpan:
    return BusySpan(region="us", place=place, what=what, begin_s=begin_s, end_s=end_s, step=0)


def with_spans(*spans: BusySpan) -> Simulated:
    return Simulated(
        step_s=1.0,
        steps_s=(1.0,),
        samples_per_s=1.0,
        task_busy_s=(),
        links=(),
        regions=(),
        tokens_by_age=(1,),
        hold_s=0.0,
        units_lost=0,
        samples_lost=0,
        samples_put_back=0.0,
        spans=spans,
        num_played=1,
    )


def test_bars_that_overlap_get_lanes_and_equal_units_are_counted() -> None:
    units = [span(f"us/A100/8#{i}", 0, 1, "generation") for i in range(20)]
    root, words = checked(gantt_svg(with_spans(span("us/A100/8", 0, 2), span("us/A100/8", 1, 3), *units)))
    assert "and 15 more like these" in words
    reward = [r for r in root.iter(f"{_SVG}rect") if r.get("class") == "reward" and r.find(f"{_SVG}title") is not None]
    assert len({r.get("y") for r in reward}) == 2
    assert "no step was simulated" in checked(gantt_svg(with_spans()))[1]


def test_quality_has_a_line_a_method_and_the_bound() -> None:
    traces = {"exact": [(0.1, 30.0), (1.0, 20.1)], "random": [(0.0, 900.0), (6.0, 33.0)], "verl": []}
    _, words = checked(
        quality_svg(traces, unit="seconds a step", bound=20.0, budget_s=10.0, title="quality against time")
    )
    assert "exact 20.1" in words
    assert "proved bound 20" in words
    assert "found nothing: verl" in words
    assert (
        "no method found a placement"
        in checked(quality_svg({"verl": []}, unit="", bound=None, budget_s=1.0, title="q"))[1]
    )


def test_links_are_a_matrix_with_gaps_where_nobody_measured() -> None:
    _, words = checked(links_svg(replace(FLEET, links=FLEET.links[1:])))
    assert words.count("4,000") == 5
    assert "-" in words.split()
    many = Fleet(
        regions=tuple(replace(FLEET.regions[0], name=f"r{i:02}") for i in range(45)),
        links=(),
        gpu_types=FLEET.gpu_types,
    )
    assert "5 more regions are not drawn" in checked(links_svg(many))[1]


METHODS = ("auto", "exact", "hetrl", "hetrl_bounded", "areal_hex", "verl", "streamrl", "random", "genetic")


def test_labels_of_many_methods_keep_within_the_plot_and_their_lines_differ() -> None:
    traces = {name: [(0.1, 20.0 + 0.01 * i)] for i, name in enumerate(METHODS)} | {"streamrl": [(0.1, 40.0)]}
    root, _ = checked(quality_svg(traces, unit="s", bound=20.0, budget_s=10.0, title="q"))
    labels = [text for text in root.iter(f"{_SVG}text") if (text.text or "").startswith((*METHODS, "proved bound"))]
    heights = sorted(float(text.attrib["y"]) for text in labels)
    assert len(heights) == len(METHODS) + 1
    assert min(b - a for a, b in pairwise(heights)) > 16
    assert heights[-1] < 470 - 58 + 10, "above the words of the axis"
    ends = [path for path in root.iter(f"{_SVG}path") if path.get("stroke-width") == "2.2"]
    styles = {(path.get("class"), path.get("stroke-dasharray")) for path in ends}
    assert len(styles) == len(METHODS) + 1


def test_devices_that_idle_or_are_unused_look_so_and_only_then_is_there_a_legend() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    assert "unused" not in checked(placement_svg(made))[1]
    idles = replace(made, evaluation=replace(made.evaluation, idle=(0,)))
    root, words = checked(placement_svg(idles))
    assert "too slow or too far to help" in words
    cells = [shape for shape in root.iter(f"{_SVG}rect") if shape.find(f"{_SVG}title") is not None]
    assert sum(shape.get("class") == "idling" for shape in cells) == 8
    assert not any(shape.get("class") == "generation" for shape in cells)
    more = tuple(
        replace(region, machines=(*region.machines, replace(region.machines[0], gpu="L40S", num_machines=9)))
        if region.name == "us"
        else region
        for region in FLEET.regions
    )
    root, words = checked(placement_svg(gpu_plan(replace(PROBLEM, fleet=replace(FLEET, regions=more)))))
    assert "unused: 72 L40S" in words
    assert "$2.00/h a device" in words
    assert sum(shape.find(f"{_SVG}title") is not None for shape in root.iter(f"{_SVG}rect")) == 16 + 8


def test_regions_beyond_the_first_cards_are_a_line_each() -> None:
    names = [f"r{i:02}" for i in range(20)]
    regions = tuple(replace(FLEET.regions[1], name=name) for name in names)
    pools = tuple(replace(PLACEMENT.groups[0].pools[0], device_class=f"{name}/L40S/4/spot") for name in names)
    far = replace(PLACEMENT, groups=(replace(PLACEMENT.groups[0], pools=pools), *PLACEMENT.groups[1:]))
    problem = replace(PROBLEM, fleet=replace(FLEET, regions=(*FLEET.regions, *regions)))
    made = replace(gpu_plan(), placement=far, question=problem)
    root, words = checked(placement_svg(made))
    assert all(name in words for name in names)
    assert "8 generation" in words
    assert float(root.attrib["height"]) < 1200


def test_the_trainers_waiting_is_marked_and_the_title_counts_steps() -> None:
    waits = (span("us/A100/8", 1, 3, "actor_training"), span("us/A100/8", 5, 8, "actor_training"))
    first = span("us/L40S/8#0", 0, 8, "generation")
    root, words = checked(gantt_svg(with_spans(first, waits[0], replace(waits[1], step=1))))
    assert "2 simulated steps" in words
    assert "training waits" in words
    tips = [tip.text for tip in root.iter(f"{_SVG}title")]
    assert sum(tip is not None and tip.startswith("training waits: ") for tip in tips) == 2
    busy = checked(gantt_svg(with_spans(span("us/A100/8", 0, 3, "actor_training"), replace(first, end_s=3.0))))[1]
    assert "one simulated step" in busy
    assert "waits" not in busy


def test_links_of_almost_the_same_rate_look_the_same() -> None:
    rates = iter((3.654e9, 3.659e9, 3.655e9, 3.656e9, 3.657e9, 3.658e9))
    links = tuple(replace(link, bytes_per_s=next(rates) / 8) for link in FLEET.links)
    root, words = checked(links_svg(replace(FLEET, links=links)))
    shades = {s.get("fill-opacity") for s in root.iter(f"{_SVG}rect") if s.find(f"{_SVG}title") is not None}
    assert len(shades) == 1
    assert "10 Mbit/s" in words
    assert "100 Gbit/s" in words


EVIL = "<b a='1'>&\""


def renamed(name: str) -> dict[str, str]:
    return {region.name: f"{region.name}{name}" for region in FLEET.regions}


def test_names_of_regions_and_methods_cannot_become_markup() -> None:
    names = renamed(EVIL)
    regions = tuple(replace(region, name=names[region.name]) for region in FLEET.regions)
    links = tuple(
        replace(link, src_region=names[link.src_region], dst_region=names[link.dst_region]) for link in FLEET.links
    )
    fleet = replace(FLEET, regions=regions, links=links)
    root, words = checked(links_svg(fleet, EVIL))
    assert root.findtext(f"{_SVG}title") == EVIL
    assert all(words.count(name) == 2 for name in names.values())
    assert any((tip.text or "").startswith(f"us{EVIL} to ") for tip in root.iter(f"{_SVG}title"))

    pools = {
        group: tuple(replace(p, device_class=f"{names[p.device_class[:2]]}{p.device_class[2:]}") for p in group.pools)
        for group in PLACEMENT.groups
    }
    placement = replace(PLACEMENT, groups=tuple(replace(group, pools=found) for group, found in pools.items()))
    made = gpu_plan()
    plan = replace(
        made,
        placement=placement,
        question=replace(PROBLEM, fleet=fleet),
        method=EVIL,
        binding=EVIL,
        assignments=tuple(replace(each, region=names[each.region]) for each in made.assignments),
    )
    root, words = checked(placement_svg(plan))
    assert all(name in words for name in names.values())
    assert f"method {EVIL}" in words
    assert EVIL in (root.findtext(f"{_SVG}desc") or "")

    at = replace(span(f"us{EVIL}/A100/8", 0, 1), region=f"us{EVIL}")
    root, words = checked(gantt_svg(with_spans(at, replace(at, place=f"eu{EVIL}>us{EVIL}", what=EVIL)), EVIL))
    assert "weights from eu<b a='1'" in words, "cut to its width, and then escaped"
    assert f"{EVIL}, step 0: 1 s" in [tip.text for tip in root.iter(f"{_SVG}title")]

    root, words = checked(
        quality_svg({EVIL: [(0.1, 2.0)], f"not {EVIL}": []}, unit=EVIL, bound=1.0, budget_s=1, title=EVIL)
    )
    assert f"{EVIL} 2" in words
    assert f"found nothing: not {EVIL}" in words
