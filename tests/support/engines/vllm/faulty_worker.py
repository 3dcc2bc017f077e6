"""vLLM's worker with faults that a test switches on: it is the extension that the tests' engines are started with."""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.distributed import get_world_group

from rollout_worker.engines.vllm.worker_extension import WorkerExtension

NAME = "tests.support.engines.vllm.faulty_worker.FaultyWorker"


class FaultyWorker(WorkerExtension):
    def faulty_tear(self) -> None:
        """The next write stops in the middle, as it does if the device fails."""
        self._faulty_tears = True

    def faulty_flip(self, name: str, element: int, rank: int | None = None) -> None:
        """Change the lowest bit of an element, as a write of somebody else does, on one rank or on all."""
        if rank in (None, get_world_group().rank_in_group):
            self._periplus_memory()._views[name].view(-1).view(torch.int16)[element] ^= 1

    def faulty_stale_head(self, is_stale: bool) -> None:
        """The head multiplies with a copy of what it holds now, as a packed head does; or with its weight again."""
        head = self.model_runner.get_model().lm_head
        if is_stale:
            old = head.weight.detach().clone()
            head.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, old, bias)
        else:
            head.cpu_linear = torch.nn.functional.linear

    def periplus_write(self, records: Sequence[Sequence[Any]]) -> None:
        if getattr(self, "_faulty_tears", False):
            self._faulty_tears = False
            super().periplus_write(records[: len(records) // 2])
            raise RuntimeError("the device failed in the middle of a write")
        super().periplus_write(records)
