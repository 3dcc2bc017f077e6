"""Finds the checkpoint tensors inside a model of vLLM: under which names, and which part of them this rank holds.

vLLM fuses projections that read the same input: query, key and value are rows of one parameter, and so are gate and up.
Under tensor parallelism each rank has some heads of each of them. Projections back to the hidden size are divided by
columns. Embedding and head are divided by rows, after the vocabulary was padded to a multiple of 64 times the number of
ranks; padding belongs to no checkpoint tensor. A tied head is the embedding's own parameter, and appears once.

The layers are recognised by vLLM's classes, and the fused names come from the model's `packed_modules_mapping`. The
result is verified: the names and shapes must be those of the published weights, and every check of the engine hashes
the tensors under these names. This works for models whose other parameters have their checkpoint's names, and
periplus/job/architectures.py lists those that a test serves. A stage of a pipeline has only its own layers. Quantised
weights and experts are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from periplus.errors import ConfigError
from rollout_worker.engines.vllm.shard_memory import ShardMemory
from rollout_worker.engines.vllm.shards import TensorShard


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a parameter: `number` rows, which are those from `start` on of a tensor of `total` rows."""

    leaf: str | None  # replaces the module's own name, if the parameter is fused
    total: int
    start: int
    number: int


def shard_memory(model: Any) -> ShardMemory:
    """Return the weights of this rank by checkpoint name. Raises: ConfigError for a model that cannot be mapped."""
    shards: dict[str, TensorShard] = {}
    views: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            # A tied head is the same parameter a second time.
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            _check(path, kind, module, parameter)
            for shard, view in _parts(model, path, kind, module, parameter.detach()):
                if shard.name in shards:
                    raise ConfigError(f"two parameters of vLLM's model are called {shard.name}")
                shards[shard.name], views[shard.name] = shard, view
    return ShardMemory(shards, views, is_stage=get_pp_group().world_size > 1)


def _check(path: str, kind: str, module: Any, parameter: torch.Tensor) -> None:
    if parameter.numel() == 0:
        raise ConfigError(
            f"{path}.{kind} is empty: vLLM has packed it for its CPU kernels. Start its workers with this extension "
            "(worker_extension_cls), which prevents that"
        )
    if parameter.dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(f"{path}.{kind} is {parameter.dtype}: quantised weights cannot be updated; use bfloat16")
    if parameter.dim() > 2:
        raise ConfigError(f"{path}.{kind} has {parameter.dim()} dimensions ({type(module).__name__}): not supported")


def _parts(
    model: Any, path: str, kind: str, module: Any, parameter: torch.Tensor
) -> Iterator[tuple[TensorShard, torch.Tensor]]:
    if isinstance(module, RowParallelLinear) and kind == "weight":
        # All rows, and the columns of this rank.
        num_rows, width = parameter.shape
        rank, ranks = _rank(module)
        shape = (num_rows, width * ranks)
        yield _shard(f"{path}.{kind}", shape, (0, num_rows), (rank * width, (rank + 1) * width)), parameter
        return
    first = 0
    for rows in _rows(model, path, module, parameter):
        parent, _, own = path.rpartition(".")
        name = ".".join(part for part in (parent, rows.leaf or own, kind) if part)
        shape = (rows.total, *parameter.shape[1:])
        width = 1 if parameter.dim() == 1 else parameter.shape[1]
        yield (
            _shard(name, shape, (rows.start, rows.start + rows.number), (0, width)),
            parameter[first : first + rows.number],
        )
        first += rows.number


def _rows(model: Any, path: str, module: Any, parameter: torch.Tensor) -> Sequence[_Rows]:
    if isinstance(module, QKVParallelLinear):
        if _is_fused_in_checkpoint(model, path, module):
            return (_Rows(None, parameter.shape[0], 0, parameter.shape[0]),)
        rank, _ = _rank(module)
        # With fewer key heads than ranks, several ranks hold the same head.
        kv_rank = rank // module.num_kv_head_replicas
        queries = module.num_heads * module.head_size
        keys, values = module.num_kv_heads * module.head_size, module.num_kv_heads * module.v_head_size
        totals = (
            module.total_num_heads * module.head_size,
            module.total_num_kv_heads * module.head_size,
            module.total_num_kv_heads * module.v_head_size,
        )
        q, k, v = _fused(model, path, 3)
        return (
            _Rows(q, totals[0], rank * queries, queries),
            _Rows(k, totals[1], kv_rank * keys, keys),
            _Rows(v, totals[2], kv_rank * values, values),
        )
    if isinstance(module, MergedColumnParallelLinear):
        if _is_fused_in_checkpoint(model, path, module):
            return (_Rows(None, parameter.shape[0], 0, parameter.shape[0]),)
        rank, ranks = _rank(module)
        names = _fused(model, path, len(module.output_sizes))
        return [
            _Rows(name, size, rank * size // ranks, size // ranks)
            for name, size in zip(names, module.output_sizes, strict=True)
        ]
    if isinstance(module, VocabParallelEmbedding):
        held = module.shard_indices
        if held.num_added_elements:
            raise ConfigError(f"{path} has {held.num_added_elements} added tokens, which is not supported")
        start = held.org_vocab_start_index
        return (_Rows(None, module.org_vocab_size, start, held.org_vocab_end_index - start),)
    num_rows = parameter.shape[0]
    if isinstance(module, ColumnParallelLinear):
        rank, ranks = _rank(module)
        return (_Rows(None, num_rows * ranks, rank * num_rows, num_rows),)
    return (_Rows(None, num_rows, 0, num_rows),)


def _is_fused_in_checkpoint(model: Any, path: str, module: Any) -> bool:
    # Phi-3 fuses the projections itself: the model's mapping then names the parameter as its own and only part.
    own = path.rpartition(".")[2]
    mapping: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    if list(mapping.get(own, ())) != [own]:
        return False
    if _rank(module)[1] > 1:
        raise ConfigError(
            f"{path} is one tensor in the checkpoint, of which each rank has rows of several parts: not supported; set "
            "engine.tensor_parallel=1"
        )
    return True


def _fused(model: Any, path: str, number: int) -> Sequence[str]:
    mapping: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    names = mapping.get(path.rpartition(".")[2], ())
    if len(names) != number:
        raise ConfigError(f"{path} is fused from {number} tensors, but vLLM's model names {list(names)}: not supported")
    return names


def _rank(module: Any) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks among which the layer is divided."""
    if getattr(module, "tp_size", 0) == 1:  # not divided, whatever the others are
        return 0, 1
    return get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()


def _shard(name: str, shape: tuple[int, ...], rows: tuple[int, int], columns: tuple[int, int]) -> TensorShard:
    return TensorShard(
        name=name,
        shape=shape,
        row_start=rows[0],
        row_stop=rows[1],
        column_start=columns[0],
        column_stop=columns[1],
    )
