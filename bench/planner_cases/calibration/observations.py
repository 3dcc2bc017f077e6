"""Observations: measured seconds of published profiles, in a form that `planner.devices` can predict.

A *series* holds the rows of one table for one kind of time, one device type and one model: arrays of the sizes that
varied, and an array of measured seconds. This module knows neither where tables lie (`loaders`) nor how seconds are
predicted (`predict`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.problem.architecture import Architecture

FloatArray = npt.NDArray[np.float64]
"""Array of float64."""


class MeasuredTerm(StrEnum):
    """What a measured time is the time of.

    Plans are made of times of layers. Kernels are parts of layers; collectives come in addition.
    """

    PREFILL_LAYER = "prefill layer"
    DECODE_LAYER = "decode layer"
    DENSE_LAYER = "dense layer"
    """A layer without attention, as the sum of its kernels, each measured by itself."""
    TRAIN_FORWARD = "training forward"
    TRAIN_BACKWARD = "training backward"
    HEAD = "head and loss"
    UPDATE = "optimizer update"
    MATMUL = "matrix product"
    PREFILL_ATTENTION = "prefill attention"
    DECODE_ATTENTION = "decode attention"
    COLLECTIVE = "collective"


LAYERS = (
    MeasuredTerm.PREFILL_LAYER,
    MeasuredTerm.DECODE_LAYER,
    MeasuredTerm.DENSE_LAYER,
    MeasuredTerm.TRAIN_FORWARD,
    MeasuredTerm.TRAIN_BACKWARD,
    MeasuredTerm.HEAD,
    MeasuredTerm.UPDATE,
)
"""Terms that are whole layers, heads or updates."""


class Numerics(StrEnum):
    """Precision of matrix products. Runs in float32 may use tensor cores at reduced precision (TF32)."""

    HALF = "half"
    TENSOR32 = "tf32"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Rows of one table that differ only in their numbers."""

    term: MeasuredTerm
    source: str
    gpu: str
    """Name of the device type in `planner.devices.catalogue.gpu_types`."""
    model: str
    """Unit that cross-validation leaves out at a time: a language model, or a set of shapes. Empty if there is none."""
    arch: Architecture | None
    tensor: int
    """Number of devices that share the work."""
    numerics: Numerics
    columns: Mapping[str, FloatArray]
    """Arrays by name, `[num_rows]` each: `tokens`, `sequence`, `context` and others, as the term's prediction needs."""
    seconds: FloatArray
    """Measured seconds, `[num_rows]`."""
    link_bytes_per_s: float | None = None
    """Measured rate from one device of that machine to another. None if the nominal link of the type applies."""
    variant: str = ""
    """Distinguishes rows of one term: the kind of collective, or forward from backward."""

    def __len__(self) -> int:
        return len(self.seconds)
