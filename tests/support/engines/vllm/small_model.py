"""A Qwen3 that vLLM's CPU kernels take, chains of its weights, and log-probabilities by transformers in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.codec.weights.staged import Staged
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import ChangedElements, WholeState
from trainer.checkpointing.export import final_model

VOCAB = 79
"""No multiple of 64: vLLM pads it to 128."""

EOS = 2


def small_config(*, tied: bool, num_layers: int) -> Qwen3Config:
    # Heads of 32 are the smallest that vLLM's attention takes on a CPU.
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        pad_token_id=0,
        eos_token_id=EOS,
        max_position_embeddings=512,
    )


class SmallModel:
    """Versions of the weights of one small model, and what transformers computes with them."""

    def __init__(self, *, tied: bool, num_versions: int, share: float = 0.05, num_layers: int = 2) -> None:
        torch.manual_seed(4)
        self._config = small_config(tied=tied, num_layers=num_layers)
        self._model: Any = Qwen3ForCausalLM(self._config).eval().requires_grad_(False)
        self.states = self._chain(num_versions, share)
        # Encoding takes long, during which completions of a test would end: it is done before they begin.
        self._deltas = {
            version: staged(self.states[version], self.states[version + 1]) for version in range(num_versions - 1)
        }

    def save_config(self, folder: Path) -> Path:
        self._config.save_pretrained(folder)
        return folder

    def export(self, folder: Path, *, max_file_bytes: int) -> None:
        """Write version 0 as a job exports it."""
        self._load(0)
        final_model(self._model, {}, folder, state_digest(self.states[0]), max_file_bytes=max_file_bytes)

    def whole(self, version: int) -> WholeState:
        return WholeState(layout=layout_of(self.states[version]), state=self.states[version])

    def changed(self, *versions: int) -> ChangedElements:
        """The deltas from each of these versions, which follow each other, to the next, as a reader decodes them."""
        return ChangedElements(staged=tuple(self._deltas[version] for version in versions[:-1]))

    def logprobs(self, version: int, ids: Sequence[int], temperature: float = 1.0) -> npt.NDArray[np.float64]:
        """Log-probability of each id but the first, all of them with this version."""
        return self.mixed_logprobs(((version, len(ids)),), ids, temperature)

    def logits(self, version: int, ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """Logits after each id, as T x V."""
        self._load(version)
        with torch.no_grad():
            logits_TV: npt.NDArray[np.float64] = self._model(torch.tensor([ids])).logits[0].double().numpy()
        return logits_TV

    def mixed_logprobs(
        self, runs: Sequence[tuple[int, int]], ids: Sequence[int], temperature: float = 1.0
    ) -> npt.NDArray[np.float64]:
        """The same where (version, number of ids) of the runs follow each other and keep the keys of those before.

        A run computes the keys of its own ids, and predicts the id after each of them.
        """
        cache, first, found = None, 0, []
        for version, number in runs:
            self._load(version)
            with torch.no_grad():
                part = torch.tensor([ids[first : first + number]])
                output = self._model(part, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            found.append(torch.log_softmax(output.logits[0].double() / temperature, -1))
            first += number
        logprobs_TV = torch.cat(found)[: len(ids) - 1]
        logprobs_T: npt.NDArray[np.float64] = logprobs_TV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        return logprobs_T

    def logprobs_of_head(self, version: int, head: int, ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """What is computed when the output projection is still that of the version `head`, and all else is new."""
        self._load(head)
        old = self._model.lm_head.weight.detach().clone()
        self._load(version)
        with torch.no_grad():
            logits_TV = self._model.model(torch.tensor([ids])).last_hidden_state[0] @ old.T
        logprobs_TV = torch.log_softmax(logits_TV.double(), -1)[:-1]
        logprobs_T: npt.NDArray[np.float64] = logprobs_TV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        return logprobs_T

    def add_with_other_embeddings(self, share: float, ulps: int) -> int:
        """Append version 0 with a share of the embeddings so many units in the last place larger. Return its number."""
        state = dict(self.states[0])
        name = next(name for name in state if name.endswith("embed_tokens.weight"))
        words = state[name].data.view(np.uint16).copy()
        words[np.random.default_rng(1).random(words.size) < share] += np.uint16(ulps)
        state[name] = Tensor("BF16", state[name].shape, words)
        return self.add(state)

    def add(self, state: WeightState) -> int:
        """Append a version with the same tensors. Return its number."""
        self.states.append(state)
        return len(self.states) - 1

    def change(self, base: int, new: int) -> ChangedElements:
        """The elements in which two versions differ, as a reader decodes them."""
        return ChangedElements(staged=(staged(self.states[base], self.states[new]),))

    def _chain(self, num_versions: int, share: float) -> list[WeightState]:
        """BF16 states of which the next has another value, by several per cent, in a share of its elements."""
        rng = np.random.default_rng(0)
        parameters = dict(self._model.named_parameters())
        words = {
            name: parameter.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).reshape(-1).copy()
            for name, parameter in parameters.items()
        }
        states: list[WeightState] = []
        for _ in range(num_versions):
            states.append(
                {name: Tensor("BF16", tuple(parameters[name].shape), array.copy()) for name, array in words.items()}
            )
            for array in words.values():
                changed = rng.random(array.size) < share
                changed[rng.integers(array.size)] = True
                array[changed] += rng.integers(8, 24, int(changed.sum()), dtype=np.uint16)
        return states

    def _load(self, version: int) -> None:
        for name, parameter in self._model.named_parameters():
            bits = torch.from_numpy(self.states[version][name].data.copy()).view(torch.bfloat16)
            parameter.copy_(bits.view(parameter.shape).float())


def staged(base: WeightState, new: WeightState) -> Staged:
    """What changed from one state to the next, as a reader decodes it."""
    parts = list(encode(base, new))
    decoder = Decoder(base, max_content_bytes=1 << 24, max_parts=len(parts))
    for part in parts:
        decoder.feed(part)
    return decoder.staged()
