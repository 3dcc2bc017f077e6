"""Training layouts as arrays: one row is one way to cut a model over the devices of a mesh.

A *cut* fixes the tensor, pipeline and data-parallel degree, the sharding of the training state (ZeRO), activation
recomputation and the micro-batch. Thousands of cuts are priced by one array expression, so `Cuts` stores a column per
property. Cuts of one `Cuts` object share their tensor degree, which equals the size of a unit in devices. The constants
say which values the plan space allows; `docs/planner-model.md` describes that space.
"""

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
"""Allowed tensor-parallel degrees, and sizes of a unit in devices of one machine."""
PIPELINE = (1, 2, 3, 4, 6, 8, 12, 16)
"""Allowed numbers of pipeline stages."""
DATA = tuple(sorted({2**i for i in range(15)} | {3 * 2**i for i in range(14)}))
"""Allowed numbers of data-parallel pipelines: the powers of two up to 2^14, and three times a power of two."""
MICRO_BATCH = (1, 2, 4, 8)
"""Allowed numbers of samples in one micro-batch."""
BATCH = (0, *(2**i for i in range(9)))
"""Allowed values of `Layout.batch`, the number of sequences that a generation replica keeps running. 0 means as many as
memory holds."""

SHARDINGS = tuple(Sharding)
"""All sharding modes. Arrays store a mode as its index in this tuple."""
_CODES: Mapping[Sharding, int] = {sharding: code for code, sharding in enumerate(SHARDINGS)}
UNSHARDED, OPTIMIZER, FULL = (_CODES[each] for each in (Sharding.NONE, Sharding.OPTIMIZER, Sharding.FULL))
"""Codes of the sharding modes in arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Training layouts of units with `tensor` devices. Each array is `[num_rows]`, one entry per layout."""

    tensor: int
    pipeline: IntArray
    """Stages of one pipeline."""
    data: IntArray
    """Data-parallel pipelines."""
    sharding: IntArray
    """Index into `SHARDINGS`."""
    copies: IntArray
    """Copies of a fully sharded training state."""
    recompute: BoolArray
    """Whether the backward pass computes the activations again instead of keeping them."""
    micro_batch: IntArray
    """Samples of one micro-batch."""

    @property
    def num_units(self) -> IntArray:
        """Units that the layout occupies: one per stage of each pipeline."""
        return self.pipeline * self.data

    @property
    def shards(self) -> IntArray:
        """Pipelines over which each copy of a sharded training state is divided."""
        return self.data // self.copies

    def take(self, rows: npt.NDArray[np.int64] | BoolArray) -> "Cuts":
        """Return the selected rows; `rows` is an index array or a mask."""
        return Cuts(
            tensor=self.tensor,
            pipeline=self.pipeline[rows],
            data=self.data[rows],
            sharding=self.sharding[rows],
            copies=self.copies[rows],
            recompute=self.recompute[rows],
            micro_batch=self.micro_batch[rows],
        )

    def layout(self, row: int) -> Layout:
        """Return one row as a `Layout` value."""
        return Layout(
            tensor=self.tensor,
            pipeline=int(self.pipeline[row]),
            sharding=SHARDINGS[self.sharding[row]],
            copies=int(self.copies[row]),
            recompute=bool(self.recompute[row]),
            micro_batch=int(self.micro_batch[row]),
        )


def of_layout(layout: Layout, num_units: int) -> Cuts:
    """Return one layout on `num_units` units as a `Cuts` of a single row."""
    return _of_rows(
        layout.tensor,
        [
            (
                layout.pipeline,
                num_units // layout.pipeline,
                _CODES[layout.sharding],
                layout.copies,
                layout.recompute,
                layout.micro_batch,
            )
        ],
    )


def enumerated(
    *,
    tensor: int,
    most_units: int,
    most_layers: int,
    max_pipeline: int,
    max_data: int,
    fsdp: str | None = None,
    machine_units: int = 1,
) -> Cuts:
    """Return every layout of the plan space that needs at most `most_units` units.

    Rows `2 i` and `2 i + 1` differ only in `recompute` (first without, then with). Full sharding appears only without
    pipelining, and any sharding only with several data-parallel pipelines, as the plan space demands. `fsdp` is that of
    `Limits`, and `machine_units` are the units of one machine.
    """
    rows: list[tuple[int, int, int, int, bool, int]] = []
    for pipeline, data in product(PIPELINE, DATA):
        if pipeline > min(most_layers, max_pipeline) or data > max_data or pipeline * data > most_units:
            continue
        modes = [(_CODES[mode], copies) for mode, copies in shardings(pipeline, data, machine_units, fsdp)]
        rows += [
            (pipeline, data, *mode, again, size) for mode, size, again in product(modes, MICRO_BATCH, (False, True))
        ]
    return _of_rows(tensor, rows)


def shardings(pipeline: int, data: int, machine_units: int, fsdp: str | None) -> list[tuple[Sharding, int]]:
    """Return what `data` pipelines may do with their training state: pairs of a mode and its copies.

    Arguments are as for `enumerated`.
    """
    # One replica has nothing to shard over.
    if data == 1:
        return [(Sharding.NONE, 1)]
    if fsdp is None:
        modes = [(Sharding.NONE, 1), (Sharding.OPTIMIZER, 1)]
        # Stages keep their parameters whole.
        return modes if pipeline > 1 else [*modes, (Sharding.FULL, 1)]
    if pipeline > 1:
        return []
    machines, rest = divmod(data, machine_units)
    found = {"full": (Sharding.FULL, 1), "none": (Sharding.NONE, 1)}
    if machines > 1 and not rest:
        found["hybrid"] = (Sharding.FULL, machines)
    return list(found.values()) if fsdp == "auto" else [found.get(fsdp, found["full"])]


def _of_rows(tensor: int, rows: Iterable[tuple[int, int, int, int, bool, int]]) -> Cuts:
    table = np.array(list(rows), dtype=np.int64).reshape(-1, 6)
    return Cuts(
        tensor=tensor,
        pipeline=table[:, 0],
        data=table[:, 1],
        sharding=table[:, 2],
        copies=table[:, 3],
        recompute=table[:, 4].astype(bool),
        micro_batch=table[:, 5],
    )
