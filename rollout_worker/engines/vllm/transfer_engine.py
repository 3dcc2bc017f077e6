"""The weight-transfer backend `periplus` of a vLLM server: new elements arrive over vLLM's own routes.

A server that was started with `--weight-transfer-config '{"backend": "periplus"}'` creates it in every worker. The
routes /init_weight_transfer_engine, /start_weight_update, /update_weights and /finish_weight_update reach it. Each
update has records of the shared block (transfer_buffer.py). If the caller is on another machine, the bytes of the
block come with them, as base64 text.
"""

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from rollout_worker.engines.vllm.checkpoint_names import shard_memory
from rollout_worker.engines.vllm.shard_memory import ShardMemory
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer


@dataclass
class PeriplusInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM has no strict types
    """`path` names the shared block; it is empty if updates bring their bytes. `num_bytes` is its size."""

    path: str = ""
    num_bytes: int = 0


@dataclass
class PeriplusUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM has no strict types
    """Records of one load, and the block's bytes as base64 text unless they lie in the shared block."""

    records: list[Any] = field(default_factory=list)
    content: str = ""


class PeriplusTransferEngine(WeightTransferEngine[PeriplusInitInfo, PeriplusUpdateInfo]):  # type: ignore[misc]  # vLLM has no strict types
    """Writes into the model's parameters in place. It has nothing to prepare or to finish."""

    init_info_cls = PeriplusInitInfo
    update_info_cls = PeriplusUpdateInfo
    supports_draft_weight_update = False

    _buffer: TransferBuffer | None = None
    _memory: ShardMemory | None = None

    def init_transfer_engine(self, init_info: PeriplusInitInfo) -> None:
        """Map the shared block, or make one of the same size."""
        if init_info.path:
            self._buffer = TransferBuffer.attach(Path(init_info.path))
        else:
            self._buffer = TransferBuffer.private(init_info.num_bytes)

    def start_weight_update(self) -> None:
        """Do nothing: elements are written in place."""

    def finish_weight_update(self) -> None:
        """Do nothing: elements are written in place."""

    def receive_weights(self, update_info: PeriplusUpdateInfo) -> None:
        """Write the elements of one load. Raises: ValueError, before anything is written, for unfit records."""
        if self._buffer is None:
            raise RuntimeError("init_weight_transfer_engine must come before update_weights")
        if update_info.content:
            _, _, _, _, offset = update_info.records[0]
            self._buffer.put(base64.b64decode(update_info.content), offset)
        # The views are made once: parameters are never replaced.
        if self._memory is None:
            self._memory = shard_memory(self.model)
        self._memory.write(list(self._buffer.updates(update_info.records)))

    def shutdown(self) -> None:
        """Forget the block."""
        self._buffer = None
