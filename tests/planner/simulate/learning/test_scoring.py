"""Samples are split over scoring workers, and each pass takes the seconds that its closed form gives."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.placement import Layout, Pool
from planner.cost.tasks import scoring
from planner.devices import layer
from planner.devices.catalogue import architecture, gpu_types
from planner.problem.device_classes import classes_of
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.lengths import constant
from planner.problem.workload import Lengths, Task, Workload
from planner.simulate.learning.scoring import ScoringSpeed, split_samples
from planner.simulate.settings import SETTINGS

GPU = gpu_types()["L40S"]
MACHINES = Machines(gpu=GPU.name, gpus_per_machine=8, num_machines=1)
FLEET = Fleet(
    regions=(Region(name="here", machines=(MACHINES,), fabric_bytes_per_s=1e10),), links=(), gpu_types={GPU.name: GPU}
)
WORKLOAD = Workload(
    algorithm="grpo",
    models=dict.fromkeys((Task.GENERATION, Task.REFERENCE), architecture("Qwen3-4B")),
    eta=0,
    prompts_per_step=8,
    group_size=8,
    prompt_tokens=constant(100),
    completion_tokens=constant(400),
)


@given(st.lists(st.integers(1, 2000), max_size=60), st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1, max_size=8))
def test_every_sample_is_assigned_once_and_nobody_is_far_behind(tokens: list[int], speeds: list[float]) -> None:
    lengths_by_worker = split_samples(tokens, speeds)
    assert sorted(num for part in lengths_by_worker for num in part) == sorted(tokens)
    ends = [sum(part) / speed for part, speed in zip(lengths_by_worker, speeds, strict=True)]
    fair = sum(tokens) / sum(speeds)
    assert max(ends) <= fair + max(tokens, default=0) / min(speeds) + 1e-9


def speed() -> ScoringSpeed:
    layouts = ((Task.REFERENCE, Layout(tensor=1)),)
    pool = Pool(device_class="here/L40S/8", unit_gpus=2, num_units=1, layouts=layouts)
    return ScoringSpeed(WORKLOAD, Task.REFERENCE, classes_of(FLEET)[0], pool)


def pack_s(around: float) -> float:
    arch = WORKLOAD.models[Task.REFERENCE]
    one = arch.num_layers * layer.forward_s(GPU, arch, tensor=1, tokens=float(SETTINGS.pack_tokens), sequence=around)
    return one + layer.head_s(GPU, arch, tensor=1, tokens=float(SETTINGS.pack_tokens))


def test_a_pass_is_full_packs_and_a_rest() -> None:
    assert speed().seconds([512] * 16) == pytest.approx(2 * pack_s(512.0))
    assert speed().tokens_per_s == pytest.approx(SETTINGS.pack_tokens / pack_s(500.0))
    assert 2 * pack_s(512.0) < speed().seconds([512] * 16 + [100]) < 2.2 * pack_s(512.0)
    assert speed().replicas_per_unit == 2
    assert speed().seconds([]) == 0.0


def test_attention_is_within_samples_so_that_long_ones_take_more() -> None:
    samples = [128] * 28 + [4608]  # as many tokens as 16 of 512
    around = (28 * 128**2 + 4608**2) / 8192
    assert speed().seconds(samples) == pytest.approx(2 * pack_s(around))


def test_the_cost_model_and_the_simulator_agree_on_long_tails() -> None:
    lengths = (200, 400, 800, 8000)
    one = replace(WORKLOAD, completion_tokens=Lengths(quantiles=tuple(map(float, lengths))))
    layouts = ((Task.REFERENCE, Layout(tensor=1)),)
    pool = Pool(device_class="here/L40S/8", unit_gpus=1, num_units=1, layouts=layouts)
    replica = ScoringSpeed(one, Task.REFERENCE, classes_of(FLEET)[0], pool)
    samples = [100 + num for num in lengths] * 1024  # whole packs
    predicted = len(samples) * scoring.sample_s(one, Task.REFERENCE, GPU, 1)
    assert replica.seconds(samples) == pytest.approx(predicted, rel=1e-9)
    assert predicted > len(samples) * scoring.sample_s(
        replace(one, completion_tokens=Lengths(quantiles=(2350.0,))), Task.REFERENCE, GPU, 1
    )
