"""Two regions, one with slower devices, and placements that train in the first and generate in either."""

from planner.answer.placement import Group, Layout, Placement, Pool
from planner.problem.fleet import Fleet
from planner.problem.workload import Task
from tests.support.planner.cost import GPU, fleet, machines, region, slower

PAIR = (Task.GENERATION, Task.ACTOR_TRAINING)
SLOW = slower(GPU, "slow", factor=0.5)


def two_regions(bytes_per_s: float = 1e9) -> Fleet:
    return fleet(
        region("x", machines(per_machine=4, num=2)),
        region("y", machines(SLOW, per_machine=2, num=2)),
        types=(GPU, SLOW),
        bytes_per_s=bytes_per_s,
    )


def pool(key: str, task: Task, num: int, layout: Layout | None = None) -> Pool:
    return Pool(device_class=key, unit_gpus=1, num_units=num, layouts=((task, layout or Layout(tensor=1)),))


def placement(*generating: Pool) -> Placement:
    train = pool("x/simple/4", Task.ACTOR_TRAINING, 2)
    return Placement(groups=(Group(tasks=PAIR[:1], pools=generating), Group(tasks=PAIR[1:], pools=(train,))))


FAR = pool("y/slow/2", Task.GENERATION, 3)
