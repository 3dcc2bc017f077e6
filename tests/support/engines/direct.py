"""The torch engine's own decoder and memory without its thread, so that what happens when is decided by the test."""

from collections.abc import Sequence
from typing import Any

import torch

from periplus.codec.weights.layout import layout_of
from periplus.values.policy import Policy
from periplus.values.weight_state import WeightState
from rollout_worker.engines.engine import Completion, SampleRequest
from rollout_worker.engines.slot_decoder import SlotDecoder
from rollout_worker.engines.tensor_memory import TensorMemory


class DirectEngine:
    """Generates with a model on the CPU, one call after the other."""

    def __init__(
        self, model: Any, *, end_ids: Sequence[int], pad_id: int, prompt_tokens: int, max_new_tokens: int
    ) -> None:
        self.vocab_size = int(model.config.vocab_size)
        self._memory = TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()})
        self._decoder = SlotDecoder(
            model=model,
            end_ids=end_ids,
            pad_id=pad_id,
            num_slots=8,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            device=torch.device("cpu"),
            now_s=lambda: 0.0,
        )

    def write(self, state: WeightState, policy: Policy) -> None:
        """Write all weights, and sample as `policy` from now on."""
        self._memory.check_fits(layout_of(state))
        self._memory.write_all(state)
        self._decoder.weights_changed(policy, prefill_again=False)

    def digest(self) -> bytes:
        """Return the digest of the model's tensors."""
        return self._memory.digest()

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return the completions of all requests, in order."""
        for request in requests:
            self._decoder.submit(request)
        found: dict[str, Completion] = {}
        while not self._decoder.is_idle:
            for ended in self._decoder.step(may_begin=True):
                assert isinstance(ended.result, Completion), ended.result
                found[ended.request.request_id] = ended.result
        return [found[request.request_id] for request in requests]
