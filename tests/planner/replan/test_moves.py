"""Which changes of a placement count as moves of devices."""

from dataclasses import replace

from planner.answer.placement import Group, Layout, Placement, Pool
from planner.problem.workload import Task
from planner.replan.moves import Lost, Move, diff, num_moved, staying, use_of, uses

GENERATION, TRAINING = (Task.GENERATION,), (Task.ACTOR_TRAINING,)
FAST, SLOW = "east/FAST/8", "east/SLOW/8"


def pool(tasks: tuple[Task, ...], key: str, num_units: int, layout: Layout) -> Pool:
    return Pool(
        device_class=key, unit_gpus=layout.tensor, num_units=num_units, layouts=tuple((task, layout) for task in tasks)
    )


def placement(num_generating: int, num_training: int, layout: Layout | None = None) -> Placement:
    train = pool(TRAINING, FAST, num_training, layout or Layout(tensor=4, pipeline=2))
    generate = pool(GENERATION, FAST, num_generating, Layout(tensor=4))
    return Placement(groups=(Group(tasks=GENERATION, pools=(generate,)), Group(tasks=TRAINING, pools=(train,))))


def four_of_the_mesh(plan: Placement) -> Lost:
    group = plan.group_of(Task.ACTOR_TRAINING)
    return {FAST: {use_of(group.tasks, group.pools[0]): 4}}


def test_devices_that_stop_do_not_move() -> None:
    a, b = placement(4, 8), placement(3, 8)
    assert num_moved(a, b) == 0
    assert diff(a, b) == (Move(device_class=FAST, num_gpus=4, before=GENERATION, after=()),)


def test_devices_that_start_something_else_move_once() -> None:
    a, b = placement(4, 8), placement(2, 10)
    assert num_moved(a, b) == 8
    assert diff(a, b) == (Move(device_class=FAST, num_gpus=8, before=GENERATION, after=TRAINING),)


def test_who_takes_the_place_of_a_lost_device_moves() -> None:
    a = placement(4, 8)
    lost = four_of_the_mesh(a)
    assert num_moved(a, a, lost) == 4
    assert diff(a, a, lost) == (
        Move(device_class=FAST, num_gpus=4, before=(), after=TRAINING),
        Move(device_class=FAST, num_gpus=4, before=TRAINING, after=()),
    )
    left = {use: num - (4 if use.tasks == TRAINING else 0) for use, num in uses(a)[FAST].items()}
    assert staying(a, lost)[FAST] == left


def test_a_mesh_with_fewer_pipelines_moves_nothing() -> None:
    assert num_moved(placement(4, 8), placement(4, 6)) == 0


def test_other_cuts_of_a_model_move_all_of_it_and_other_micro_batches_nothing() -> None:
    a = placement(4, 8)
    assert num_moved(a, placement(4, 8, Layout(tensor=4, pipeline=4))) == 32
    assert num_moved(a, placement(4, 8, Layout(tensor=4, pipeline=2, micro_batch=4, recompute=True))) == 0


def test_the_same_work_on_another_class_moves() -> None:
    a = placement(4, 8)
    group = a.group_of(Task.GENERATION)
    there = replace(group, pools=(replace(group.pools[0], device_class=SLOW),))
    assert num_moved(a, replace(a, groups=(there, a.groups[1]))) == 16
