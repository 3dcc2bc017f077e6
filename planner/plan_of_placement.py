"""Conversion of a search's best placement to a plan.

A placement counts devices by class. The plan adds what the coordinator needs: the number of processes per region, the
links that weights and trajectories use, and a predicted transfer time for each remote region. It also copies the
oracle's evaluation and the proved bound. Nothing here searches or checks a placement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent, objective_value
from planner.answer.placement import Layout, Placement, Pool, Sharding
from planner.cost.step.binding import binding_sentence
from planner.cost.step.fixed_terms import regions_of, trainer_region_of
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.network import Network, weights_s
from planner.plan import Assignment, Plan, PlanEdge, Prediction, Rates, TaskKind
from planner.problem.goal import Limits
from planner.problem.workload import Task


def plan_of(cost_tables: CostTables, incumbent: Incumbent, *, method: str, seed: int | None) -> Plan:
    """Return the plan of a search's best placement. `incumbent.evaluation` must come from the oracle."""
    placement, evaluation, goal = incumbent.placement, incumbent.evaluation, cost_tables.problem.goal
    trainer_region = trainer_region_of(cost_tables, placement)
    # The trainer's own region needs no link, so it has neither edges nor a prediction.
    remote_names = generating_beside(cost_tables, placement, trainer_region)
    workload = cost_tables.problem.workload
    samples_per_s = workload.samples_per_step / evaluation.step_s
    return Plan(
        method=method,
        trainer_region=trainer_region,
        assignments=(_trainer(cost_tables, placement, trainer_region), *_rollouts(cost_tables, placement, evaluation)),
        weights_tree=edges(cost_tables.network, [(trainer_region, region) for region in remote_names]),
        trajectory_routes=edges(cost_tables.network, [(region, trainer_region) for region in remote_names]),
        predictions=tuple(_prediction(cost_tables, evaluation, trainer_region, region) for region in remote_names),
        binding=binding_sentence(cost_tables, placement, evaluation),
        seed=seed,
        goal=goal,
        placement=placement,
        evaluation=evaluation,
        rates=Rates(
            samples_per_s=samples_per_s, completion_tokens_per_s=samples_per_s * workload.completion_tokens.mean
        ),
        bound=incumbent.bound,
        gap=None if incumbent.bound is None else _gap(objective_value(goal, evaluation), incumbent.bound),
        question=cost_tables.problem,
    )


def _trainer(cost_tables: CostTables, placement: Placement, region: str) -> Assignment:
    pools = placement.group_of(Task.ACTOR_TRAINING).pools
    layout = pools[0].layout(Task.ACTOR_TRAINING)
    return Assignment(
        task=TaskKind.TRAINER,
        region=region,
        num_workers=1,
        device="+".join(dict.fromkeys(_device(cost_tables, pool) for pool in pools)),
        tensor=layout.tensor,
        data=max(1, sum(pool.num_units for pool in pools) // layout.pipeline),
        sharding=_sharding(cost_tables.problem.limits, pools[0], layout),
        usd_per_hour=_rent(cost_tables, pools),
    )


def _sharding(limits: Limits, pool: Pool, layout: Layout) -> Literal["", "full", "hybrid", "none"]:
    # A job that asks for `hybrid` has it also where machines with cores were planned as one.
    if limits.fsdp in (None, "hybrid") or pool.num_units == 1:
        return ""
    return "none" if layout.sharding is Sharding.NONE else "hybrid" if layout.copies > 1 else "full"


def _rollouts(cost_tables: CostTables, placement: Placement, evaluation: Evaluation) -> Iterator[Assignment]:
    """Yield the like replicas of each region, type of device and degree, by region and type."""
    limited, making = dict(evaluation.limited), {}
    for place, pool in enumerate(placement.group_of(Task.GENERATION).pools):
        cost = cost_tables.pool(placement.group_of(Task.GENERATION).tasks, pool)
        assert isinstance(cost, UnitCost)
        made = limited.get(place, pool.num_units * cost.rates[Task.GENERATION] * evaluation.step_s)
        making[place] = 0.0 if place in evaluation.idle else made
    total = sum(making.values())
    alike: dict[tuple[str, str, int], list[int]] = {}
    group = placement.group_of(Task.GENERATION)
    pools = group.pools
    for place, pool in enumerate(pools):
        region = cost_tables.classes[pool.device_class].region.name
        alike.setdefault((region, _device(cost_tables, pool), pool.layout(Task.GENERATION).tensor), []).append(place)
    for (region, device, tensor), places in sorted(alike.items()):
        yield Assignment(
            task=TaskKind.ROLLOUT,
            region=region,
            num_workers=sum(pools[place].num_gpus // tensor for place in places),
            device=device,
            tensor=tensor,
            by_turns=group.trains,
            share=sum(making[place] for place in places) / total if total else None,
            # By turns they cost nothing beside the trainer.
            usd_per_hour=0.0 if group.trains else _rent(cost_tables, [pools[place] for place in places]),
        )


def _device(cost_tables: CostTables, pool: Pool) -> str:
    gpu = cost_tables.classes[pool.device_class].gpu
    return "" if gpu.is_cpu else gpu.name


def _rent(cost_tables: CostTables, pools: Sequence[Pool]) -> float | None:
    prices = [(cost_tables.classes[pool.device_class].usd_per_gpu_hour, pool.num_gpus) for pool in pools]
    return None if any(price is None for price, _ in prices) else sum(price * num for price, num in prices if price)


def generating_beside(cost_tables: CostTables, placement: Placement, trainer_region: str) -> list[str]:
    """Return the regions that generate, without the trainer's, by name."""
    return sorted({*regions_of(cost_tables, placement.group_of(Task.GENERATION))} - {trainer_region})


def limited_pools(plan: Plan) -> tuple[tuple[int, float], ...]:
    """Return (index of pool, samples per step) of each generating pool that makes less than at its full rate.

    Such a pool is limited by the window in which it may make samples of one version.
    """
    return plan.evaluation.limited if plan.evaluation else ()


def idle_pools(plan: Plan) -> frozenset[int]:
    """Return the indices of generating pools that idle because they are too slow or too remote to shorten the step."""
    return frozenset(plan.evaluation.idle if plan.evaluation else ())


def without_question(plan: Plan) -> Plan:
    """Return the plan without the problem that it answers, as it is sent to workers."""
    return replace(plan, question=None)


def _gap(value: float, bound: float) -> float:
    return max(0.0, 1.0 - bound / value) if value > 0 else 0.0


def edges(network: Network, pairs: list[tuple[str, str]]) -> tuple[PlanEdge, ...]:
    """Return each link of the routes between these (source, destination) pairs once, in the order of first use."""
    # A dict instead of a set keeps the order. Routes over one relay share links.
    hops: dict[PlanEdge, None] = {}
    for src, dst in pairs:
        route = network.route(src, dst)
        assert route is not None, f"a placement without a route from {src} to {dst}"
        for a, b in zip(route.hops, route.hops[1:], strict=False):
            hops[PlanEdge(src_region=a, dst_region=b)] = None
    return tuple(hops)


def _prediction(cost_tables: CostTables, evaluation: Evaluation, trainer_region: str, region: str) -> Prediction:
    route = cost_tables.network.route(trainer_region, region)
    assert route is not None
    times = next((each for each in evaluation.regions if each.region == region), None)
    # The evaluation leaves out regions that idle. Their seconds are those of a transfer that has the route for itself.
    alone_s = weights_s(cost_tables.problem.workload, route)
    return Prediction(region=region, weights_s=times.weights_s if times else alone_s, rtt_s=route.rtt_s)
