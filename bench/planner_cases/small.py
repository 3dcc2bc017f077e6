"""Small problems by chance, for trying all placements: every feature of the plan space, few enough of each.

Devices have little memory and models are small, so that what fits depends on sharding, recomputation, tensor and
pipeline parallelism and on what shares a device. Lengths have few quantiles, steps few samples: the oracle is then
quick, and the integers matter. What a case is follows from its number alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Goal, Limits, Objective, Problem, Rules
from planner.problem.hardware import Efficiency, GpuType
from planner.problem.workload import Lengths, Task, WeightTransfer, Workload

GENERATED, TRAINED = Task.GENERATION, Task.ACTOR_TRAINING
TASK_SETS = (
    (GENERATED, TRAINED),
    (GENERATED, Task.REWARD, TRAINED),
    (GENERATED, Task.REFERENCE, TRAINED),
    (GENERATED, Task.REWARD, Task.REFERENCE, TRAINED),
    (GENERATED, TRAINED, Task.CRITIC_TRAINING),
    (GENERATED, Task.CRITIC_INFERENCE, TRAINED, Task.CRITIC_TRAINING),
)
MANY_TASKS = (
    (GENERATED, Task.REWARD, Task.REFERENCE, TRAINED, Task.CRITIC_TRAINING),
    (GENERATED, Task.REFERENCE, Task.CRITIC_INFERENCE, TRAINED, Task.CRITIC_TRAINING),
    (GENERATED, Task.REWARD, Task.REFERENCE, Task.CRITIC_INFERENCE, TRAINED, Task.CRITIC_TRAINING),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large cases of one kind may be."""

    fewest_gpus: int
    most_gpus: int
    tokens: tuple[float, float]
    """Range of mean lengths: the longer, the fewer sequences fit, and the fewer batches there are to choose among."""
    kv_heads: tuple[int, ...]
    memory_gib: tuple[float, float]
    etas: tuple[int, ...]
    most_regions: int
    tensors: tuple[int, ...]
    blocks: tuple[int, ...]
    machine_sizes: tuple[int, ...]
    most_machines: int
    task_sets: tuple[tuple[Task, ...], ...]
    has_dollars: bool
    demands: float = 0.0
    """Part of the cases in which each rule of whole regions is asked for: some must generate, two must be in use, one
    is closed."""


DEVICES = Size(
    fewest_gpus=2,
    most_gpus=7,
    tokens=(200.0, 8000.0),
    kv_heads=(1, 2, 4),
    memory_gib=(1.6, 5.0),
    etas=(0, 1, 4),
    most_regions=3,
    tensors=(1, 2, 2, 4),
    blocks=(1, 2),
    machine_sizes=(1, 2, 3, 4),
    most_machines=2,
    task_sets=TASK_SETS,
    has_dollars=True,
    demands=0.08,
)
"""Single devices: all placements are tried."""
MANY_TASK_DEVICES = replace(
    DEVICES, most_gpus=4, etas=(0, 0, 1), tensors=(1, 1, 2), machine_sizes=(1, 2, 3), task_sets=MANY_TASKS
)
"""The same with five and six tasks, in up to 203 groupings."""
SYNCHRONOUS_CLASSES = Size(
    fewest_gpus=8,
    most_gpus=24,
    tokens=(1000.0, 8000.0),
    kv_heads=(2, 4, 8),
    memory_gib=(2.0, 6.0),
    etas=(0,),
    most_regions=3,
    tensors=(1, 1, 2),
    blocks=(1, 1, 1, 2),
    machine_sizes=(1, 2, 4, 8),
    most_machines=8,
    task_sets=(TASK_SETS[0], TASK_SETS[0], TASK_SETS[2]),
    has_dollars=False,
)
"""Counts by class, without what `brute_force` leaves out of large fleets."""
ASYNCHRONOUS_CLASSES = replace(
    SYNCHRONOUS_CLASSES, etas=(1, 4), most_regions=2, tensors=(1,), blocks=(1,), task_sets=TASK_SETS[:1]
)
"""The same, where generation has a batch to choose as well."""
ODD_CLASSES = replace(
    SYNCHRONOUS_CLASSES,
    fewest_gpus=6,
    most_gpus=15,
    etas=(0, 0, 1),
    most_regions=2,
    tensors=(1, 2, 2),
    machine_sizes=(3, 3, 6, 1),
    most_machines=3,
    task_sets=TASK_SETS[:3],
)
"""Machines of three and six devices, which no unit of two or four fills, in counts by class."""


def problem(number: int, size: Size) -> Problem:
    """The case of that number."""
    rng = np.random.default_rng([number, size.most_gpus, *size.etas])
    tasks = size.task_sets[rng.integers(len(size.task_sets))]
    workload = _workload(rng, size, tasks)
    fleet = _fleet(rng, size)
    goal, rules, limits = _goal(rng, size), _rules(rng, tasks, fleet), _limits(rng, size, tasks)
    rare = np.random.default_rng([number, size.most_gpus, *size.etas, 1])
    return Problem(
        fleet=_with_slow_networks(rare, fleet),
        workload=workload,
        goal=goal,
        rules=_with_demands(rare, size, rules, fleet),
        limits=limits,
    )


def with_deadline(case: Problem, step_s: float, usd_per_hour: float, rng: np.random.Generator) -> Problem:
    """A case in dollars with a limit that binds: around what the best plan for throughput takes."""
    if case.goal.objective is Objective.COST_AT_THROUGHPUT:
        return replace(case, goal=replace(case.goal, max_step_s=step_s * float(rng.uniform(0.9, 4.0))))
    if case.goal.objective is Objective.THROUGHPUT_UNDER_BUDGET:
        return replace(case, goal=replace(case.goal, max_usd_per_hour=usd_per_hour * float(rng.uniform(0.3, 1.1))))
    return case


def _workload(rng: np.random.Generator, size: Size, tasks: tuple[Task, ...]) -> Workload:
    actor = _architecture(rng, size, "actor")
    other = _architecture(rng, size, "other") if rng.random() < 0.3 else actor
    models = {task: actor if task in (GENERATED, TRAINED, Task.REFERENCE) else other for task in tasks}
    mean = float(np.exp(rng.uniform(*np.log(size.tokens))))
    spread = np.sort(rng.lognormal(0.0, float(rng.uniform(0.0, 0.9)), 6))
    return Workload(
        algorithm="ppo" if Task.CRITIC_TRAINING in tasks else "grpo",
        models=models,
        eta=int(rng.choice(size.etas)),
        prompts_per_step=int(rng.integers(2, 17)),
        group_size=int(rng.choice([1, 2, 4, 8])),
        prompt_tokens=Lengths(quantiles=(float(rng.integers(20, 200)),)),
        completion_tokens=Lengths(quantiles=tuple(float(q) for q in np.maximum(1.0, mean * spread / spread.mean()))),
        epochs_per_step=int(rng.choice([1, 1, 2])),
        minibatches_per_step=int(rng.choice([1, 1, 2])),
        lora_rank=int(rng.choice([0, 0, 0, 16])),
        weights=_transfer(rng),
    )


def _transfer(rng: np.random.Generator) -> WeightTransfer:
    if rng.random() < 0.5:
        return WeightTransfer(bytes_per_param=2.0, is_delta=False)
    return WeightTransfer(bytes_per_param=float(rng.uniform(0.01, 0.2)), is_delta=True)


def _architecture(rng: np.random.Generator, size: Size, name: str) -> Architecture:
    heads = max(int(rng.choice([4, 8])), *size.kv_heads)
    return Architecture(
        name=name,
        hidden_size=128 * heads,
        num_layers=int(rng.choice([2, 4, 6])),
        num_heads=heads,
        num_kv_heads=int(rng.choice(size.kv_heads)),
        head_dim=128,
        intermediate_size=int(rng.choice([1024, 3072])),
        vocab_size=int(rng.choice([2000, 32000])),
        tied_embeddings=bool(rng.random() < 0.5),
    )


def _fleet(rng: np.random.Generator, size: Size) -> Fleet:
    types = {name: _gpu_type(rng, size, name) for name in ("fast", "slow", "old")}
    names = ["east", "west", "south"][: int(rng.integers(1, size.most_regions + 1))]
    left = int(rng.integers(max(size.fewest_gpus, len(names)), size.most_gpus + 1))
    regions = []
    for i, name in enumerate(names):
        here = left - (len(names) - i - 1) if i == len(names) - 1 else max(1, int(left * rng.uniform(0.2, 0.8)))
        here = min(here, left - (len(names) - i - 1))
        left -= here
        regions.append(_region(rng, size, name, here, sorted(types)))
    pairs = [(a, b) for a in names for b in names if a != b and rng.random() > 0.05]
    links = tuple(_link(rng, a, b) for a, b in pairs)
    return Fleet(regions=tuple(regions), links=links, gpu_types=types)


def _region(rng: np.random.Generator, size: Size, name: str, gpus: int, types: list[str]) -> Region:
    machines: list[Machines] = []
    while gpus > 0 and len(machines) < 2:
        per_machine = int(rng.choice([each for each in size.machine_sizes if each <= gpus]))
        num = int(rng.integers(1, min(size.most_machines, gpus // per_machine) + 1))
        gpus -= per_machine * num
        machines.append(
            Machines(
                gpu=str(rng.choice(types)),
                gpus_per_machine=per_machine,
                num_machines=num,
                usd_per_gpu_hour=None if rng.random() < 0.05 else round(float(rng.uniform(0.5, 4.0)), 2),
                is_spot=bool(rng.random() < 0.1),
                fabric=str(rng.choice(["", "", "x"])),
            )
        )
    return Region(
        name=name,
        machines=tuple(machines),
        fabric_bytes_per_s=float(10 ** rng.uniform(8.5, 10.5)),
        cross_fabric_bytes_per_s=float(10 ** rng.uniform(8, 10)) if rng.random() < 0.5 else None,
        wan_up_bytes_per_s=float(10 ** rng.uniform(7, 9)) if rng.random() < 0.3 else None,
        wan_down_bytes_per_s=float(10 ** rng.uniform(7, 9)) if rng.random() < 0.2 else None,
        is_public=bool(rng.random() < 0.8),
    )


def _link(rng: np.random.Generator, src: str, dst: str) -> Link:
    return Link(
        src_region=src,
        dst_region=dst,
        rtt_s=float(rng.uniform(0.005, 0.2)),
        bytes_per_s=float(10 ** rng.uniform(4.5 if rng.random() < 0.2 else 7, 9.5)),
        usd_per_gbyte=float(rng.choice([0.0, 0.02, 0.09])),
    )


def _gpu_type(rng: np.random.Generator, size: Size, name: str) -> GpuType:
    return GpuType(
        name=name,
        memory_bytes=int(rng.uniform(*size.memory_gib) * 2**30),
        memory_bytes_per_s=float(10 ** rng.uniform(11, 12.3)),
        matmul_flop_per_s=float(10 ** rng.uniform(12.7, 14.3)),
        link_bytes_per_s=float(10 ** rng.uniform(10, 11.5)),
        efficiency=Efficiency(
            matmul_fraction=float(rng.uniform(0.3, 0.8)),
            saturation_tokens=float(rng.uniform(30, 500)),
            memory_fraction=float(rng.uniform(0.5, 0.9)),
            link_fraction=float(rng.uniform(0.3, 0.9)),
            layer_overhead_s=float(10 ** rng.uniform(-5.3, -4)),
            collective_latency_s=float(10 ** rng.uniform(-5.3, -4)),
        ),
    )


def _goal(rng: np.random.Generator, size: Size) -> Goal:
    kinds = [Objective.THROUGHPUT] * 6 + [Objective.COST_AT_THROUGHPUT] * 2 + [Objective.THROUGHPUT_UNDER_BUDGET] * 2
    return Goal(objective=kinds[rng.integers(len(kinds))] if size.has_dollars else Objective.THROUGHPUT)


def _rules(rng: np.random.Generator, tasks: tuple[Task, ...], fleet: Fleet) -> Rules:
    names = [region.name for region in fleet.regions]
    pins = ((tasks[rng.integers(len(tasks))], frozenset({names[rng.integers(len(names))]})),)
    forbidden = ((tasks[rng.integers(len(tasks))], frozenset({names[rng.integers(len(names))]})),)
    return Rules(
        pins=pins if rng.random() < 0.15 else (),
        forbidden=forbidden if rng.random() < 0.15 else (),
        max_regions=int(rng.integers(1, 3)) if rng.random() < 0.15 else None,
        spot_for_rollouts_only=bool(rng.random() < 0.7),
    )


def _with_demands(rng: np.random.Generator, size: Size, rules: Rules, fleet: Fleet) -> Rules:
    """Rules of whole regions, each in some cases."""
    names = [region.name for region in fleet.regions]
    generating, closed = (frozenset({names[rng.integers(len(names))]}) for _ in range(2))
    is_asked = rng.random(3) < size.demands
    return replace(
        rules,
        generating=generating if is_asked[0] else frozenset(),
        min_regions=2 if is_asked[1] and len(names) > 1 else 1,
        forbidden_regions=closed if is_asked[2] and len(names) > 1 else frozenset(),
    )


def _with_slow_networks(rng: np.random.Generator, fleet: Fleet) -> Fleet:
    """Some machines whose own network carries less than their region's."""

    def slower(machines: Machines) -> Machines:
        rate = float(10 ** rng.uniform(8.0, 10.0))
        return replace(machines, network_bytes_per_s=rate) if rng.random() < 0.15 else machines

    regions = tuple(replace(each, machines=tuple(map(slower, each.machines))) for each in fleet.regions)
    return replace(fleet, regions=regions)


def _limits(rng: np.random.Generator, size: Size, tasks: tuple[Task, ...]) -> Limits:
    roles = frozenset(task for task in tasks if task is Task.REFERENCE) if rng.random() < 0.15 else frozenset[Task]()
    return Limits(
        max_tensor=int(rng.choice(size.tensors)),
        max_pipeline=int(rng.choice([1, 2, 3])),
        max_data=int(rng.choice([1, 2, 4, 8])),
        max_train_blocks=int(rng.choice(size.blocks)),
        colocates=bool(rng.random() < 0.8),
        max_eta=4,
        roles_on_trainer=roles,
    )
