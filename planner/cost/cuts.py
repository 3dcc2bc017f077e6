"""How training cuts a model: rows of layouts, as arrays, so that thousands are priced at once. A layout is a row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from planner.answer.placement import Layout, Sharding

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

TENSOR = (1, 2, 4, 8)
PIPELINE = (1, 2, 3, 4, 6, 8, 12, 16)
DATA = tuple(sorted({2**i for i in range(15)} | {3 * 2**i for i in range(14)}))
MICRO_BATCH = (1, 2, 4, 8)
BATCH = (0, *(2**i for i in range(9)))
"""The values that layouts take."""

SHARDINGS = tuple(Sharding)
"""A sharding's code is its place."""
_CODES: Mapping[Sharding, int] = {sharding: code for code, sharding in enumerate(SHARDINGS)}
UNSHARDED, OPTIMIZER, FULL = (_CODES[each] for each in (Sharding.NONE, Sharding.OPTIMIZER, Sharding.FULL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Layouts of meshes whose units have `tensor` devices; all arrays have one entry a row."""

    tensor: int
    pipeline: IntArray
    data: IntArray
    sharding: IntArray
    recompute: BoolArray
    micro_batch: IntArray

    @property
    def num_units(self) -> IntArray:
        return self.pipeline * self.data

    def take(self, rows: npt.NDArray[np.int64] | BoolArray) -> "Cuts":
        return Cuts(
            tensor=self.tensor, pipeline=self.pipeline[rows], data=self.data[rows], sharding=self.sharding[rows],
            recompute=self.recompute[rows], micro_batch=self.micro_batch[rows],
        )  # fmt: skip

    def layout(self, row: int) -> Layout:
        return Layout(
            tensor=self.tensor, pipeline=int(self.pipeline[row]), sharding=SHARDINGS[self.sharding[row]],
            recompute=bool(self.recompute[row]), micro_batch=int(self.micro_batch[row]),
        )  # fmt: skip


def of_layout(layout: Layout, num_units: int) -> Cuts:
    """One row."""
    return _of_rows(
        layout.tensor,
        [
            (
                layout.pipeline,
                num_units // layout.pipeline,
                _CODES[layout.sharding],
                layout.recompute,
                layout.micro_batch,
            )
        ],
    )


def enumerated(*, tensor: int, most_units: int, most_layers: int, max_pipeline: int, max_data: int) -> Cuts:
    """Every layout of at most so many units that the plan space has; pairs that differ in `recompute` side by side."""
    rows: list[tuple[int, int, int, bool, int]] = []
    for pipeline, data in product(PIPELINE, DATA):
        if pipeline > min(most_layers, max_pipeline) or data > max_data or pipeline * data > most_units:
            continue
        codes = [UNSHARDED] if data == 1 else [UNSHARDED, OPTIMIZER] if pipeline > 1 else [UNSHARDED, OPTIMIZER, FULL]
        rows += [
            (pipeline, data, code, again, size) for code, size, again in product(codes, MICRO_BATCH, (False, True))
        ]
    return _of_rows(tensor, rows)


def _of_rows(tensor: int, rows: Iterable[tuple[int, int, int, bool, int]]) -> Cuts:
    table = np.array(list(rows), dtype=np.int64).reshape(-1, 5)
    return Cuts(
        tensor=tensor, pipeline=table[:, 0], data=table[:, 1], sharding=table[:, 2],
        recompute=table[:, 3].astype(bool), micro_batch=table[:, 4],
    )  # fmt: skip
