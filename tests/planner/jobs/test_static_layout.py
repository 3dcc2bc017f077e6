import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.files.capabilities import load_capabilities
from planner.jobs.needs import Needs
from planner.jobs.refusals import refusal
from planner.jobs.static_layout import plan_static
from planner.plan import TaskKind
from planner.problem.fleet import Fleet, Link
from tests.support.planner.hosts import GB, NEEDS, host, mesh, rollout_regions, without_link

CAPABILITIES = load_capabilities()


def test_the_trainer_goes_where_the_slowest_path_of_weights_is_shortest() -> None:
    made = plan_static(mesh([host("a"), host("b"), host("c")], slow=frozenset({"a", "c"})), NEEDS)
    assert made.trainer_region == "b"
    assert [(p.region, p.weights_s) for p in made.predictions] == [("a", 1.05), ("c", 1.05)]
    assert made.binding == (
        "the throughput from b to c: 1000.0 MB at 8.00 Gbit/s and 100 ms round trip take 1.050 s uncompressed, "
        "longest of all regions"
    )


def test_equal_paths_are_decided_by_cores_and_then_by_name() -> None:
    assert plan_static(mesh([host("c"), host("b", num_cores=4), host("a")]), NEEDS).trainer_region == "b"
    assert plan_static(mesh([host("c"), host("b"), host("a")]), NEEDS).trainer_region == "a"


def test_one_region_trains_and_rolls_out_alone() -> None:
    made = plan_static(mesh([host("a")]), NEEDS)
    assert [(a.task, a.region, a.num_workers) for a in made.assignments] == [
        (TaskKind.TRAINER, "a", 1),
        (TaskKind.ROLLOUT, "a", 2),
    ]
    assert made.weights_tree == made.trajectory_routes == ()
    assert made.binding == "everything is in a: no weights cross a WAN"


def test_a_region_without_memory_for_the_workers_is_left_out() -> None:
    assert rollout_regions(plan_static(mesh([host("a"), host("b"), host("c", memory_gb=1)]), NEEDS)) == ("a", "b")


def test_serving_more_regions_comes_before_a_shorter_path() -> None:
    made = plan_static(mesh([host("a", memory_gb=5), host("b")], slow=frozenset({"b"})), NEEDS)
    assert (made.trainer_region, rollout_regions(made)) == ("b", ("a", "b"))


def test_at_most_so_many_regions_are_taken() -> None:
    fleet = mesh([host("a"), host("b"), host("c")])
    assert len(plan_static(fleet, replace(NEEDS, max_regions=2)).regions) == 2
    needs = replace(NEEDS, max_regions=2, trainer_region="a", rollout_regions=("c",))
    assert plan_static(fleet, needs).regions == ("a", "c")


def test_an_unknown_size_compares_delays_and_predicts_no_time() -> None:
    made = plan_static(mesh([host("a"), host("b")]), replace(NEEDS, model_bytes=None))
    assert [p.weights_s for p in made.predictions] == [None]
    assert "size is not known" in made.binding


def test_a_long_delay_binds_where_the_transfer_is_short() -> None:
    fleet = mesh([host("a"), host("b"), host("c")])
    assert plan_static(fleet, replace(NEEDS, model_bytes=1000)).binding.startswith("the delay from a to c")


def test_a_missing_link_moves_the_trainer_where_all_links_are_measured() -> None:
    fleet = without_link(mesh([host("a"), host("b"), host("c")]), "a", "c")
    assert plan_static(fleet, NEEDS).trainer_region == "b"


NAMES = ["a", "b", "c", "d"]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4))
    regions = [host(n, draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 5, 8]))) for n in names]
    links = [
        Link(
            src_region=a,
            dst_region=b,
            rtt_s=draw(st.sampled_from([0.0, 0.1, 0.2])),
            bytes_per_s=draw(st.sampled_from([1e7, 1e8, 1e9])),
        )
        for a, b in itertools.permutations(names, 2)
        if draw(st.integers(0, 9)) > 0
    ]
    return Fleet(regions=tuple(regions), links=tuple(links), gpu_types={})


ALL_NEEDS = st.builds(
    replace,
    st.just(NEEDS),
    trainer_region=st.none() | st.sampled_from(NAMES),
    rollout_regions=st.none() | st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2).map(tuple),
    forbidden_regions=st.just(()) | st.sampled_from(NAMES).map(lambda name: (name,)),
    min_regions=st.integers(1, 3),
    workers_per_region=st.integers(1, 3),
    model_bytes=st.none() | st.sampled_from([0, 1000, GB]),
)


@given(fleets(), ALL_NEEDS)
def test_what_nothing_rules_out_has_a_static_plan_within_the_rules(fleet: Fleet, needs: Needs) -> None:
    if refusal(fleet, needs, CAPABILITIES):
        return
    made = plan_static(fleet, needs)
    assert needs.may_train(made.trainer_region)
    assert len(made.regions) >= needs.min_regions
    assert rollout_regions(made)
    assert all(needs.may_roll_out(region) for region in fleet.regions if region.name in rollout_regions(made))
    assert set(needs.rollout_regions or ()) <= set(rollout_regions(made))
    for name in made.regions:
        region = fleet.region(name)
        assert region is not None
        trains, rolls_out = name == made.trainer_region, name in rollout_regions(made)
        assert needs.has_room(region, trains=trains, rolls_out=rolls_out)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_the_order_of_a_fleet_changes_nothing(order: tuple[str, ...]) -> None:
    fleet = mesh([host(name) for name in order], slow=frozenset({"b"}))
    assert plan_static(fleet, NEEDS) == plan_static(mesh(map(host, "abc"), slow=frozenset({"b"})), NEEDS)
