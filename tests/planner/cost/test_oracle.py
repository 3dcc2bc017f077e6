"""The oracle's sums, compared with terms computed one by one, and with the batched oracle."""

import random
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.batched.evaluate_many import PlacementVerdict, evaluate_many
from planner.cost.candidates.columns import mesh_columns, unit_columns
from planner.cost.oracle import evaluate, rent_usd_per_hour
from planner.cost.step.fixed_terms import FixedTerms, fixed_terms
from planner.cost.step.step_estimate import StepEstimate, estimate_step
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.transfers import trainer_transfers
from planner.cost.tasks.phase_tables import phase_end_s
from planner.problem.goal import Goal, Objective, Rules
from planner.problem.workload import TASKS, TRAINING, Task
from tests.support.planner.cost import machines, partitions, problem, region, workload
from tests.support.planner.two_regions import FAR, PAIR, placement, pool, two_regions


def estimate(cost_tables: CostTables, of: Placement, goal: Goal | None = None) -> Evaluation:
    found = evaluate(cost_tables, of, goal=goal)
    assert isinstance(found, Evaluation), found
    return found


def step_of(cost_tables: CostTables, of: Placement) -> StepEstimate:
    placed = fixed_terms(cost_tables, of)
    assert isinstance(placed, FixedTerms), placed
    return estimate_step(cost_tables, placed)


def test_without_staleness_a_step_is_the_critical_path() -> None:
    cost_tables = CostTables(problem(two_regions(), workload(PAIR, eta=0)))
    found = estimate(cost_tables, placement(FAR))
    transfer, busy = trainer_transfers(cost_tables, "x").transfers["y"], dict(found.task_s)
    by_hand = busy[Task.ACTOR_TRAINING] + transfer.weights_s + busy[Task.GENERATION] + transfer.trajectories_s
    assert found.step_s == pytest.approx(by_hand, rel=1e-12)
    assert found.binding == "path:y"


@pytest.mark.parametrize("eta", [1, 2, 5])
def test_in_its_window_a_region_makes_what_its_table_says_and_no_more_than_at_full_rate(eta: int) -> None:
    asked = workload(PAIR, eta=eta)
    cost_tables = CostTables(problem(two_regions(3e8), asked))
    found = estimate(cost_tables, placement(FAR))
    (region_times,) = found.regions
    price = cost_tables.pool(PAIR[:1], FAR)
    assert isinstance(price, UnitCost)
    assert price.phase is not None
    before_s = dict(found.task_s)[Task.ACTOR_TRAINING] + region_times.weights_s + region_times.trajectories_s
    phase_s = phase_end_s([(float(FAR.num_units), price.phase)], float(asked.samples_per_step))
    needs = {
        "path:y": (before_s + phase_s) / (eta + 1),
        "group:generation": asked.samples_per_step / (FAR.num_units * price.rates[Task.GENERATION]),
        "group:actor_training": dict(found.task_s)[Task.ACTOR_TRAINING],
        "link:x>y": trainer_transfers(cost_tables, "x").transfers["y"].link_s,
    }
    assert found.step_s == pytest.approx(max(needs.values()), rel=1e-11)
    assert needs[found.binding] == pytest.approx(found.step_s)
    assert region_times.window_s == pytest.approx((eta + 1) * found.step_s - before_s)


@pytest.mark.parametrize("eta", [0, 1, 2, 5])
def test_units_are_busy_for_their_samples_at_full_rate_or_for_their_window(eta: int) -> None:
    asked = replace(workload(PAIR, eta=eta), prompts_per_step=512)
    cost_tables = CostTables(problem(two_regions(1e9), asked))
    pools = {"x": pool("x/simple/4", Task.GENERATION, 3), "y": FAR}
    found, made = estimate(cost_tables, placement(*pools.values())), 0.0
    for each in found.regions:
        price = cost_tables.pool(PAIR[:1], pools[each.region])
        assert isinstance(price, UnitCost)
        assert 0 < each.generation_s <= found.step_s
        made += pools[each.region].num_units * price.rates[Task.GENERATION] * each.generation_s
    if eta:
        assert made == pytest.approx(asked.samples_per_step, rel=1e-9)
    else:
        assert [each.generation_s for each in found.regions] == [each.window_s for each in found.regions]


def test_a_near_region_makes_more_of_a_step_where_a_far_one_gets_its_weights_late() -> None:
    asked = replace(workload(PAIR, eta=0), prompts_per_step=512)
    cost_tables = CostTables(problem(two_regions(1e9), asked))
    near = pool("x/simple/4", Task.GENERATION, 3)
    found = estimate(cost_tables, placement(FAR, near))
    x, y = found.regions
    assert x.window_s - y.window_s == pytest.approx(y.weights_s + y.trajectories_s - x.trajectories_s)
    made = 0.0
    for each, at in ((near, x), (FAR, y)):
        price = cost_tables.pool(PAIR[:1], each)
        assert isinstance(price, UnitCost)
        assert price.phase is not None
        made += 3 * price.phase.samples_within(at.window_s)
    assert made == pytest.approx(asked.samples_per_step, rel=1e-9)
    assert found.step_s < estimate(cost_tables, placement(near)).step_s


def test_what_generation_shares_its_devices_with_takes_of_its_window_once() -> None:
    tasks = (*PAIR, Task.REFERENCE)
    asked = workload(tasks, eta=1)
    cost_tables = CostTables(problem(two_regions(), asked))
    both = (Task.GENERATION, Task.REFERENCE)
    layouts = tuple((task, Layout(tensor=1)) for task in both)
    shared = Pool(device_class="x/simple/4", unit_gpus=1, num_units=3, layouts=layouts)
    (mesh,) = placement(FAR).group_of(Task.ACTOR_TRAINING).pools
    plan = Placement(groups=(Group(tasks=both, pools=(shared,)), Group(tasks=(Task.ACTOR_TRAINING,), pools=(mesh,))))
    found = estimate(cost_tables, plan)
    times = dict(found.task_s)
    (x,) = found.regions
    used_s = times[Task.ACTOR_TRAINING] + 2 * times[Task.REFERENCE]
    assert x.window_s == pytest.approx(2 * found.step_s - used_s - x.trajectories_s)


def test_a_region_that_must_generate_does_not_idle_to_make_the_plan_faster() -> None:
    asked = problem(two_regions(1e7), workload(PAIR, eta=1))
    both = placement(pool("x/simple/4", Task.GENERATION, 2), FAR)
    free, bound = (
        estimate(CostTables(asked), both),
        estimate(CostTables(replace(asked, rules=Rules(min_regions=2))), both),
    )
    assert [each.region for each in free.regions] == ["x"]
    assert free.idle == (1,)
    assert [each.region for each in bound.regions] == ["x", "y"]
    assert bound.idle == ()
    assert bound.step_s > free.step_s


def test_generation_is_samples_over_rates() -> None:
    cost_tables = CostTables(problem(two_regions(), workload(PAIR)))
    price = cost_tables.pool(PAIR[:1], FAR)
    assert isinstance(price, UnitCost)
    assert dict(estimate(cost_tables, placement(FAR)).task_s)[Task.GENERATION] == pytest.approx(
        64 / (3 * price.rates[Task.GENERATION])
    )


def test_a_pool_that_is_not_worth_waiting_for_idles_and_is_paid() -> None:
    cost_tables = CostTables(problem(two_regions(1e6), workload(PAIR)))
    near = pool("x/simple/4", Task.GENERATION, 4)
    without, both = estimate(cost_tables, placement(near)), estimate(cost_tables, placement(FAR, near))
    assert both.idle == (0,)
    assert both.step_s == without.step_s
    assert both.usd_per_hour == pytest.approx(without.usd_per_hour + 3)
    assert without.idle == ()


def test_a_faster_plan_is_not_dearer_where_throughput_is_asked_for() -> None:
    cost_tables = CostTables(problem(two_regions(), workload(PAIR, eta=9)))
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    few, many = (estimate(cost_tables, placement(replace(FAR, num_units=num)), goal) for num in (1, 3))
    assert many.step_s < few.step_s
    assert many.usd_egress_per_hour == few.usd_egress_per_hour


def test_a_budget_slows_the_job_down_to_what_it_pays() -> None:
    cost_tables = CostTables(problem(two_regions(), workload(PAIR)))
    free = estimate(cost_tables, placement(FAR))
    rent = free.usd_per_hour - free.usd_egress_per_hour
    goal = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=rent + free.usd_egress_per_hour / 2)
    slowed = estimate(cost_tables, placement(FAR), goal)
    assert slowed.binding == "budget"
    assert slowed.step_s == pytest.approx(2 * free.step_s, rel=1e-6)
    refused = evaluate(cost_tables, placement(FAR), goal=replace(goal, max_usd_per_hour=rent - 1))
    assert isinstance(refused, Violation)
    assert refused.kind == "budget"


def test_no_route_is_a_violation() -> None:
    cost_tables = CostTables(problem(replace(two_regions(), links=()), workload(PAIR)))
    found = evaluate(cost_tables, placement(FAR))
    assert isinstance(found, Violation)
    assert found.kind == "link"


def test_the_critics_weights_travel_where_it_scores_apart() -> None:
    tasks = (Task.GENERATION, Task.CRITIC_INFERENCE, *TRAINING)
    cost_tables = CostTables(problem(two_regions(1e8), workload(tasks)))
    train = pool("x/simple/4", Task.ACTOR_TRAINING, 2)
    critic = pool("x/simple/4", Task.CRITIC_TRAINING, 2)
    values = pool("y/slow/2", Task.CRITIC_INFERENCE, 2)
    made = pool("x/simple/4", Task.GENERATION, 2)
    groups = tuple(Group(tasks=(each.layouts[0][0],), pools=(each,)) for each in (made, values, train, critic))
    found = estimate(cost_tables, Placement(groups=groups))
    assert found.binding == "link:x>y"
    assert "path:critic" in dict(step_of(cost_tables, Placement(groups=groups)).needs)


def test_samples_that_a_region_scores_are_not_sent_there_again_to_be_trained_on() -> None:
    tasks = (Task.GENERATION, Task.CRITIC_INFERENCE, *TRAINING)
    asked = workload(tasks, eta=0)
    cost_tables = CostTables(problem(two_regions(), asked))
    train, made = pool("x/simple/4", Task.ACTOR_TRAINING, 2), pool("x/simple/4", Task.GENERATION, 2)
    roles = (Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING)
    critic = replace(pool("y/slow/2", roles[0], 2), layouts=tuple((task, Layout(tensor=1)) for task in roles))
    groups = (
        *(Group(tasks=(each.layouts[0][0],), pools=(each,)) for each in (made, train)),
        Group(tasks=roles, pools=(critic,)),
    )
    plan = Placement(groups=groups)
    found = estimate(cost_tables, plan)
    gbytes = 64 * 5 * (100 + 300) / 1e9  # of a step's samples; there and back at 0.05 dollars
    assert found.usd_egress_per_hour == pytest.approx(2 * gbytes * 0.05 * 3600 / found.step_s)
    assert evaluate_many(cost_tables, [plan]).usd_per_hour[0] == pytest.approx(found.usd_per_hour, rel=1e-9)


def test_only_the_group_that_infers_with_the_critic_waits_for_its_weights() -> None:
    tasks = (Task.GENERATION, Task.REFERENCE, Task.CRITIC_INFERENCE, *TRAINING)
    asked = workload(tasks, eta=0)
    cost_tables = CostTables(problem(two_regions(1e7), asked))
    roles = (Task.ACTOR_TRAINING, Task.CRITIC_TRAINING, Task.GENERATION, Task.REFERENCE)
    near = [pool("x/simple/4", task, 1) for task in roles]
    values = pool("y/slow/2", Task.CRITIC_INFERENCE, 2)
    groups = tuple(Group(tasks=(each.layouts[0][0],), pools=(each,)) for each in (*near, values))
    found = estimate(cost_tables, Placement(groups=groups))
    assert found.binding == "path:critic"
    placed = fixed_terms(cost_tables, Placement(groups=groups))
    assert isinstance(placed, FixedTerms)
    (transfer,) = placed.critics.values()
    away_s = placed.trainer.transfers["y"].scoring_s
    expected_s = placed.training_s + transfer.weights_s + dict(found.task_s)[Task.CRITIC_INFERENCE] + away_s
    assert found.step_s == pytest.approx(expected_s)


def test_an_evaluation_is_the_sum_of_its_terms() -> None:
    cost_tables, plan = CostTables(problem(two_regions(), workload(PAIR))), placement(FAR)
    found, step = estimate(cost_tables, plan), step_of(cost_tables, plan)
    (group,) = (group for group in plan.groups if group.trains)
    mesh = cost_tables.mesh(group.tasks, group.pools).times[Task.ACTOR_TRAINING]
    busy_s = mesh.compute_s + mesh.bubble_s + mesh.reduce_s + mesh.update_s
    assert dict(found.task_s)[Task.ACTOR_TRAINING] == pytest.approx(busy_s)
    assert max(seconds for _, seconds in step.needs) == found.step_s
    dollars = rent_usd_per_hour(cost_tables, plan) + step.usd_per_step * 3600 / found.step_s
    assert found.usd_per_hour == pytest.approx(dollars)


def random_placement(cost_tables: CostTables, rng: random.Random) -> Placement | None:
    asked = cost_tables.problem.workload.tasks
    groups = []
    for part in rng.choice(list(partitions(list(asked)))):
        tasks = tuple(task for task in asked if task in part)
        if any(task in TRAINING for task in tasks):
            meshes = mesh_columns(cost_tables, tasks)
            if not meshes:
                return None
            groups.append(rng.choice(meshes).group)
            continue
        columns = unit_columns(cost_tables, tasks)
        some = rng.sample(columns, min(len(columns), rng.randint(1, 3)))
        pools = tuple(replace(column.unit, num_units=rng.randint(1, 2)) for column in some)
        groups.append(Group(tasks=tasks, pools=pools))
    return Placement(groups=tuple(groups))


GOALS = (
    Goal(),
    Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=30.0),
    Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=1.0),
)


DEMANDS = (Rules(), Rules(generating=frozenset({"y"})), Rules(min_regions=2))


@settings(max_examples=16, deadline=None)
@given(
    st.sampled_from([0, 1, 3]), st.sampled_from(GOALS), st.booleans(), st.sampled_from(DEMANDS), st.integers(0, 1000)
)
def test_the_batched_oracle_is_the_oracle(eta: int, goal: Goal, is_ppo: bool, rules: Rules, seed: int) -> None:
    on = two_regions(4e8)
    capped = tuple(
        replace(each, wan_up_bytes_per_s=2e8, wan_down_bytes_per_s=3e4 * (1 + seed % 50)) for each in on.regions
    )
    tasks = TASKS if is_ppo else PAIR
    asked = problem(replace(on, regions=capped), workload(tasks, eta=eta), goal=goal)
    cost_tables = CostTables(replace(asked, rules=rules))
    rng = random.Random(seed)
    every = [each for each in (random_placement(cost_tables, rng) for _ in range(25)) if each]
    batch = evaluate_many(cost_tables, every)
    kinds = {
        "inventory": PlacementVerdict.INVENTORY,
        "rules": PlacementVerdict.RULES,
        "deadline": PlacementVerdict.DEADLINE,
        "budget": PlacementVerdict.BUDGET,
    }
    for i, each in enumerate(every):
        one = evaluate(cost_tables, each)
        if isinstance(one, Violation):
            assert batch.verdict[i] == kinds[one.kind]
        else:
            assert batch.verdict[i] == PlacementVerdict.VALID
            assert batch.step_s[i] == pytest.approx(one.step_s, rel=1e-9)
            assert batch.usd_per_hour[i] == pytest.approx(one.usd_per_hour, rel=1e-9)


@pytest.mark.parametrize("eta", [0, 1])
@pytest.mark.parametrize("goal", GOALS)
def test_regions_that_no_link_joins_are_refused_without_a_number_that_is_none(eta: int, goal: Goal) -> None:
    """In every row: sums of infinite seconds would say so in warnings."""
    on = two_regions(4e8)
    apart = replace(region("z", machines(num=2)), wan_up_bytes_per_s=2e8, wan_down_bytes_per_s=1e5)
    cost_tables = CostTables(problem(replace(on, regions=(*on.regions, apart)), workload(TASKS, eta=eta), goal=goal))
    rng = random.Random(eta)
    every = [each for each in (random_placement(cost_tables, rng) for _ in range(60)) if each]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = evaluate_many(cost_tables, every)
    verdicts = set()
    for i, each in enumerate(every):
        one = evaluate(cost_tables, each)
        assert (batch.verdict[i] == PlacementVerdict.LINK) == (isinstance(one, Violation) and one.kind == "link")
        assert (batch.verdict[i] == PlacementVerdict.VALID) == isinstance(one, Evaluation)
        verdicts.add(int(batch.verdict[i]))
    assert int(PlacementVerdict.LINK) in verdicts
    assert len(verdicts) > 1
