"""What runs inside vLLM's workers: methods that write, copy and hash the weights that the worker holds.

vLLM imports this module in every worker before the model is loaded, because its setting `worker_extension_cls` names
`WorkerExtension`, and adds that class to its own worker's bases. The front process calls the methods by name
(`collective_rpc`), always all ranks at once. Their names begin with `periplus_` because vLLM refuses a name that its
worker has. Arguments and results are plain values; arrays lie in the shared block (transfer_buffer.py).

Importing this module in a worker has two effects. It registers the backend through which a server takes weights
(transfer_engine.py). And it keeps weights where they are: vLLM's CPU build copies linear weights into a packed form
when it has loaded them, and leaves empty parameters. New weights would never reach the copy, and a packed head stays
old even where its embedding is written (by 0.014 nats in the mean, which a hash of the embedding cannot show). So the
packing is replaced by the plain product with the parameter itself. The front process never imports this module.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.distributed import get_world_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers import utils as linear_kernels
from vllm.platforms import current_platform

from periplus.errors import PeriplusError
from rollout_worker.engines.vllm.checkpoint_names import shard_memory
from rollout_worker.engines.vllm.shard_memory import BackgroundDigest, Digests, ShardMemory
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer


def _keep_weights(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Multiply with the parameter itself, which stays where and as it is."""
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


# For servers: the backend that `--weight-transfer-config '{"backend": "periplus"}'` names.
WeightTransferEngineFactory.register_engine(
    "periplus", "rollout_worker.engines.vllm.transfer_engine", "PeriplusTransferEngine"
)

if current_platform.is_cpu():
    assert hasattr(linear_kernels, "dispatch_cpu_unquantized_gemm"), "vLLM packs its weights somewhere else now"
    linear_kernels.dispatch_cpu_unquantized_gemm = _keep_weights


def _forget_blocks_of_ranks() -> None:
    """Remove the names of the blocks through which ranks on a CPU talk, so that none is left if this process is killed.

    vLLM removes them only when it ends in order. All ranks have mapped them when the first call of a worker comes.
    """
    if current_platform.is_cpu():
        maps = Path("/proc/self/maps").read_text()
        for name in re.findall(r"/dev/shm/vllm_dist_\S+-cpushm_\d+$", maps, re.MULTILINE):
            Path(name).unlink(missing_ok=True)  # another rank may have been faster


class WorkerExtension:
    """Methods that vLLM adds to its workers. `model_runner` is the worker's own."""

    model_runner: Any

    def periplus_describe(self) -> dict[str, Any]:
        """Return what a caller must know of this rank, as JSON values.

        `problem` says why the model cannot be updated, and is empty if it can. `processes` are the ids of this process
        and of its parent, which is vLLM's core. The rest is in the types of `WorkerDescription`.
        """
        problem, shards = "", []
        try:
            shards = [shard.to_json() for shard in self._periplus_memory().shards.values()]
        except PeriplusError as error:
            problem = str(error)
        model, scheduler = self.model_runner.model_config, self.model_runner.scheduler_config
        return {
            "problem": problem,
            "processes": [os.getpid(), os.getppid()],
            "version": vllm.__version__,
            "shards": shards,
            "logprobs_mode": str(model.logprobs_mode),
            "max_tokens": int(model.max_model_len),
            "dtype": str(model.dtype).removeprefix("torch."),
            # vLLM takes back the random numbers of such a prompt, which torch cannot do on a CPU (tried with 0.32).
            "breaks_on_parts": current_platform.is_cpu() and bool(scheduler.enable_chunked_prefill),
        }

    def periplus_attach(self, path: str) -> str:
        """Map the shared block. Return an empty text, or why there is none, as on another machine."""
        _forget_blocks_of_ranks()
        try:
            self._periplus_buffer = TransferBuffer.attach(Path(path))
        except OSError as error:
            return str(error)
        return ""

    def periplus_write(self, records: Sequence[Sequence[object]]) -> None:
        """Write the updates that lie in the shared block."""
        self._periplus_memory().write(list(self._periplus_buffer.updates(records)))

    def periplus_gather_digests(self, gathers: Sequence[Sequence[Any]]) -> Digests | str:
        """Return the digests of the tensors that this rank hashes, or what is wrong with a tensor (shard_memory.py)."""
        world = get_world_group()
        return self._periplus_memory().gathered_digests(gathers, world.rank_in_group, world.cpu_group)

    def periplus_begin_digest(self) -> None:
        """Begin to hash the tensors in a thread."""
        self._periplus_digest = BackgroundDigest(self._periplus_memory())

    def periplus_poll_digest(self, wait_s: float) -> Digests | str | None:
        """Return the digests of the tensors, None if they are not ready yet, or what is wrong with a tensor."""
        return self._periplus_digest.poll(wait_s)

    def _periplus_memory(self) -> ShardMemory:
        # The views are made once: parameters are never replaced.
        found: ShardMemory | None = getattr(self, "_periplus_shards", None)
        if found is None:
            found = self._periplus_shards = shard_memory(self.model_runner.get_model())
        return found
