"""Certificates that the record itself disproves: a placement that is better than a bound that no placement may beat."""

from collections.abc import Callable, Iterator

from bench.planner_cases.cells import Row
from bench.planner_cases.report.hetrl_tables import METHODS
from bench.planner_cases.report.records import Part

_TOLERANCE = 1e-6


def sentence(part: Part) -> str:
    """Empty where nothing contradicts itself."""
    found = [f"{name}: {why}" for name, row in part.rows.items() for why in _CHECKS.get(part.name, _nothing)(row)]
    if not found:
        return ""
    return f"**A bound here is wrong.** Placements were found that are better than what was proved: {'; '.join(found)}."


def _below(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value < bound * (1 - _TOLERANCE)


def _hetrl(row: Row) -> Iterator[str]:
    """The families have a larger plan space than the bound; what they find in ours counts."""
    found = {"our answer": row["step_s"]}
    for family in ("verl", "streamrl"):
        if row.get(f"{family}_is_in_space", family == "streamrl"):  # older records: `streamrl` had our plan space
            found[family] = row[f"{family}_step_s"]
    for method in METHODS:
        values = [value for value in row["by_time"][method].values() if value is not None]
        found[f"{method} by time"] = min(values, default=None)
    for who, value in found.items():
        if _below(value, row["bound_s"]):
            yield f"{who} {value:.6g} s, bound {row['bound_s']:.6g} s"


def _areal_hex(row: Row) -> Iterator[str]:
    for name in ("throughput", "cost"):
        ratio, low, high = (row.get(f"{name}_ratio{which}") for which in ("", "_at_least", "_at_most"))
        if _below(ratio, low) or _below(high, ratio):
            yield f"{name} ratio {ratio:.6g}, certified {low or 0:.6g} to {high or 0:.6g}"
        value = row.get(f"{name}_both")
        for fleet in ("h800", "h20"):
            if _below(row.get(f"{name}_{fleet}"), value and value * (1 - (row.get(f"{name}_gap") or 0.0))):
                yield f"{name} of {fleet} alone {row[f'{name}_{fleet}']:.6g}, of both {value:.6g}"


def _speed(row: Row) -> Iterator[str]:
    """Bounds that were reported on the way count too."""
    bounds = [bound for _, _, bound in row["trace"] if bound is not None]
    if bounds and _below(row["step_s"], max(bounds)):
        yield f"answer {row['step_s']:.6g} s, bound {max(bounds):.6g} s"


def _nothing(_row: Row) -> Iterator[str]:
    return iter(())


_CHECKS: dict[str, Callable[[Row], Iterator[str]]] = {"hetrl": _hetrl, "areal_hex": _areal_hex, "speed": _speed}
