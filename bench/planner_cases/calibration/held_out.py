"""Cross-validation: predict rows with parameters that were not fitted to them.

- Leaving out one model (`without_model`): a type's parameters come from its rows of all other models. Rows of a type
  that has one model only are skipped, since nothing would be left to fit. Matrix products and attention kernels belong
  to no model; there a quarter of their shapes is left out at a time.
- Leaving out one device type (`without_gpu`): the fit sees none of its rows, and its parameters are estimated from
  similar types (`similar_types`).

Each time everything is fitted again without the rows that are left out, including what the programs share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.planner_cases.calibration import parameters
from bench.planner_cases.calibration.fit import Fit, fit_all
from bench.planner_cases.calibration.observations import FloatArray, MeasuredTerm, Series
from bench.planner_cases.calibration.predict import predicted_s
from bench.planner_cases.calibration.similar_types import Traits, completed, expected
from planner.problem.hardware import GpuType

_KINDS: tuple[frozenset[MeasuredTerm], ...] = (
    frozenset({MeasuredTerm.PREFILL_LAYER, MeasuredTerm.DECODE_LAYER, MeasuredTerm.DENSE_LAYER}),
    frozenset({MeasuredTerm.TRAIN_FORWARD, MeasuredTerm.TRAIN_BACKWARD, MeasuredTerm.HEAD, MeasuredTerm.UPDATE}),
    frozenset({MeasuredTerm.MATMUL}),
    frozenset({MeasuredTerm.PREFILL_ATTENTION, MeasuredTerm.DECODE_ATTENTION}),
    frozenset({MeasuredTerm.COLLECTIVE}),
)
"""Sets of terms that inform each other: a row can be predicted if the type has other rows of the same set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One series with its predicted seconds."""

    series: Series
    seconds: FloatArray


def in_sample(series: Sequence[Series], gpus: Mapping[str, GpuType], fit: Fit) -> Iterator[Predicted]:
    """Yield predictions of all series by the parameters that were fitted to the same rows."""
    for one in series:
        yield _predicted(one, gpus, fit, fit.devices[one.gpu])


def without_model(
    series: Sequence[Series], gpus: Mapping[str, GpuType], traits: Mapping[str, Traits]
) -> Iterator[Predicted]:
    """Yield predictions of all series, leaving out one model at a time."""
    for model in sorted({one.model for one in series if one.model}):
        rest = [one for one in series if one.model != model]
        # Only series whose type has rows of this kind left to be fitted to.
        left = [one for one in series if one.model == model and _has_kind(rest, one)]
        if not left:
            continue
        folded = fit_all(rest, gpus)
        for one in left:
            yield _predicted(one, gpus, folded, completed(one.gpu, folded, traits))


def without_gpu(
    series: Sequence[Series],
    gpus: Mapping[str, GpuType],
    traits: Mapping[str, Traits],
    *,
    by_silicon: bool = False,
) -> Iterator[Predicted]:
    """Yield predictions of all series, leaving out one device type at a time.

    With `by_silicon`, all types with the same chip are left out together.
    """
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(traits[one.gpu].silicon if by_silicon else one.gpu, []).append(one)
    for _, left in sorted(groups.items()):
        # Types with the same silicon would reveal each other's parameters, so a group is left out as a whole.
        names = {one.gpu for one in left}
        folded = fit_all([one for one in series if one.gpu not in names], gpus)
        for one in left:
            yield _predicted(one, gpus, folded, expected(one.gpu, folded, traits))


def _has_kind(rest: Sequence[Series], one: Series) -> bool:
    kind = next(kind for kind in _KINDS if one.term in kind)
    return any(other.gpu == one.gpu and other.term in kind for other in rest)


def _predicted(one: Series, gpus: Mapping[str, GpuType], fit: Fit, numbers: FloatArray) -> Predicted:
    program = parameters.program(fit.program)
    seconds = predicted_s(one, gpus[one.gpu], parameters.device_fit(numbers), program)
    return Predicted(series=one, seconds=seconds)
