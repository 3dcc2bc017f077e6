"""The part of a model's weights that one of vLLM's workers holds: written in place, read back, and hashed.

The worker's own tensors are given as views by checkpoint name: the rows of the query projection inside the fused
projection, for example. A view shares memory with the parameter that the model's kernels read. No parameter is ever
replaced by another tensor, because captured graphs keep addresses.
"""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from periplus.codec.weights.staged import Update
from periplus.errors import PeriplusError
from periplus.values.digest import tensor_digest
from rollout_worker.engines.tensor_memory import TensorMemory, to_bf16
from rollout_worker.engines.vllm.shards import TensorShard

Digests = list[tuple[str, str]]
"""Name of each tensor, and its digest as hexadecimal text."""


class ShardMemory:
    """The shards of one rank and the views of its tensors that hold them, by checkpoint name."""

    def __init__(self, shards: Mapping[str, TensorShard], views: Mapping[str, torch.Tensor]) -> None:
        for name, shard in shards.items():
            # A view with gaps could not be written as one array; the parameters of vLLM's plain layers have none.
            if not views[name].is_contiguous() or views[name].numel() != shard.num_elements:
                raise ValueError(f"{name}: a view of shape {tuple(views[name].shape)} cannot hold {shard}")
        self.shards = shards
        self._views = views
        self._memory = TensorMemory(views)

    def write(self, updates: Sequence[Update]) -> None:
        """Write the elements of this rank. Raises: ValueError, before anything is written, for an unfit update."""
        for update in updates:
            shard = self.shards.get(update.name)
            if shard is None:
                raise ValueError(f"no tensor is called {update.name}")
            shard.check(update)
        self._memory.write(local for update in updates for local in self.shards[update.name].local(update))
        if torch.accelerator.is_available():
            # The next step may run on another stream, and the shared block is filled again.
            torch.accelerator.synchronize()

    def copy_rows(self, name: str, first: int, stop: int, out: npt.NDArray[np.uint16]) -> None:
        """Copy what this rank holds of the rows [first, stop) of a tensor to its place among these rows.

        *Shapes*: `out` has (stop - first) x columns of the whole tensor. Raises: CorruptFrame, as `TensorMemory.read`.
        """
        shard = self.shards[name]
        low, high = max(first, shard.row_start), min(stop, shard.row_stop)
        width = shard.column_stop - shard.column_start
        if low >= high or not width:
            return
        rows = self._views[name].reshape(-1, width)[low - shard.row_start : high - shard.row_start]
        words = to_bf16(name, rows).data.view(np.uint16).reshape(-1, width)
        out[low - first : high - first, shard.column_start : shard.column_stop] = words

    def digests(self) -> Digests:
        """Return the digest of each tensor, for a rank that holds them whole. Raises: CorruptFrame."""
        state = self._memory.read()
        return [(name, tensor_digest(state[name]).hex()) for name in state]


class BackgroundDigest:
    """Hashes the tensors in a thread, while the worker goes on to generate: only a swap changes them."""

    def __init__(self, memory: ShardMemory) -> None:
        self._found: Digests | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(memory,), name="periplus-digest", daemon=True)
        self._thread.start()

    def _run(self, memory: ShardMemory) -> None:
        try:
            self._found = memory.digests()
        except Exception as error:  # whatever it is, the caller asks for it
            self._error = error

    def poll(self, wait_s: float) -> Digests | str | None:
        """Return the digests, None if they are not ready, or the text of what is wrong with a tensor.

        It waits at most `wait_s`. Raises: what else went wrong in the thread.
        """
        self._thread.join(wait_s)
        if isinstance(self._error, PeriplusError):
            return str(self._error)
        if self._error is not None:
            raise self._error
        return self._found
