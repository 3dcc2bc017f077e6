"""The fit recovers the parameters that generated the times, and does not use rows that are held out."""

from dataclasses import replace

import numpy as np
import pytest

from bench.planner_cases.calibration import held_out, parameters
from bench.planner_cases.calibration.fit import Fit, fit_all
from bench.planner_cases.calibration.observations import FloatArray, MeasuredTerm, Numerics, Series
from bench.planner_cases.calibration.predict import predicted_s
from bench.planner_cases.calibration.similar_types import Traits, completed, expected, similar_types
from planner.devices.catalogue import architectures, gpu_types

GPUS = gpu_types()
NAMES = ("H100-SXM", "H200-SXM", "L4", "T4")
TRAITS = {
    "H100-SXM": Traits(gpu=GPUS["H100-SXM"], arch="Hopper", power_w=700, silicon="GH100"),
    "H200-SXM": Traits(gpu=GPUS["H200-SXM"], arch="Hopper", power_w=700, silicon="GH100"),
    "L4": Traits(gpu=GPUS["L4"], arch="Ada", power_w=72, silicon="L4"),
    "T4": Traits(gpu=GPUS["T4"], arch="Turing", power_w=70, silicon="T4"),
    "H800-SXM": Traits(gpu=GPUS["H800-SXM"], arch="Hopper", power_w=700, silicon="GH100"),
}
FRACTIONS = {"H100-SXM": (0.8, 0.85), "H200-SXM": (0.7, 0.75), "L4": (0.5, 0.8), "T4": (0.4, 0.7)}
TOKENS = np.array([1.0, 8.0, 64.0, 256.0, 1024.0, 4096.0])


def numbers(gpu: str) -> FloatArray:
    """Those that made the times of a type: priors but for arithmetic and memory."""
    values = {each.name: each.centre for each in parameters.DEVICE}
    values["matmul_fraction"], values["memory_fraction"] = FRACTIONS[gpu]
    return np.array([each.encoded(values[each.name]) for each in parameters.DEVICE])


def made(gpu: str, model: str) -> Series:
    blank = Series(
        term=MeasuredTerm.DENSE_LAYER,
        source="made up",
        gpu=gpu,
        model=model,
        arch=architectures()[model],
        tensor=1,
        numerics=Numerics.HALF,
        columns={"tokens": TOKENS},
        seconds=np.ones(len(TOKENS)),
    )
    program = parameters.program(parameters.centres(parameters.PROGRAM))
    return replace(blank, seconds=predicted_s(blank, GPUS[gpu], parameters.device_fit(numbers(gpu)), program))


SERIES = tuple(made(gpu, model) for gpu in NAMES for model in ("Qwen3-8B", "Llama-3.1-70B"))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_all(SERIES, GPUS)


def test_what_made_the_times_is_found(fit: Fit) -> None:
    for gpu in NAMES:
        found = parameters.decoded(parameters.DEVICE, fit.devices[gpu])
        assert (found["matmul_fraction"], found["memory_fraction"]) == pytest.approx(FRACTIONS[gpu], rel=0.03)


def test_numbers_that_no_row_shows_are_not_called_informed(fit: Fit) -> None:
    for gpu in NAMES:
        assert {"matmul_fraction", "memory_fraction"} <= fit.informed[gpu]
        assert not {"link_fraction", "attention_fraction", "float32_fraction"} & fit.informed[gpu]


def test_the_same_series_give_the_same_numbers(fit: Fit) -> None:
    again = fit_all(SERIES, GPUS)
    assert all(np.array_equal(fit.devices[gpu], again.devices[gpu]) for gpu in NAMES)


def test_a_type_nobody_profiled_has_what_its_kin_have(fit: Fit) -> None:
    assert similar_types("matmul_fraction", "H800-SXM", fit, TRAITS) == ("H100-SXM", "H200-SXM")
    found = parameters.decoded(parameters.DEVICE, completed("H800-SXM", fit, TRAITS))
    assert found["matmul_fraction"] == pytest.approx((0.8 * 0.7) ** 0.5, rel=0.03)
    assert found["link_fraction"] == pytest.approx(0.6)


def test_low_power_cards_are_kin_for_arithmetic(fit: Fit) -> None:
    assert similar_types("matmul_fraction", "L4", fit, TRAITS) == ("T4",)
    assert "L4" not in similar_types("memory_fraction", "L4", fit, TRAITS)


def test_over_pcie_kin_share_an_absolute_rate(fit: Fit) -> None:
    at = next(i for i, each in enumerate(parameters.DEVICE) if each.name == "link_fraction")
    told = {**fit.devices, "L4": fit.devices["L4"].copy()}
    told["L4"][at] = np.log(0.25)
    informed = {**fit.informed, "L4": fit.informed["L4"] | {"link_fraction"}}
    known = replace(fit, devices=told, informed=informed)
    found = parameters.decoded(parameters.DEVICE, expected("T4", known, TRAITS))
    assert found["link_fraction"] * GPUS["T4"].link_bytes_per_s == pytest.approx(0.25 * GPUS["L4"].link_bytes_per_s)


def test_leaving_out_a_type_does_not_look_at_its_rows() -> None:
    """Were its times a hundred times longer, its predictions were the same."""
    slow = [replace(one, seconds=one.seconds * 100) if one.gpu == "T4" else one for one in SERIES]
    plain = {(p.series.gpu, p.series.model): p.seconds for p in held_out.without_gpu(SERIES, GPUS, TRAITS)}
    other = {(p.series.gpu, p.series.model): p.seconds for p in held_out.without_gpu(slow, GPUS, TRAITS)}
    for model in ("Qwen3-8B", "Llama-3.1-70B"):
        np.testing.assert_array_equal(plain["T4", model], other["T4", model])


def test_leaving_out_a_model_does_not_look_at_its_rows() -> None:
    slow = [replace(one, seconds=one.seconds * 100) if one.model == "Qwen3-8B" else one for one in SERIES]
    plain = {(p.series.gpu, p.series.model): p.seconds for p in held_out.without_model(SERIES, GPUS, TRAITS)}
    other = {(p.series.gpu, p.series.model): p.seconds for p in held_out.without_model(slow, GPUS, TRAITS)}
    for gpu in NAMES:
        np.testing.assert_array_equal(plain[gpu, "Qwen3-8B"], other[gpu, "Qwen3-8B"])


def test_leaving_out_silicon_leaves_out_all_that_have_it() -> None:
    found = list(held_out.without_gpu(SERIES, GPUS, TRAITS, by_silicon=True))
    assert len(found) == len(SERIES)
    h100 = next(p for p in found if p.series.gpu == "H100-SXM" and p.series.model == "Qwen3-8B")
    by_type = held_out.without_gpu(SERIES, GPUS, TRAITS)
    alone = next(p for p in by_type if p.series.gpu == "H100-SXM" and p.series.model == "Qwen3-8B")
    assert not np.allclose(h100.seconds, alone.seconds, rtol=0.01)


def test_leaving_out_a_model_uses_the_types_other_models() -> None:
    found = list(held_out.without_model(SERIES, GPUS, TRAITS))
    assert len(found) == len(SERIES)
    for one in found:
        np.testing.assert_allclose(one.seconds, one.series.seconds, rtol=0.06)


def test_the_only_model_of_a_type_is_not_predicted_without_it() -> None:
    few = [one for one in SERIES if one.gpu != "T4" or one.model == "Qwen3-8B"]
    found = {(p.series.gpu, p.series.model) for p in held_out.without_model(few, GPUS, TRAITS)}
    assert ("T4", "Qwen3-8B") not in found
    assert ("L4", "Qwen3-8B") in found
