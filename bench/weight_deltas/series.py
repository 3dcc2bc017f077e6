"""Versions of real models, one optimizer step apart, as readers of a job get them; made once and kept in a folder.

    <folder>/<model>/<series>/vNNN.safetensors    the bf16 rounding of the float32 masters after NNN steps
    <folder>/<model>/<series>/series.json         what made them; written last: where it is, all versions are

Two models: the demo's (bench/weight_deltas/spelling.py) and one of 21 M parameters trained on GSM8K
(bench/weight_deltas/gsm8k.py). Each goes on at the constant rates of a series in one of two ways:

- anew: masters are what was published (bf16 values), the optimizer is fresh. A reinforcement job starts like this, from
  a checkpoint directory: masters lie in the middle of their rounding cells, so nearly nothing moves at first, and step
  50 is still young.
- resumed: masters and optimizer are the training's own. A job is like this after many steps: masters lie anywhere in
  their cells. What the optimizer remembers of the training's larger gradients fades with its betas.

The versions kept are those from which single steps and folds of eight come, early and late (`KEPT`).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.weight_deltas import gsm8k, spelling
from bench.weight_deltas.states import widened
from periplus.values.weight_state import WeightState, read_safetensors_file, write_safetensors
from trainer.publishing.publish import bf16_state, load_float32

Say = Callable[[str], None]

FOLD = 8
KEPT = (*range(2, 11), 19, 20, *range(42, 51))
SINGLES = ((4, 5), (19, 20), (49, 50))
FOLDS = ((2, 10), (42, 50))

SPELLING, GSM8K = "spelling-0.2m", "gsm8k-21m"
RL_RATES = (1e-6, 3e-6)
"""What reinforcement of large models uses."""

DENSE_RATES = (1e-4, 3e-4, 1e-3)
"""The demo's own, from its peak downward."""

DENSE_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One continuation of one model."""

    model: str
    rate: float
    resumed: bool
    steps: int

    @property
    def name(self) -> str:
        return f"lr{self.rate:.0e}".replace("e-0", "e-") + ("-resumed" if self.resumed else "")

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(version for version in KEPT if version <= self.steps)

    @property
    def singles(self) -> tuple[tuple[int, int], ...]:
        return tuple(pair for pair in SINGLES if pair[1] <= self.steps)

    @property
    def folds(self) -> tuple[tuple[int, int], ...]:
        return tuple(pair for pair in FOLDS if pair[1] <= self.steps)

    def path(self, folder: Path, version: int) -> Path:
        return folder / self.model / self.name / f"v{version:03d}.safetensors"


def sparse_series() -> tuple[Series, ...]:
    """At the rates of reinforcement."""
    return tuple(
        Series(model=model, rate=rate, resumed=resumed, steps=max(KEPT))
        for model in (SPELLING, GSM8K)
        for rate in RL_RATES
        for resumed in (False, True)
    )


def dense_series() -> tuple[Series, ...]:
    """At the demo's rates, as the demo itself goes on: with its optimizer and its masters."""
    return tuple(
        Series(model=model, rate=rate, resumed=True, steps=DENSE_STEPS)
        for model in (SPELLING, GSM8K)
        for rate in DENSE_RATES
    )


def read(folder: Path, series: Series, version: int) -> WeightState:
    """One version of a series that was made."""
    return read_safetensors_file(series.path(folder, version))


def about_all(folder: Path) -> dict[str, Any]:
    """What made the series, and the models that they start from."""
    found = {f"{one.model}/{one.name}": _about(folder, one) for one in (*sparse_series(), *dense_series())}
    return {**found, GSM8K: json.loads((folder / GSM8K / gsm8k.ABOUT).read_text())}


def _about(folder: Path, series: Series) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_about_path(folder, series).read_text())
    figures = found.pop("figures")
    return {**found, "first_figure": figures[0], "last_figure": figures[-1]}


class Continuation(Protocol):
    """A model that goes on."""

    @property
    def model(self) -> Any: ...

    def step(self, rate: float) -> float:
        """One optimizer step in place; a figure that says how it goes (loss or reward, before it)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What versions are made from. `gsm8k`: its training file; `limit_s`: of the training on it, in wall time."""

    folder: Path
    gsm8k: Path
    limit_s: float
    seed: int = 0


def make(sources: Sources, wanted: tuple[Series, ...], say: Say) -> None:
    """Makes the series that are not in the folder yet."""
    for series in wanted:
        if not _about_path(sources.folder, series).is_file():
            say(f"making {series.model}/{series.name}")
            _make(sources, series, say)


def _make(sources: Sources, series: Series, say: Say) -> None:
    going = _continuation(sources, series, say)
    figures = []
    series.path(sources.folder, 0).parent.mkdir(parents=True, exist_ok=True)
    for version in range(1, series.steps + 1):
        figures.append(going.step(series.rate))
        if version in series.kept:
            write_safetensors(series.path(sources.folder, version), bf16_state(going.model))
    found = {**asdict(series), "seed": sources.seed, "figures": [round(figure, 4) for figure in figures]}
    _about_path(sources.folder, series).write_text(json.dumps(found))


def _continuation(sources: Sources, series: Series, say: Say) -> Continuation:
    folder = sources.folder / series.model
    if series.model == SPELLING:
        checkpoints = spelling.demo_checkpoint(folder, say, seed=sources.seed)
        return spelling.Continued(checkpoints, resumed=series.resumed, seed=sources.seed)
    trained = gsm8k.trained(folder, sources.gsm8k, seed=sources.seed, limit_s=sources.limit_s, say=say)
    return Gsm8k(trained, resumed=series.resumed, seed=sources.seed + 1)


class Gsm8k:
    """The model trained on GSM8K, and one step after another from there."""

    def __init__(self, trained: gsm8k.Trained, *, resumed: bool, seed: int) -> None:
        self.model = trained.model
        self.optimizer = trained.optimizer
        if not resumed:
            load_float32(self.model, widened(bf16_state(self.model)))
            self.optimizer = gsm8k.new_optimizer(self.model)
        self._batches: Iterator[Any] = gsm8k.windows(trained.texts.train, seed)

    def step(self, rate: float) -> float:
        return gsm8k.update(self.model, self.optimizer, next(self._batches), rate)


def _about_path(folder: Path, series: Series) -> Path:
    return series.path(folder, 0).with_name("series.json")
