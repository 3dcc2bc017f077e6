"""Rows of `planner/data/efficiency.csv`: fitted efficiencies, and estimates for types without profiles."""

from collections.abc import Mapping, Sequence

from bench.planner_cases.calibration import parameters
from bench.planner_cases.calibration.fit import Fit
from bench.planner_cases.calibration.observations import FloatArray, Series
from bench.planner_cases.calibration.similar_types import Traits, completed

DEFAULT = "default"
"""Name of the row for types that have no row of their own."""
CPU = "cpu"
"""Name of the row for cores of a host."""
_DIGITS = 3
"""Significant digits of the table."""
_CPU_ROW = {
    "matmul_fraction": 0.5,
    "saturation_tokens": 8.0,
    "memory_fraction": 0.7,
    "link_fraction": 0.5,
    "layer_overhead_s": 200e-6,
    "collective_latency_s": 100e-6,
    "attention_fraction": 0.1,
    "attention_saturation_tokens": 64.0,
    "attention_overhead_s": 20e-6,
    "link_sharing": 0.0,
}
"""Efficiency of a core until the cores at hand are measured. Chosen by hand."""


def efficiency_rows(series: Sequence[Series], fit: Fit, traits: Mapping[str, Traits]) -> list[dict[str, str]]:
    """Return one row for each packaged type, then `cpu` and `default`.

    The row `default` has the mean over the types that inform each parameter; it is a geometric mean for parameters that
    are fitted as logarithms.
    """
    rows = [
        _row(gpu, parameters.decoded(parameters.DEVICE, completed(gpu, fit, traits)), _source(gpu, series, fit))
        for gpu in traits
    ]
    means = {
        each.name: _mean(each, [fit.devices[gpu] for gpu in sorted(fit.devices) if each.name in fit.informed[gpu]])
        for each in parameters.EFFICIENCY
    }
    rows.append(_row(CPU, _CPU_ROW, "guess until cores are probed"))
    rows.append(_row(DEFAULT, means, "mean of the profiled types"))
    return rows


def _row(gpu: str, values: Mapping[str, float], source: str) -> dict[str, str]:
    numbers = {each.name: f"{values[each.name]:.{_DIGITS}g}" for each in parameters.EFFICIENCY}
    return {"gpu": gpu, **numbers, "source": source}


def _source(gpu: str, series: Sequence[Series], fit: Fit) -> str:
    tables = sorted({one.source for one in series if one.gpu == gpu})
    if not tables:
        return "class default"
    estimated = [each.name for each in parameters.EFFICIENCY if each.name not in fit.informed[gpu]]
    return f"fitted to {', '.join(tables)}" + (f"; class default: {', '.join(estimated)}" if estimated else "")


def _mean(parameter: parameters.Parameter, vectors: Sequence[FloatArray]) -> float:
    at = parameters.DEVICE.index(parameter)
    return parameter.decoded(sum(float(x[at]) for x in vectors) / len(vectors))
