"""A fit predicts the rows that it was made of, and rows that it has not seen; what was not measured stays."""

from dataclasses import replace

import pytest

from periplus.values.profile import GenerationRow, HostFigures, Profile, TrainingRow
from planner.calibration.efficiencies import (
    INTAKE,
    WITH_PROOF,
    WITH_STREAM,
    WITH_THREADS,
    calibrated,
    generation_s,
    training_s,
)
from planner.devices.catalogue import architecture, gpu_types
from planner.problem.hardware import GpuType

CPU = gpu_types()["cpu"]
QWEN = architecture("builtin:qwen3-tiny")
SHAPES = ((1, 8, 24), (32, 8, 24), (128, 8, 24), (256, 8, 24), (128, 8, 6), (128, 16, 24))
STEPS = ((64, 8, 24), (16, 8, 24), (64, 8, 6))


def faster(gpu: GpuType, by: float) -> GpuType:
    """A device on which everything takes less time, and whose layers have hardly a fixed time."""
    fit = replace(gpu.efficiency, layer_overhead_s=gpu.efficiency.layer_overhead_s / by / 3)
    return replace(
        gpu,
        matmul_flop_per_s=gpu.matmul_flop_per_s * by,
        memory_bytes_per_s=gpu.memory_bytes_per_s * by,
        efficiency=fit,
    )


def generation(shape: tuple[int, int, int], gpu: GpuType | None = None) -> GenerationRow:
    num, prompt, completion = shape
    row = GenerationRow(
        num_samples=num, num_slots=128, prompt_tokens=prompt, completion_tokens=completion, seconds=1.0, spread=0.0
    )
    return row if gpu is None else replace(row, seconds=generation_s(gpu, QWEN, row))


def training(shape: tuple[int, int, int], gpu: GpuType | None = None) -> TrainingRow:
    num, prompt, completion = shape
    row = TrainingRow(
        num_groups=num, group_size=8, prompt_tokens=prompt, completion_tokens=completion, seconds=1.0, spread=0.0
    )
    return row if gpu is None else replace(row, seconds=training_s(gpu, QWEN, row, 0))


def profile(**changes: object) -> Profile:
    made = Profile(
        model="builtin:qwen3-tiny",
        engine="torch",
        machine="rack-7",
        device="",
        measured_at_s=1_795_800_000.0,
        versions={"torch": "2.13"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_fit_meets_its_rows_and_those_between_them() -> None:
    sampler, trainer = faster(CPU, 6.0), faster(CPU, 2.0)
    rows = profile(
        generation=tuple(generation(each, sampler) for each in SHAPES),
        training=tuple(training(each, trainer) for each in STEPS),
    )
    found = calibrated(CPU, QWEN, rows)
    assert found.after < 0.06 < 0.5 < found.before
    for made in (generation((64, 8, 24), sampler), generation((128, 8, 12), sampler)):
        assert generation_s(found.gpu, QWEN, made) == pytest.approx(made.seconds, rel=0.1)
    step = training((32, 8, 12), trainer)
    assert training_s(found.gpu.for_training, QWEN, step, 0) == pytest.approx(step.seconds, rel=0.1)


def test_fractions_stay_fractions_where_a_machine_is_faster_than_its_packaged_type() -> None:
    rows = profile(generation=tuple(generation(each, faster(CPU, 20.0)) for each in SHAPES))
    gpu = calibrated(CPU, QWEN, rows).gpu
    assert gpu.matmul_flop_per_s > CPU.matmul_flop_per_s
    for fit in (gpu.efficiency, gpu.for_training.efficiency):
        for value in (fit.matmul_fraction, fit.memory_fraction, fit.attention_fraction):
            assert 0.0 < value <= 1.0


def test_what_was_not_measured_is_predicted_as_before() -> None:
    rows = profile(generation=tuple(generation(each, faster(CPU, 6.0)) for each in SHAPES))
    gpu = calibrated(CPU, QWEN, rows).gpu
    for shape in STEPS:
        expected = training_s(CPU, QWEN, training(shape), 0)
        assert training_s(gpu.for_training, QWEN, training(shape), 0) == pytest.approx(expected, rel=1e-6)


def test_what_a_process_does_beside_the_model_and_between_two_is_taken_as_it_was_measured() -> None:
    host = HostFigures(
        sample_s=0.25, step_s=0.5, publish_s=1.0, load_s=2.0, all_reduce_bytes_per_s=3e8, all_reduce_s=0.004
    )
    gpu = calibrated(CPU, QWEN, profile(host=host)).gpu
    assert (gpu.efficiency.sample_overhead_s, gpu.efficiency.version_overhead_s) == (
        0.25 * WITH_STREAM,
        3.0 * WITH_PROOF,
    )
    trains = gpu.for_training
    assert trains.efficiency.step_overhead_s == 0.5 * WITH_THREADS
    assert trains.efficiency.sample_overhead_s == 0.25 * INTAKE
    assert trains.link_bytes_per_s * trains.efficiency.link_fraction == 3e8
    assert 2 * trains.efficiency.collective_latency_s == 0.004


def test_a_type_says_where_it_was_measured_and_when() -> None:
    source = calibrated(CPU, QWEN, profile(training=(training(STEPS[0], CPU),))).gpu.source
    assert source == "1 row on rack-7, 2026-11-27 17:20 UTC, torch 2.13; error of the fit 0%"
