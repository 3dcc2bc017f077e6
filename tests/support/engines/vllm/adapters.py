"""Versions of low-rank adapters over one small model, as a trainer publishes them, and what they merge to."""

import numpy as np
import torch

from periplus.codec.weights.layout import layout_of
from periplus.values.digest import state_digest
from periplus.values.low_rank import adapters_of
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import ChangedElements, WholeState
from rollout_worker.weights.host_copy import Signed
from tests.support.engines.vllm.small_model import VOCAB, SmallModel, staged

RANK, SCALE, PROBE_SEED = 2, 1.5, 3

ADAPTED = tuple(
    f"model.layers.{layer}.{name}.weight"
    for layer in (0, 1)
    for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
)
"""Among them layers that vLLM fuses with others, and layers of which a rank holds columns."""


class AdapterVersions:
    """`states` are what is published: version 0 of a model under adapters of which every version has others.

    In version 0 the second matrices are zero, as at the start of training.
    """

    def __init__(self, model: SmallModel, num_versions: int) -> None:
        rng = np.random.default_rng(7)
        self._model = model
        self.states: list[WeightState] = []
        self._merged: list[int] = []  # numbers of the model's own versions
        for version in range(num_versions):
            state = dict(model.states[0])
            for weight in ADAPTED:
                rows, columns = state[weight].shape
                a, b = adapters_of(weight)
                state[a] = _bf16(torch.from_numpy(rng.normal(0, 0.3, (RANK, columns))))
                state[b] = _bf16(torch.from_numpy(rng.normal(0, 0.1 if version else 0.0, (rows, RANK))))
            self.states.append(state)
            self._merged.append(model.add(_with_products(model.states[0], state)))
        self._deltas = [staged(*pair) for pair in zip(self.states, self.states[1:], strict=False)]

    def whole(self, version: int) -> WholeState:
        return WholeState(layout=layout_of(self.states[version]), state=self.states[version])

    def changed(self, version: int) -> ChangedElements:
        """The change to a version from the one before, as a reader decodes it."""
        return ChangedElements(staged=(self._deltas[version - 1],))

    def number(self, version: int) -> int:
        """Number under which the model has this version's merge, by matrix products of torch."""
        return self._merged[version]

    def signed(self, version: int) -> Signed:
        """What a trainer signs: the digest of base and adapters, and log-probabilities of the merged model."""
        prompts = probe_prompts(PROBE_SEED, VOCAB).tolist()
        values = np.concatenate([self._model.logprobs(self.number(version), row) for row in prompts])
        return Signed(
            policy=Policy(0, version),
            state_digest=state_digest(self.states[version]),
            probe_logprobs=values.tolist(),
        )


def _with_products(base: WeightState, state: WeightState) -> WeightState:
    merged = dict(base)
    for weight in ADAPTED:
        a, b = (_float32(state[name]) for name in adapters_of(weight))
        merged[weight] = _bf16(_float32(base[weight]) + SCALE * (b @ a))
    return merged


def _float32(tensor: Tensor) -> torch.Tensor:
    return torch.from_numpy(tensor.data.copy()).view(torch.bfloat16).view(tensor.shape).float()


def _bf16(values: torch.Tensor) -> Tensor:
    words = values.float().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).reshape(-1)
    return Tensor("BF16", tuple(values.shape), words.copy())
