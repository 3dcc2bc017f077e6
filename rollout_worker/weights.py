"""The engine's own tensors as a state, and back: how a worker proves that it serves what the trainer published.

There is no second copy of the weights in a worker. A delta is applied to what the engine holds, and what the engine
holds afterwards is hashed; so a bit that flipped in the engine's memory is found at the next version, as is a torn
write. The engine computes in float32 with values that are bfloat16 on the wire: the low 16 bits of every element are
zero, and an element where they are not is corruption too.
"""

from collections.abc import Mapping

import numpy as np
import torch

from periplus.codec.registry import state_codec
from periplus.digest import state_digest
from periplus.errors import CorruptFrame, WrongBase
from periplus.policy import Policy
from periplus.publication import Publication, PublicationKind
from periplus.state import State, Tensor

LOW_BITS = 0xFFFF


class EngineWeights:
    """The weights inside one engine, and the policy that they are proven to be (None: not proven)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.policy: Policy | None = None

    def read(self) -> State:
        """What the engine holds. Raises: CorruptFrame for an element that no publication can have written."""
        return {name: _to_bf16(name, tensor) for name, tensor in self._tensors.items()}

    def write(self, state: State) -> None:
        """Overwrite the engine's tensors. Raises: WrongBase if names, dtypes or shapes differ from the engine's."""
        for name, tensor in self._tensors.items():
            source = state.get(name)
            found = None if source is None else (source.dtype, source.shape)
            if found != ("BF16", tuple(tensor.shape)):
                raise WrongBase(
                    f"the publication does not fit the engine: {name} is BF16 {tuple(tensor.shape)} here and {found} "
                    "there; is the model config the job's?"
                )
        for name, tensor in self._tensors.items():
            _from_bf16(tensor, state[name])

    def apply(self, publication: Publication, max_content_bytes: int) -> bytes:
        """Bring the engine to the publication's policy and return the digest of what it then holds.

        Raises: WrongBase if a delta does not start from the engine's policy; CorruptFrame. The policy is None after any
        error and after a digest that differs from the closing's: such an engine must not serve.
        """
        opening, proven = publication.opening, self.policy
        self.policy = None
        base: State | None = None
        if opening.kind is PublicationKind.DELTA:
            if proven is None or opening.base != proven:
                raise WrongBase(f"a delta from {opening.base} cannot be applied at {proven}; an anchor is needed")
            base = self.read()
        codec = state_codec(opening.codec)
        self.write(codec.decode(base, publication.payload, max_content_bytes=max_content_bytes))
        digest = state_digest(self.read())
        if digest == publication.closing.state_digest:
            self.policy = opening.policy
        return digest


def _to_bf16(name: str, tensor: torch.Tensor) -> Tensor:
    bits = tensor.detach().contiguous().view(torch.int32).numpy().view(np.uint32).reshape(-1)
    if bool((bits & LOW_BITS).any()):
        raise CorruptFrame(f"{name} holds a value that is no bfloat16: the engine's memory was changed by someone else")
    return Tensor(dtype="BF16", shape=tuple(tensor.shape), data=(bits >> 16).astype(np.uint16).view(np.uint8))


def _from_bf16(tensor: torch.Tensor, source: Tensor) -> None:
    bits = source.data.view(np.uint16).astype(np.uint32) << 16
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(bits.view(np.float32).reshape(tensor.shape)))
