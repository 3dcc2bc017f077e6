import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan import Infeasible, Plan, TaskKind
from planner.problem import Budget, Capabilities, Fleet, Link, Objective, Region, Workload
from planner.solve import plan
from planner.static import weights_s

GB = 10**9
CAPABILITIES = Capabilities(
    algorithms=frozenset({"grpo"}), topologies=frozenset({"star"}), max_trainers=1, max_staleness=8
)
WORKLOAD = Workload(
    algorithm="grpo",
    trainer_region=None,
    rollout_regions=None,
    min_regions=1,
    workers_per_region=2,
    model_bytes=GB,
    trainer_memory_bytes=4 * GB,
    rollout_memory_bytes=GB,
    staleness=2,
    groups_per_step=8,
    group_size=8,
)


def region(name: str, num_cores: int = 2, memory_gb: int = 8) -> Region:
    return Region(name=name, num_cores=num_cores, memory_bytes=memory_gb * GB)


def mesh(regions: list[Region], slow: frozenset[str] = frozenset()) -> Fleet:
    """All links at 8 Gbit/s and 100 ms, those from a slow region at 1 Gbit/s."""
    links = [
        Link(src_region=a.name, dst_region=b.name, rtt_s=0.1, throughput_bits_per_s=1e9 if a.name in slow else 8e9)
        for a, b in itertools.permutations(regions, 2)
    ]
    return Fleet(regions=tuple(regions), links=tuple(links))


def without_link(fleet: Fleet, src: str, dst: str) -> Fleet:
    return replace(fleet, links=tuple(k for k in fleet.links if (k.src_region, k.dst_region) != (src, dst)))


def solve(fleet: Fleet, workload: Workload = WORKLOAD) -> Plan | Infeasible:
    outcome = plan(fleet, workload, Objective.WEIGHTS_TIME, CAPABILITIES, Budget(seconds=1))
    assert isinstance(outcome, Plan | Infeasible)
    return outcome


def planned(fleet: Fleet, workload: Workload = WORKLOAD) -> Plan:
    outcome = solve(fleet, workload)
    assert isinstance(outcome, Plan), outcome
    return outcome


def conflict(fleet: Fleet, workload: Workload = WORKLOAD) -> str:
    outcome = solve(fleet, workload)
    assert isinstance(outcome, Infeasible), outcome
    return outcome.conflict


ABC = mesh([region("a"), region("b"), region("c")])


def test_the_trainer_goes_where_the_slowest_path_of_weights_is_shortest() -> None:
    made = planned(mesh([region("a"), region("b"), region("c")], slow=frozenset({"a", "c"})))
    assert made.trainer_region == "b"
    assert [(p.region, p.weights_s) for p in made.predictions] == [("a", 1.05), ("c", 1.05)]
    assert made.binding == (
        "the throughput from b to c: 1000.0 MB at 8.00 Gbit/s and 100 ms round trip take 1.050 s uncompressed, "
        "longest of all regions"
    )


def test_equal_paths_are_decided_by_cores_and_then_by_name() -> None:
    assert planned(mesh([region("c"), region("b", num_cores=4), region("a")])).trainer_region == "b"
    assert planned(mesh([region("c"), region("b"), region("a")])).trainer_region == "a"


def test_one_region_trains_and_rolls_out_alone() -> None:
    made = planned(mesh([region("a")]))
    assert [(a.task, a.region, a.num_workers) for a in made.assignments] == [
        (TaskKind.TRAINER, "a", 1),
        (TaskKind.ROLLOUT, "a", 2),
    ]
    assert made.weights_tree == made.trajectory_routes == ()
    assert made.binding == "everything is in a: no weights cross a WAN"


def test_a_region_without_memory_for_the_workers_is_left_out() -> None:
    made = planned(mesh([region("a"), region("b"), region("c", memory_gb=1)]))
    assert made.rollout_regions == ("a", "b")


def test_serving_more_regions_comes_before_a_shorter_path() -> None:
    fleet = mesh([region("a", memory_gb=5), region("b")], slow=frozenset({"b"}))
    made = planned(fleet)
    assert made.trainer_region == "b"
    assert made.rollout_regions == ("a", "b")


def test_an_unknown_size_compares_delays_and_predicts_no_time() -> None:
    fleet = mesh([region("a"), region("b")])
    made = planned(fleet, replace(WORKLOAD, model_bytes=None))
    assert [p.weights_s for p in made.predictions] == [None]
    assert "size is not known" in made.binding


def test_a_long_delay_binds_where_the_transfer_is_short() -> None:
    assert planned(ABC, replace(WORKLOAD, model_bytes=1000)).binding.startswith("the delay from a to c")


@pytest.mark.parametrize(
    ("fleet", "changes", "expected"),
    [
        (Fleet(regions=(), links=()), {}, "the fleet has no region"),
        (ABC, {"trainer_region": "x"}, "regions.trainer names x, but the fleet has only a, b, c"),
        (ABC, {"rollout_regions": ("a", "x")}, "regions.rollout names x, but the fleet has only a, b, c"),
        (ABC, {"trainer_memory_bytes": 9 * GB}, "memory for the trainer: 9.00 GB, but a has 8.00 GB"),
        (ABC, {"rollout_memory_bytes": 9 * GB}, "memory for the trainer and the rollout workers: 22.00 GB, but a has"),
        (ABC, {"rollout_memory_bytes": 5 * GB, "trainer_region": "b", "rollout_regions": ("a",)},
         "memory for the rollout workers: 10.00 GB, but a has 8.00 GB"),
        (ABC, {"min_regions": 4}, "at least 4 regions, but only 3 of the fleet's 3"),
        (without_link(ABC, "a", "c"), {"trainer_region": "a"}, "no link was measured from a to c"),
        (without_link(ABC, "c", "a"), {"trainer_region": "a"}, "no link was measured from c to a"),
        (ABC, {"algorithm": "ppo"}, "the runtime executes grpo, not ppo"),
        (ABC, {"staleness": 9}, "a staleness bound of at most 8, not 9"),
    ],
)  # fmt: skip
def test_an_infeasible_job_gets_the_fact_that_rules_it_out(
    fleet: Fleet, changes: dict[str, object], expected: str
) -> None:
    assert expected in conflict(fleet, replace(WORKLOAD, **changes))  # type: ignore[arg-type]


def test_a_missing_link_moves_the_trainer_where_all_links_are_measured() -> None:
    assert planned(without_link(ABC, "a", "c")).trainer_region == "b"


def test_a_runtime_without_stars_executes_no_static_plan() -> None:
    bare = replace(CAPABILITIES, topologies=frozenset())
    outcome = plan(ABC, WORKLOAD, Objective.WEIGHTS_TIME, bare, Budget(seconds=1))
    assert isinstance(outcome, Infeasible)


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (replace(ABC, regions=(*ABC.regions, region("a"))), "the region a is there twice"),
        (replace(ABC, links=(*ABC.links, ABC.links[0])), "the link from a to b is there twice"),
        (replace(ABC, links=(replace(ABC.links[0], throughput_bits_per_s=0.0),)), "needs a throughput above 0"),
        (replace(ABC, links=(replace(ABC.links[0], rtt_s=-1.0),)), "a round trip from 0"),
    ],
)
def test_a_fleet_that_contradicts_itself_is_the_callers_error(fleet: Fleet, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        solve(fleet)


NAMES = ["a", "b", "c", "d"]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    regions = [region(n, draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 5, 8]))) for n in names]
    links = [
        Link(
            src_region=a,
            dst_region=b,
            rtt_s=draw(st.sampled_from([0.0, 0.1, 0.2])),
            throughput_bits_per_s=draw(st.sampled_from([1e8, 1e9, 1e10])),
        )
        for a, b in itertools.permutations(names, 2)
        if draw(st.integers(0, 9)) > 0
    ]
    return Fleet(regions=tuple(regions), links=tuple(links))


WORKLOADS = st.builds(
    replace,
    st.just(WORKLOAD),
    trainer_region=st.none() | st.sampled_from(NAMES),
    rollout_regions=st.none() | st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2).map(tuple),
    min_regions=st.integers(1, 3),
    workers_per_region=st.integers(1, 3),
    model_bytes=st.none() | st.sampled_from([0, 1000, GB]),
)


@given(fleets(), WORKLOADS)
def test_a_plan_uses_only_what_the_fleet_has_and_keeps_every_pin(fleet: Fleet, workload: Workload) -> None:
    made = solve(fleet, workload)
    if isinstance(made, Infeasible):
        assert made.conflict
        return
    assert made.trainer_region == (workload.trainer_region or made.trainer_region)
    assert len(made.regions) >= workload.min_regions
    if workload.rollout_regions is not None:
        assert set(made.rollout_regions) == set(workload.rollout_regions)
    assert made.rollout_regions
    away = {name for name in made.rollout_regions if name != made.trainer_region}
    assert (
        {edge.dst_region for edge in made.weights_tree} == {edge.src_region for edge in made.trajectory_routes} == away
    )
    for edge in (*made.weights_tree, *made.trajectory_routes):
        assert fleet.link(edge.src_region, edge.dst_region) is not None
    for name in made.regions:
        found = fleet.region(name)
        assert found is not None
        workers = sum(a.num_workers for a in made.assignments if a.region == name and a.task is TaskKind.ROLLOUT)
        trains = sum(a.num_workers for a in made.assignments if a.region == name and a.task is TaskKind.TRAINER)
        assert workers in (0, workload.workers_per_region)
        assert trains == (name == made.trainer_region)
        used = workers * workload.rollout_memory_bytes + trains * workload.trainer_memory_bytes
        assert used <= found.memory_bytes


@given(fleets(), WORKLOADS, st.randoms(use_true_random=False))
def test_the_order_of_a_fleet_changes_nothing(fleet: Fleet, workload: Workload, shuffler: Random) -> None:
    regions, links = list(fleet.regions), list(fleet.links)
    shuffler.shuffle(regions)
    shuffler.shuffle(links)
    assert solve(Fleet(regions=tuple(regions), links=tuple(links)), workload) == solve(fleet, workload)


def oracle(fleet: Fleet, workload: Workload) -> set[tuple[int, float]]:
    """By enumeration of every (trainer, set of rollout regions): the best (regions served, slowest path)."""
    assert workload.model_bytes is not None
    found = set()
    names = [r.name for r in fleet.regions]
    for home in names:
        if workload.trainer_region not in (None, home):
            continue
        for size in range(1, len(names) + 1):
            for served in itertools.combinations(sorted(names), size):
                if _allowed(fleet, workload, home, served):
                    paths = [fleet.link(home, name) for name in served if name != home]
                    times = [weights_s(link, workload.model_bytes) for link in paths if link]
                    found.add((-size, max(times, default=0.0)))
    return found


def _has_room(workload: Workload, region: Region, home: str) -> bool:
    beside = workload.trainer_memory_bytes if region.name == home else 0
    return workload.workers_per_region * workload.rollout_memory_bytes + beside <= region.memory_bytes


def _allowed(fleet: Fleet, workload: Workload, home: str, served: tuple[str, ...]) -> bool:
    # The method's space: without pins, every region that has room; a link that was not measured excuses none of them.
    wanted = workload.rollout_regions or [r.name for r in fleet.regions if _has_room(workload, r, home)]
    if set(served) != set(wanted):
        return False
    for name in {home, *served}:
        found = fleet.region(name)
        assert found is not None
        used = (name in served) * workload.workers_per_region * workload.rollout_memory_bytes
        used += (name == home) * workload.trainer_memory_bytes
        if used > found.memory_bytes:
            return False
    return all(fleet.link(home, n) and fleet.link(n, home) for n in served if n != home)


@given(fleets(), WORKLOADS.filter(lambda w: w.model_bytes is not None))
def test_no_enumerated_layout_is_better(fleet: Fleet, workload: Workload) -> None:
    made = solve(fleet, replace(workload, min_regions=1))
    if isinstance(made, Plan):
        slowest_s = max((p.weights_s or 0.0 for p in made.predictions), default=0.0)
        same_reach = {score for score in oracle(fleet, workload) if score[0] <= -len(made.rollout_regions)}
        assert min(same_reach) == (-len(made.rollout_regions), slowest_s)
    elif workload.rollout_regions is not None:
        assert not oracle(fleet, workload)
