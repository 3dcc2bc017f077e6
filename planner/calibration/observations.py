"""What published profiles measured, as series that `planner.device` can be asked for.

A series is what one table has of one kind of time, on one device type, for one model: arrays of what varied and of the
measured seconds. Nothing here knows where a table lies (`loaders`) or how a time is predicted (`predict`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.question.architecture import Architecture

FloatArray = npt.NDArray[np.float64]


class Term(StrEnum):
    """Kinds of times. Layers are what plans are made of; kernels are parts of layers, collectives are beside them."""

    PREFILL_LAYER = "prefill layer"
    DECODE_LAYER = "decode layer"
    DENSE_LAYER = "dense layer"
    """A layer without attention: every kernel of it, measured one by one."""
    TRAIN_FORWARD = "training forward"
    TRAIN_BACKWARD = "training backward"
    HEAD = "head and loss"
    UPDATE = "optimizer update"
    MATMUL = "matrix product"
    PREFILL_ATTENTION = "prefill attention"
    DECODE_ATTENTION = "decode attention"
    COLLECTIVE = "collective"


LAYERS = (
    Term.PREFILL_LAYER, Term.DECODE_LAYER, Term.DENSE_LAYER, Term.TRAIN_FORWARD, Term.TRAIN_BACKWARD, Term.HEAD,
    Term.UPDATE,
)  # fmt: skip


class Numerics(StrEnum):
    """What matrices are multiplied in. Float32 runs may use tensor cores at reduced precision (TF32)."""

    HALF = "half"
    TENSOR32 = "tf32"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Rows of one table that differ in numbers only."""

    term: Term
    source: str
    gpu: str
    """A name of `planner.catalogue.gpu_types`."""
    model: str
    """What is left out at a time: a language model, a shape of heads or matrices; empty: of no model."""
    arch: Architecture | None
    tensor: int
    numerics: Numerics
    columns: Mapping[str, FloatArray]
    """`tokens`, `sequence`, `context`...: as the term's prediction asks for them."""
    seconds: FloatArray
    link_bytes_per_s: float | None = None
    """What was measured from one device of that machine to another; None: take the type's nominal link."""
    variant: str = ""
    """What tells two kinds of rows of a term apart: which collective, forward or backward."""

    def __len__(self) -> int:
        return len(self.seconds)
