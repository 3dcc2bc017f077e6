"""Predictions of rows that the numbers behind them were not fitted to.

- Leaving out one model: the type's numbers come from its rows of all other models. A type that has rows of one model
  only has nothing left then; its rows count in the other split alone. Matrix products and attention kernels belong to
  no model: a quarter of their shapes is left out at a time.
- Leaving out one type: none of its rows are seen, in any table; its numbers are those of its kin (`kin`).

Everything is fitted again each time, what programs have in common too, without what is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.calibration import parameters
from planner.calibration.fit import Fit, fit_all
from planner.calibration.kin import Traits, completed, expected
from planner.calibration.observations import FloatArray, Series, Term
from planner.calibration.predict import predicted_s
from planner.question.hardware import GpuType

_KINDS: tuple[frozenset[Term], ...] = (
    frozenset({Term.PREFILL_LAYER, Term.DECODE_LAYER, Term.DENSE_LAYER}),
    frozenset({Term.TRAIN_FORWARD, Term.TRAIN_BACKWARD, Term.HEAD, Term.UPDATE}),
    frozenset({Term.MATMUL}),
    frozenset({Term.PREFILL_ATTENTION, Term.DECODE_ATTENTION}),
    frozenset({Term.COLLECTIVE}),
)
"""Terms that inform each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One series and its predictions."""

    series: Series
    seconds: FloatArray


def in_sample(series: Sequence[Series], gpus: Mapping[str, GpuType], fit: Fit) -> Iterator[Predicted]:
    """By the numbers that were fitted to the same rows."""
    for one in series:
        yield _predicted(one, gpus, fit, fit.devices[one.gpu])


def without_model(
    series: Sequence[Series], gpus: Mapping[str, GpuType], traits: Mapping[str, Traits]
) -> Iterator[Predicted]:
    """Leaving out one model at a time."""
    for model in sorted({one.model for one in series if one.model}):
        rest = [one for one in series if one.model != model]
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
    """Leaving out one device type at a time, or all types with the same chip."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(traits[one.gpu].silicon if by_silicon else one.gpu, []).append(one)
    for _, left in sorted(groups.items()):
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
