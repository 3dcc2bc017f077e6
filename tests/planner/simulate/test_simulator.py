"""Whole simulated runs: closed forms, staleness bound, determinism, symmetry, effects of resources, faults."""

import math
from dataclasses import replace

import pytest

from planner.answer.placement import Group, Layout, Placement, Pool
from planner.devices import collective, layer
from planner.devices.catalogue import gpu_types
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Problem
from planner.problem.lengths import constant, lognormal
from planner.problem.workload import TRAINING, Task, WeightTransfer, Workload
from planner.simulate.faults import Availability, Faults, RateChange
from planner.simulate.run_record import Simulated
from planner.simulate.simulator import simulate

ARCH = Architecture(
    name="small",
    hidden_size=1024,
    num_layers=12,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=3072,
    vocab_size=32768,
    tied_embeddings=True,
)
GPU = "A100-80GB-SXM"
PPO = tuple(Task)
GRPO = (Task.GENERATION, Task.REFERENCE, Task.ACTOR_TRAINING)
BARE = (Task.GENERATION, Task.ACTOR_TRAINING)


def workload(tasks: tuple[Task, ...], eta: int, *, prompts: int = 16, is_equal: bool = False) -> Workload:
    return Workload(
        algorithm="grpo",
        models=dict.fromkeys(tasks, ARCH),
        eta=eta,
        prompts_per_step=prompts,
        group_size=4,
        prompt_tokens=constant(128) if is_equal else lognormal(median_tokens=100, sigma=0.6, cap_tokens=400),
        completion_tokens=constant(200) if is_equal else lognormal(median_tokens=150, sigma=0.8, cap_tokens=600),
        weights=WeightTransfer(bytes_per_param=2.0, is_delta=False),
    )


def fleet(*names: str, rate: float = 1e9, is_spot: bool = False) -> Fleet:
    machines = Machines(gpu=GPU, gpus_per_machine=8, num_machines=4, is_spot=is_spot)
    regions = tuple(Region(name=name, machines=(machines,), fabric_bytes_per_s=1e10) for name in names)
    links = tuple(Link(src_region=a, dst_region=b, rtt_s=0.1, bytes_per_s=rate) for a in names for b in names if a != b)
    return Fleet(regions=regions, links=links, gpu_types={GPU: gpu_types()[GPU]})


def group(tasks: tuple[Task, ...], *where: tuple[str, int], unit: int = 1, batch: int = 0, spot: bool = False) -> Group:
    def layout(task: Task) -> Layout:
        if task in TRAINING:
            return Layout(tensor=unit, micro_batch=4)
        return Layout(tensor=1, batch=batch if task is Task.GENERATION else 0)

    layouts = tuple((task, layout(task)) for task in tasks)
    end = "/spot" if spot else ""
    return Group(
        tasks=tasks,
        pools=tuple(
            Pool(device_class=f"{region}/{GPU}/8{end}", unit_gpus=unit, num_units=num, layouts=layouts)
            for region, num in where
        ),
    )


def apart(eta: int, *where: tuple[str, int], batch: int | None = None, spot: bool = False) -> Placement:
    """Generation in some places, reference and training in the first region's."""
    size = (16 if eta else 0) if batch is None else batch
    return Placement(
        groups=(
            group((Task.GENERATION,), *where, batch=size, spot=spot),
            group((Task.REFERENCE, Task.ACTOR_TRAINING), (where[0][0], 2)),
        )
    )


def away(eta: int, *where: tuple[str, int]) -> Placement:
    """Generation in some places, the rest in region a."""
    return Placement(
        groups=(
            group((Task.GENERATION,), *where, batch=16 if eta else 0),
            group((Task.REFERENCE, Task.ACTOR_TRAINING), ("a", 2)),
        )
    )


def simulated(
    fleet: Fleet,
    workload: Workload,
    placement: Placement,
    *,
    seed: int = 1,
    steps: int = 4,
    faults: Faults | None = None,
) -> Simulated:
    problem = Problem(fleet=fleet, workload=workload)
    return simulate(problem, placement, seed=seed, num_steps=steps, faults=faults or Faults())


def test_equal_lengths_on_one_machine_take_what_their_parts_take() -> None:
    tasks = BARE
    job = workload(tasks, 0, is_equal=True)
    one = Placement(groups=(group(tasks, ("here", 1), unit=4),))
    layouts = tuple((task, Layout(tensor=4, micro_batch=4)) for task in tasks)
    one = replace(one, groups=(replace(one.groups[0], pools=(replace(one.groups[0].pools[0], layouts=layouts),)),))
    gpu = gpu_types()[GPU]

    def reduce_s(rows: float) -> float:
        return 2 * collective.machine_all_reduce_s(gpu, payload_bytes=2 * rows * ARCH.hidden_size, num=4)

    tokens = 4 * 328.0
    forward = layer.forward_s(gpu, ARCH, tensor=4, tokens=tokens, sequence=328.0)
    backward = layer.backward_s(gpu, ARCH, tensor=4, tokens=tokens, sequence=328.0)
    slot = ARCH.num_layers * (forward + backward + 2 * reduce_s(tokens))
    slot += 3 * layer.head_s(gpu, ARCH, tensor=4, tokens=tokens)
    train_s = 16 * slot + layer.update_s(gpu, params=ARCH.num_params / 4, bytes_per_param=16)
    decode = layer.decode_s(gpu, ARCH, tensor=4, sequences=64.0, context=128 + 199 / 2) + reduce_s(64)
    decode_s = 200 * (ARCH.num_layers * decode + layer.head_s(gpu, ARCH, tensor=4, tokens=64.0))
    prefill = layer.forward_s(gpu, ARCH, tensor=4, tokens=2048.0, sequence=128.0) + reduce_s(2048)
    expected_s = train_s + decode_s + 4 * ARCH.num_layers * prefill
    assert simulated(fleet("here"), job, one).step_s == pytest.approx(expected_s, rel=2e-3)


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
def test_no_token_is_older_than_the_bound_and_every_one_is_counted(eta: int) -> None:
    job = workload(GRPO, eta)
    seen = simulated(fleet("a", "b", rate=2e8), job, apart(eta, ("a", 2), ("b", 6)))
    assert seen.max_age <= eta
    assert not seen.stalled
    assert sum(seen.tokens_by_age) / 4 == pytest.approx(job.samples_per_step * job.completion_tokens.mean, rel=0.15)
    assert seen.step_s == pytest.approx(sum(seen.steps_s) / 4)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    job, where = workload(GRPO, 1), apart(1, ("a", 2), ("b", 4))
    one, again = simulated(fleet("a", "b"), job, where), simulated(fleet("a", "b"), job, where)
    assert one == again
    assert one.step_s != simulated(fleet("a", "b"), job, where, seed=2).step_s


@pytest.mark.parametrize("eta", [0, 1])
def test_the_order_of_regions_and_links_changes_nothing(eta: int) -> None:
    world = fleet("a", "b", "c", rate=3e8)
    turned = replace(world, regions=world.regions[::-1], links=world.links[::-1])
    where = apart(eta, ("a", 2), ("b", 3), ("c", 4))
    assert simulated(world, workload(GRPO, eta), where) == simulated(turned, workload(GRPO, eta), where)


def test_asynchrony_hides_what_a_synchronous_step_waits_for() -> None:
    world = fleet("a", "b", rate=3e8)
    steps = [simulated(world, workload(GRPO, eta), apart(eta, ("a", 2), ("b", 2)), steps=6).step_s for eta in (0, 1, 2)]
    assert steps[0] > 1.2 * steps[1]
    assert steps[2] <= 1.05 * steps[1]


@pytest.mark.parametrize("eta", [0, 1])
def test_more_engines_and_faster_links_do_not_hurt(eta: int) -> None:
    job = workload(GRPO, eta, prompts=32)
    few, many = apart(eta, ("a", 1), ("b", 2)), apart(eta, ("a", 4), ("b", 8))
    slow = simulated(fleet("a", "b", rate=1e8), job, few).step_s
    assert simulated(fleet("a", "b", rate=1e9), job, few).step_s <= slow * 1.02
    assert simulated(fleet("a", "b", rate=1e8), job, many).step_s < slow


def test_an_asynchronous_step_is_as_long_as_the_busiest_group() -> None:
    job = workload(GRPO, 2, prompts=32)
    generating = simulated(fleet("a"), job, apart(2, ("a", 1), batch=8), steps=8)
    assert dict(generating.task_busy_s)[Task.GENERATION] == pytest.approx(generating.step_s, rel=0.03)
    training = simulated(fleet("a"), workload(GRPO, 2, prompts=256), apart(2, ("a", 16), batch=64), steps=8)
    busy = dict(training.task_busy_s)
    assert busy[Task.REFERENCE] + busy[Task.ACTOR_TRAINING] == pytest.approx(training.step_s, rel=0.03)


def test_weights_take_their_bytes_over_the_shared_uplink() -> None:
    world = fleet("a", "b", "c", rate=1e9)
    world = replace(world, regions=(replace(world.regions[0], wan_up_bytes_per_s=1e8), *world.regions[1:]))
    seen = simulated(world, workload(GRPO, 0), away(0, ("b", 2), ("c", 2)))
    payload = 2.0 * ARCH.num_params
    for region in seen.regions:
        assert region.weights_s == pytest.approx(2 * payload / 1e8 + 0.05, rel=0.01)
    sent = {(use.src_region, use.dst_region): use.num_bytes for use in seen.links}
    assert sent["a", "b"] == pytest.approx(payload, rel=1e-6)
    assert 0 < sent["b", "a"] < 0.01 * payload


def test_all_on_one_mesh_takes_turns_at_any_bound() -> None:
    everything = Placement(groups=(group(GRPO, ("a", 4)),))
    sync, late = (simulated(fleet("a"), workload(GRPO, eta), everything, steps=6) for eta in (0, 2))
    assert late.step_s == pytest.approx(sync.step_s, rel=0.1)
    assert late.max_age <= 2
    busy = dict(sync.task_busy_s)
    assert busy[Task.ACTOR_TRAINING] + busy[Task.REFERENCE] < sync.step_s


@pytest.mark.parametrize("eta", [0, 1])
def test_a_critic_that_trains_elsewhere_is_waited_for(eta: int) -> None:
    def placement(region: str) -> Placement:
        return Placement(
            groups=(
                group((Task.GENERATION,), ("a", 4), batch=16 if eta else 0),
                group((Task.REWARD, Task.REFERENCE, Task.CRITIC_INFERENCE), (region, 2)),
                group((Task.ACTOR_TRAINING,), ("a", 2)),
                group((Task.CRITIC_TRAINING,), ("a", 2)),
            )
        )

    job = workload(PPO, eta)
    near = simulated(fleet("a", "b", rate=4e7), job, placement("a"))
    far = simulated(fleet("a", "b", rate=4e7), job, placement("b"))
    critic_s = 2.0 * ARCH.num_params / 4e7
    assert far.step_s >= critic_s / (eta + 1)
    assert near.step_s < critic_s / (eta + 1)


def test_devices_that_vanish_lose_their_samples_and_the_job_goes_on() -> None:
    job = workload(GRPO, 1, prompts=32)
    world, where = fleet("a", is_spot=True), apart(1, ("a", 6), spot=True)
    where = replace(where, groups=(where.groups[0], group((Task.REFERENCE, Task.ACTOR_TRAINING), ("a", 2), spot=True)))
    calm = simulated(world, job, where, steps=8)
    gone = Availability(time_s=calm.step_s * 3, subject="a", fraction=0.34)
    back = Availability(time_s=calm.step_s * 8, subject="a", fraction=1.0)
    seen = simulated(world, job, where, steps=8, faults=Faults(availability=(back, gone), restart_s=1.0))
    assert (seen.units_lost, seen.stalled) == (4, "")
    assert seen.samples_lost > 0
    assert seen.max_age <= 1
    assert seen.step_s > calm.step_s


@pytest.mark.parametrize("eta", [0, 1])
def test_when_every_device_is_gone_for_good_it_says_so(eta: int) -> None:
    gone = Availability(time_s=0.5, subject=f"a/{GPU}/8", fraction=0.0)
    seen = simulated(fleet("a"), workload(GRPO, eta), apart(eta, ("a", 2)), faults=Faults(availability=(gone,)))
    assert seen.step_s == math.inf
    assert "no event is left" in seen.stalled


@pytest.mark.parametrize("eta", [0, 1])
def test_when_a_region_vanishes_another_one_makes_its_samples(eta: int) -> None:
    gone = Availability(time_s=2.0, subject=f"b/{GPU}/8", fraction=0.0)
    world, job, where = fleet("a", "b"), workload(GRPO, eta), apart(eta, ("a", 2), ("b", 2))
    seen = simulated(world, job, where, faults=Faults(availability=(gone,)))
    assert not seen.stalled
    assert seen.max_age <= eta


def test_links_that_slow_down_slow_a_synchronous_job() -> None:
    world, job, where = fleet("a", "b", rate=2e8), workload(GRPO, 0), away(0, ("b", 8))
    slower = Faults(rates=(RateChange(time_s=0.0, src_region="a", dst_region="b", factor=0.25),))
    assert simulated(world, job, where, faults=slower).step_s > 1.2 * simulated(world, job, where).step_s


def test_regions_that_cannot_reach_each_other_are_refused() -> None:
    world = replace(fleet("a", "b"), links=())
    with pytest.raises(ValueError, match="no route"):
        simulated(world, workload(GRPO, 0), apart(0, ("a", 1), ("b", 1)))


def test_gradients_follow_the_rate_of_the_link_that_their_mesh_spans() -> None:
    world, job = fleet("a", "b"), workload(GRPO, 1)
    where = Placement(groups=(group((Task.GENERATION,), ("a", 4), batch=16), group(GRPO[1:], ("a", 2), ("b", 2))))
    calm = simulated(world, job, where)

    def changed(factor: float) -> Simulated:
        change = RateChange(time_s=0.0, src_region="a", dst_region="b", factor=factor)
        return simulated(world, job, where, faults=Faults(rates=(change,)))

    half_s = dict(changed(0.5).task_busy_s)[Task.ACTOR_TRAINING]
    payload_s = 2 * 2.0 * ARCH.num_params * 3 / 4 / 1e9
    assert half_s - dict(calm.task_busy_s)[Task.ACTOR_TRAINING] == pytest.approx(payload_s, rel=0.2)
    assert changed(0.0).stalled.endswith("while no data flows from a to b")


def test_a_dead_link_brings_a_synchronous_job_to_a_stand_and_another_one_can_go_on() -> None:
    world, job, where = fleet("a", "b", rate=2e8), workload(GRPO, 0), away(0, ("b", 8))
    down, up = (
        RateChange(time_s=at_s, src_region="a", dst_region="b", factor=f) for at_s, f in ((0.0, 0.0), (60.0, 1.0))
    )
    seen = simulated(world, job, where, faults=Faults(rates=(down,)))
    assert (seen.step_s, seen.num_played) == (math.inf, 0)
    assert seen.stalled.endswith("while no data flows from a to b")
    seen = simulated(world, job, where, faults=Faults(rates=(down, up)))
    assert (seen.stalled, seen.num_played) == ("", 4)


def test_told_to_stop_it_keeps_the_steps_that_are_whole() -> None:
    problem, where = Problem(fleet=fleet("a"), workload=workload(GRPO, 1)), apart(1, ("a", 2))
    asked: list[int] = []

    def after(num: int) -> bool:
        asked.append(num)
        return len(asked) >= num

    whole = simulate(problem, where, seed=1, num_steps=3)
    seen = simulate(problem, where, seed=1, num_steps=500, should_stop=lambda: after(3 + 3))
    assert (seen.num_played, seen.stalled, seen.steps_s) == (3, "", whole.steps_s)
    assert (whole.num_played, whole.step_s) == (3, seen.step_s)
    asked.clear()
    none = simulate(problem, where, seed=1, num_steps=500, should_stop=lambda: after(1))
    assert (none.num_played, none.stalled, none.step_s) == (0, "", math.inf)
