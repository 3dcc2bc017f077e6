"""The part of a model's weights that one of vLLM's workers holds: written in place, read back, and hashed.

The worker's own tensors are given as views by checkpoint name: the rows of the query projection inside the fused
projection, for example. A view shares memory with the parameter that the model's kernels read. No parameter is ever
replaced by another tensor, because captured graphs keep addresses.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from periplus.codec.weights.staged import Update
from periplus.errors import CorruptFrame, PeriplusError
from periplus.values.digest import tensor_digest
from periplus.values.weight_state import Tensor
from rollout_worker.engines.tensor_memory import TensorMemory, to_bf16
from rollout_worker.engines.vllm.shards import TensorShard

Digests = list[tuple[str, str]]
"""Name of each tensor, and its digest as hexadecimal text."""


class ShardMemory:
    """The shards of one rank and the views of its tensors that hold them, by checkpoint name.

    With `is_stage` it is a stage of a pipeline: updates of tensors that other stages hold do nothing.
    """

    def __init__(
        self, shards: Mapping[str, TensorShard], views: Mapping[str, torch.Tensor], *, is_stage: bool = False
    ) -> None:
        for name, shard in shards.items():
            # A view with gaps could not be written as one array; the parameters of vLLM's plain layers have none.
            if not views[name].is_contiguous() or views[name].numel() != shard.num_elements:
                raise ValueError(f"{name}: a view of shape {tuple(views[name].shape)} cannot hold {shard}")
        self.shards = shards
        self._is_stage = is_stage
        self._views = views
        self._memory = TensorMemory(views)

    def write(self, updates: Sequence[Update]) -> None:
        """Write the elements of this rank. Raises: ValueError, before anything is written, for an unfit update."""
        if self._is_stage:
            updates = [update for update in updates if update.name in self.shards]
        for update in updates:
            shard = self.shards.get(update.name)
            if shard is None:
                raise ValueError(f"no tensor is called {update.name}")
            shard.check(update)
        self._memory.write(local for update in updates for local in self.shards[update.name].local(update))
        if torch.accelerator.is_available():
            # The next step may run on another stream, and the shared block is filled again.
            torch.accelerator.synchronize()

    def digests(self) -> Digests:
        """Return the digest of each tensor, for a rank that holds them whole. Raises: CorruptFrame."""
        state = self._memory.read()
        return [(name, tensor_digest(state[name]).hex()) for name in state]

    def gathered_digests(self, gathers: Sequence[Sequence[Any]], rank: int, group: Any) -> Digests | str:
        """Send the other ranks the parts that they hash, and return the digests of the tensors that this rank hashes.

        All ranks of `group` (gloo) call it at once, with the same `gathers` (gathered_digest.py). It returns what is
        wrong with a tensor if something is. Ranks that hold the same part are compared.
        """
        problem, parts, under_way = "", {}, []
        for name, _, owner, holders in gathers:
            for holder, first, stop, left, right in holders:
                if holder == rank:
                    words, why = self._words(name)
                    problem = problem or why
                    if owner != rank:
                        under_way.append(dist.isend(torch.from_numpy(words), group=group, group_dst=owner))
                elif owner == rank:
                    words = np.empty(2 * (stop - first) * (right - left), np.uint8)
                    under_way.append(dist.irecv(torch.from_numpy(words), group=group, group_src=holder))
                else:
                    continue
                parts[name, holder] = words
        for work in under_way:
            assert work is not None, "this rank is not in the group"
            work.wait()
        found: Digests = []
        for name, shape, owner, holders in gathers:
            if owner != rank:
                continue
            whole = np.empty((shape[0], math.prod(shape[1:])), np.uint16)
            seen: dict[tuple[int, ...], int] = {}
            for holder, *bounds in holders:
                words = parts[name, holder]
                twin = seen.setdefault(tuple(bounds), holder)
                if not np.array_equal(parts[name, twin], words):
                    problem = problem or f"ranks {twin} and {holder} of vLLM hold different values of {name}"
                first, stop, left, right = bounds
                whole[first:stop, left:right] = words.view(np.uint16).reshape(stop - first, right - left)
            found.append((name, tensor_digest(Tensor("BF16", tuple(shape), whole.reshape(-1))).hex()))
        return problem or found

    def _words(self, name: str) -> tuple[npt.NDArray[np.uint8], str]:
        """Return the bytes of this rank's part, and what is wrong with it. The others wait for the bytes anyway."""
        try:
            return to_bf16(name, self._views[name]).data, ""
        except CorruptFrame as error:
            return np.zeros(2 * self._views[name].numel(), np.uint8), str(error)


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
