"""Each picture is a well-formed document that stands by itself and says what it should; people look at how."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from planner.picture.gantt import gantt_svg
from planner.picture.links import links_svg
from planner.picture.placement import placement_svg
from planner.picture.quality import quality_svg
from planner.question.fleet import Fleet
from planner.simulate.record import Simulated, Span
from planner.simulate.simulator import simulate
from tests.support.gpu_plan import FLEET, PLACEMENT, PROBLEM, gpu_plan
from tests.support.static_plan import PLAN

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


def test_a_played_step_has_a_row_a_unit_and_bars_by_task() -> None:
    played = simulate(PROBLEM, PLACEMENT, seed=1, num_steps=2)
    root, words = checked(gantt_svg(played))
    assert "weights from us" in words
    bars = {shape.get("class") for shape in root.iter(f"{_SVG}rect") if shape.find(f"{_SVG}title") is not None}
    assert {"generation", "actor_training", "critic_training", "reward"} <= bars


def span(place: str, begin_s: float, end_s: float, what: str = "reward") -> Span:
    return Span(region="us", place=place, what=what, begin_s=begin_s, end_s=end_s, step=0)


def with_spans(*spans: Span) -> Simulated:
    return Simulated(
        step_s=1.0, steps_s=(1.0,), samples_per_s=1.0, task_busy_s=(), links=(), regions=(), tokens_by_age=(1,),
        hold_s=0.0, units_lost=0, samples_lost=0, samples_put_back=0.0, spans=spans,
    )  # fmt: skip


def test_bars_that_overlap_get_lanes_and_equal_units_are_counted() -> None:
    units = [span(f"us/A100/8#{i}", 0, 1, "generation") for i in range(20)]
    root, words = checked(gantt_svg(with_spans(span("us/A100/8", 0, 2), span("us/A100/8", 1, 3), *units)))
    assert "and 15 more like these" in words
    reward = [r for r in root.iter(f"{_SVG}rect") if r.get("class") == "reward" and r.find(f"{_SVG}title") is not None]
    assert len({r.get("y") for r in reward}) == 2
    assert "nothing was played" in checked(gantt_svg(with_spans()))[1]


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
