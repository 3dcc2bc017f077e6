"""Dealing samples, and passes over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.placement import Layout, Pool
from planner.catalogue import architecture, gpu_types
from planner.classes import classes_of
from planner.device import layer
from planner.lengths import constant
from planner.question.fleet import Fleet, Machines, Region
from planner.question.workload import Task, Workload
from planner.simulate.scoring import PACK_TOKENS, ScoringSpeed, deal

GPU = gpu_types()["L40S"]
MACHINES = Machines(gpu=GPU.name, gpus_per_machine=8, num_machines=1)
FLEET = Fleet(
    regions=(Region(name="here", machines=(MACHINES,), fabric_bytes_per_s=1e10),), links=(), gpu_types={GPU.name: GPU}
)
WORKLOAD = Workload(
    algorithm="grpo", models=dict.fromkeys((Task.GENERATION, Task.REFERENCE), architecture("Qwen3-4B")), eta=0,
    prompts_per_step=8, group_size=8, prompt_tokens=constant(100), completion_tokens=constant(400),
)  # fmt: skip


@given(st.lists(st.integers(1, 2000), max_size=60), st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1, max_size=8))
def test_every_sample_is_dealt_once_and_nobody_is_far_behind(tokens: list[int], speeds: list[float]) -> None:
    dealt = deal(tokens, speeds)
    assert sorted(num for part in dealt for num in part) == sorted(tokens)
    ends = [sum(part) / speed for part, speed in zip(dealt, speeds, strict=True)]
    fair = sum(tokens) / sum(speeds)
    assert max(ends) <= fair + max(tokens, default=0) / min(speeds) + 1e-9


def test_a_pass_is_full_packs_and_a_rest() -> None:
    layouts = ((Task.REFERENCE, Layout(tensor=1)),)
    pool = Pool(device_class="here/L40S/8", unit_gpus=2, num_units=1, layouts=layouts)
    speed = ScoringSpeed(WORKLOAD, Task.REFERENCE, classes_of(FLEET)[0], pool)
    arch = WORKLOAD.models[Task.REFERENCE]
    one = arch.num_layers * layer.forward_s(GPU, arch, tensor=1, tokens=float(PACK_TOKENS), sequence=500.0)
    one += layer.head_s(GPU, arch, tensor=1, tokens=float(PACK_TOKENS))
    assert speed.seconds(2 * PACK_TOKENS) == pytest.approx(2 * one)
    assert speed.tokens_per_s == pytest.approx(PACK_TOKENS / one)
    assert 2 * one < speed.seconds(2 * PACK_TOKENS + 100) < 2.2 * one
    assert speed.replicas_per_unit == 2
