"""The engine, which jumps between completions, equals an engine that takes one decoding step at a time."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.devices.catalogue import gpu_types
from planner.problem.architecture import Architecture
from planner.problem.lengths import constant
from planner.problem.workload import Task, Workload
from planner.simulate.generation.engine import SimulatedEngine, SimulatedSample
from planner.simulate.generation.replica_speed import Speed
from planner.simulate.settings import SETTINGS

ARCH = Architecture(
    name="small",
    hidden_size=512,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1024,
    vocab_size=8192,
    tied_embeddings=True,
)
WORKLOAD = Workload(
    algorithm="grpo",
    models={Task.GENERATION: ARCH, Task.ACTOR_TRAINING: ARCH},
    eta=1,
    prompts_per_step=4,
    group_size=4,
    prompt_tokens=constant(50),
    completion_tokens=constant(100),
)
SPEED = Speed(WORKLOAD, gpu_types()["A100-80GB-SXM"], 1)
PLENTY = 1_000_000


def queue_of(lengths: list[int], prompt: int = 50) -> deque[SimulatedSample]:
    return deque(SimulatedSample(group=i, prompt=prompt, length=length) for i, length in enumerate(lengths))


def run_engine(lengths: list[int], *, slots: int, cache_tokens: int) -> tuple[list[int], float, int]:
    """In the order of their ends, with the last end and how many were put back."""
    engine = SimulatedEngine(SPEED, max_running=slots, cache_tokens=cache_tokens)
    queue, ended = queue_of(lengths), []
    engine.admit_from(queue, 0.0, slots)
    while engine.num_running:
        now_s = engine.due_s()
        whole, put_back = engine.finish()
        ended += [sample.group for sample in whole]
        if put_back:
            queue.appendleft(put_back)
        else:
            engine.admit_from(queue, now_s, slots)
    return ended, engine.at_s, engine.num_evicted


def run_by_steps(lengths: list[int], *, slots: int, cache_tokens: int) -> tuple[list[int], float, int]:
    """The same rules, one token at a time."""
    queue = [(i, length, 0) for i, length in enumerate(lengths)]
    running: list[tuple[int, int, int]] = []
    ended: list[int] = []
    now_s, num_put_back, may_admit = 0.0, 0, True
    while queue or running:
        admitted = 0
        before = len(running)
        while queue and may_admit and len(running) < slots:
            done = queue[0][2]
            used = sum(50 + each[2] for each in running)
            if running and used + 50 + done + (len(running) + 1) * SETTINGS.growth_tokens > cache_tokens:
                break
            running.append(queue.pop(0))
            admitted += 50 + done
        if admitted:
            now_s += SPEED.prefill_s(before, admitted)
        used = sum(50 + each[2] for each in running)
        may_admit = False
        if len(running) > 1 and used + len(running) > cache_tokens:
            queue.insert(0, running.pop())
            num_put_back += 1
            continue
        fixed, slope = SPEED.decode(len(running))
        now_s += fixed + slope * used / len(running)
        running = [(index, length, done + 1) for index, length, done in running]
        over = [each for each in running if each[2] == each[1]]
        if over:
            running = [each for each in running if each[2] < each[1]]
            ended += [each[0] for each in over]
            may_admit = True
    return ended, now_s, num_put_back


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 5))
def test_jumps_end_where_single_steps_end(lengths: list[int], slots: int) -> None:
    ended, end_s, _ = run_engine(lengths, slots=slots, cache_tokens=PLENTY)
    expected, expected_s, _ = run_by_steps(lengths, slots=slots, cache_tokens=PLENTY)
    assert ended == expected
    assert end_s == pytest.approx(expected_s, rel=1e-9)


@given(st.lists(st.integers(1, 120), min_size=1, max_size=10), st.integers(2, 5), st.integers(200, 900))
def test_full_caches_put_the_newest_back_as_single_steps_do(lengths: list[int], slots: int, cache: int) -> None:
    ended, end_s, put_back = run_engine(lengths, slots=slots, cache_tokens=cache)
    expected, expected_s, expected_back = run_by_steps(lengths, slots=slots, cache_tokens=cache)
    assert (sorted(ended), put_back) == (sorted(expected), expected_back)
    assert end_s == pytest.approx(expected_s, rel=1e-9)


@given(st.lists(st.integers(2, 80), min_size=1, max_size=6), st.lists(st.floats(0.0, 1.0), max_size=6))
def test_halting_in_between_changes_no_end(lengths: list[int], fractions: list[float]) -> None:
    _, whole_s, _ = run_engine(lengths, slots=8, cache_tokens=PLENTY)
    engine = SimulatedEngine(SPEED, max_running=8, cache_tokens=PLENTY)
    engine.admit_from(queue_of(lengths), 0.0, 8)
    for halt_s in sorted(fraction * whole_s for fraction in fractions):
        while engine.due_s() <= halt_s:
            engine.finish()
        engine.halt(halt_s)
        assert engine.at_s >= halt_s or not engine.num_running
    while engine.num_running:
        engine.finish()
    assert engine.at_s == pytest.approx(whole_s, rel=1e-9)


def test_tokens_before_a_swap_are_of_the_old_version_and_later_ones_of_the_new() -> None:
    engine = SimulatedEngine(SPEED, max_running=1, cache_tokens=PLENTY)
    queue = queue_of([100])
    sample = queue[0]
    engine.admit_from(queue, 0.0, 1)
    engine.take_weights(3, engine.due_s() / 2, 0.5)
    engine.finish()
    (new, late), (old, early) = sample.ages
    assert (new, old, late + early) == (3, 0, 100)
    assert 40 < early < 60


def test_a_pause_lasts_until_it_is_over_and_loses_nothing() -> None:
    engine = SimulatedEngine(SPEED, max_running=4, cache_tokens=PLENTY)
    engine.admit_from(queue_of([50, 50]), 0.0, 4)
    due_s = engine.due_s()
    free_s = engine.pause(due_s / 2)
    assert due_s / 2 <= free_s < due_s / 2 + due_s / 50
    assert engine.due_s() == math.inf
    engine.resume(10.0)
    assert engine.due_s() == pytest.approx(10.0 + due_s - free_s)


def test_what_vanishes_is_handed_back_without_its_tokens() -> None:
    engine = SimulatedEngine(SPEED, max_running=4, cache_tokens=PLENTY)
    engine.admit_from(queue_of([50, 60]), 0.0, 4)
    engine.halt(engine.due_s() / 2)
    lost = engine.vanish()
    assert [(sample.group, sample.done, sample.ages) for sample in lost] == [(0, 0, []), (1, 0, [])]
    assert not engine.has_room(lost[0])
    engine.return_at(1, 5.0, is_paused=False)
    assert engine.has_room(lost[0])
