"""One placement of PPO on two regions of GPUs, judged by the oracle, and the plan that it is."""

from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture, gpu_types
from planner.plan import Plan
from planner.plan_of_placement import plan_of
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Problem, Rules
from planner.problem.lengths import constant, lognormal
from planner.problem.workload import TASKS, Task, Workload

A100, L40S = "A100-80GB-SXM", "L40S"
FLEET = Fleet(
    regions=(
        Region(
            name="us",
            fabric_bytes_per_s=50e9,
            machines=(Machines(gpu=A100, gpus_per_machine=8, num_machines=2, usd_per_gpu_hour=2.0),),
        ),
        Region(
            name="eu",
            fabric_bytes_per_s=12.5e9,
            machines=(Machines(gpu=L40S, gpus_per_machine=4, num_machines=2, usd_per_gpu_hour=1.0, is_spot=True),),
        ),
        Region(
            name="ap",
            fabric_bytes_per_s=12.5e9,
            machines=(Machines(gpu=L40S, gpus_per_machine=4, num_machines=1, usd_per_gpu_hour=1.0),),
        ),
    ),
    links=tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.08, bytes_per_s=5e8, usd_per_gbyte=0.02)
        for a in ("us", "eu", "ap")
        for b in ("us", "eu", "ap")
        if a != b
    ),
    gpu_types={name: gpu_types()[name] for name in (A100, L40S)},
)
WORKLOAD = Workload(
    algorithm="ppo",
    models=dict.fromkeys(TASKS, architecture("Qwen3-4B")),
    eta=1,
    prompts_per_step=64,
    group_size=4,
    prompt_tokens=constant(200),
    completion_tokens=lognormal(median_tokens=300, sigma=0.6, cap_tokens=1024),
)
PROBLEM = Problem(
    fleet=FLEET, workload=WORKLOAD, rules=Rules(pins=((Task.ACTOR_TRAINING, frozenset({"us"})),), max_regions=3)
)


def group(key: str, unit: int, num: int, layouts: dict[Task, Layout]) -> Group:
    """Of one pool."""
    pool = Pool(device_class=key, unit_gpus=unit, num_units=num, layouts=tuple(layouts.items()))
    return Group(tasks=tuple(layouts), pools=(pool,))


_TRAIN = Layout(tensor=2, sharding=Sharding.OPTIMIZER, recompute=True)
PLACEMENT = Placement(
    groups=(
        group("eu/L40S/4/spot", 1, 8, {Task.GENERATION: Layout(tensor=1, batch=32)}),
        group("us/A100-80GB-SXM/8", 2, 4, {Task.ACTOR_TRAINING: _TRAIN}),
        group("us/A100-80GB-SXM/8", 2, 2, {Task.CRITIC_TRAINING: _TRAIN}),
        group(
            "us/A100-80GB-SXM/8",
            1,
            4,
            {t: Layout(tensor=1) for t in (Task.REWARD, Task.REFERENCE, Task.CRITIC_INFERENCE)},
        ),
    )
)


def estimate(problem: Problem = PROBLEM, placement: Placement = PLACEMENT) -> tuple[CostTables, Incumbent]:
    """The placement as a search's answer, with a bound that is a tenth below."""
    cost_tables = CostTables(problem)
    evaluation = evaluate(cost_tables, placement)
    assert isinstance(evaluation, Evaluation), evaluation
    return cost_tables, Incumbent(
        placement=placement, evaluation=evaluation, bound=0.9 * evaluation.step_s, elapsed_s=1.0
    )


def gpu_plan(problem: Problem = PROBLEM) -> Plan:
    """Deterministic."""
    cost_tables, found = estimate(problem)
    return plan_of(cost_tables, found, method="exact", seed=7)


def with_eta(eta: int) -> Problem:
    """Layouts of the placement hold for eta 1 and more."""
    return replace(PROBLEM, workload=replace(WORKLOAD, eta=eta))
