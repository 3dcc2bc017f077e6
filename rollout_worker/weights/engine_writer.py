"""Writes the engine's own tensors between two batches, and reads them back to check them.

The reader proves a version in its own copy in host memory (host_copy.py). Here only the elements that changed are
written, so that generation pauses no longer than needed. Values are absolute, so writing them twice changes nothing.
Weights are bfloat16 on the wire. An engine computes with bfloat16 too, or with float32; then the low 16 bits of every
element must be zero, and an element with others is corrupt.

`check` looks only at the engine. It compares the digest of what the tensors hold, under the checkpoint's names, and the
log-probabilities that the engine computes for fixed prompts (periplus/values/probe_prompts.py). One tensor at a time is
converted for the digest, so there is no second copy of the weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update
from periplus.errors import CorruptFrame, WrongBase
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import (
    PROBE_TOLERANCE_BF16_NATS,
    PROBE_TOLERANCE_NATS,
    max_difference,
    probe_prompts,
)
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """Result of a check of the engine. `why` says what is wrong, and is empty if nothing is.

    `max_difference` is the largest difference of the probe's log-probabilities, in nats; None where the probe was not
    run.
    """

    digest: bytes
    max_difference: float | None
    why: str

    @property
    def is_sound(self) -> bool:
        """Whether the engine holds and computes what it should."""
        return not self.why


class EngineWeights:
    """The weights inside one engine. `policy` is what the engine may serve as; None: it must not serve."""

    def __init__(self, engine: Engine, probe_seed: int) -> None:
        self._engine = engine
        self._tensors = engine.tensors()
        self._prompts = probe_prompts(probe_seed, engine.vocab_size)
        # An engine that computes in bfloat16 differs more from the trainer than one in float32.
        in_bf16 = any(tensor.dtype == torch.bfloat16 for tensor in self._tensors.values())
        self._tolerance_nats = PROBE_TOLERANCE_BF16_NATS if in_bf16 else PROBE_TOLERANCE_NATS
        self._fits: StateLayout | None = None
        self.policy: Policy | None = None

    def check_fits(self, layout: StateLayout) -> None:
        """Check that a layout has the engine's names and shapes, and BF16 only. Raises: WrongBase."""
        if layout == self._fits:
            return
        # Go through the names of both sides: a tensor that only one of them has does not fit either.
        lines = {line.name: line for line in layout.lines}
        for name in sorted(self._tensors.keys() | lines.keys()):
            here, there = self._tensors.get(name), lines.get(name)
            shape = None if here is None else tuple(here.shape)
            if there is None or shape != there.shape or there.dtype != "BF16":
                found = "missing" if there is None else f"{there.dtype} {there.shape}"
                held = "no such tensor" if here is None else f"one of shape {shape}"
                raise WrongBase(
                    f"the published weights do not fit the engine: {name} is {found} in the publication, but the "
                    f"engine has {held} and takes BF16; is the model config the job's?"
                )
        self._fits = layout

    def write(self, updates: Iterable[Update]) -> None:
        """Overwrite the elements that changed. Their layout must fit the engine (`check_fits`)."""
        with torch.no_grad():
            for update in updates:
                tensor = self._tensors[update.name]
                words, values = _words(tensor), _as_words(update.values, tensor)
                # Without positions the values replace a contiguous range.
                if update.positions is None:
                    words[update.start : update.start + len(values)] = values
                else:
                    words[torch.from_numpy(update.positions).to(words.device)] = values

    def write_all(self, state: WeightState) -> None:
        """Overwrite all elements. The state's layout must fit the engine (`check_fits`)."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                _words(tensor).copy_(_as_words(state[name].data.view(np.uint16), tensor))

    def read(self) -> WeightState:
        """Return what the engine holds as a mapping whose tensors are converted to bfloat16 when they are read.

        Reading a tensor raises CorruptFrame if it has an element that no publication can have written.
        """
        return _ReadBack(self._tensors)

    def check(self, state_digest_: bytes, probe_logprobs: Sequence[float]) -> EngineCheck:
        """Check the engine against a version's digest and against the trainer's log-probabilities of the probe.

        Without `probe_logprobs` only the digest is compared.
        """
        try:
            # First the content of the tensors; reading one also finds values that no publication can have written.
            digest = state_digest(self.read())
        except CorruptFrame as error:
            return EngineCheck(digest=b"", max_difference=None, why=str(error))
        if digest != state_digest_:
            why = f"the engine's tensors have digest {digest.hex()}, the published version has {state_digest_.hex()}"
            return EngineCheck(digest=digest, max_difference=None, why=why)
        if not probe_logprobs:
            return EngineCheck(digest=digest, max_difference=None, why="")
        # The tensors are right: see whether the engine computes with them.
        found = self._engine.logprobs(self._prompts).reshape(-1).tolist()
        difference = max_difference(probe_logprobs, found)
        why = (
            ""
            if difference <= self._tolerance_nats
            else (
                f"the engine's log-probabilities of the probe differ by {difference:.3g} nats from "
                f"the trainer's (limit: {self._tolerance_nats}), though its tensors are right: "
                "it computes with others"
            )
        )
        return EngineCheck(digest=digest, max_difference=difference, why=why)


class _ReadBack(Mapping[str, Tensor]):
    """Lazy mapping: each tensor is converted when it is read, so that a digest never holds more than one of them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return _to_bf16(name, self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's own memory as a flat array of integers. Raises: ValueError for other dtypes."""
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"an engine's tensor is {tensor.dtype}; only float32 and bfloat16 can be written")
    return tensor.detach().view(-1).view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def _as_words(values: npt.NDArray[np.unsignedinteger], tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bfloat16:
        # The same bits; torch takes only writable memory without a warning.
        return torch.from_numpy(np.require(values.view(np.int16), requirements="W")).to(tensor.device)
    # As a float32, a bfloat16 is its bits in the upper half and zeros below.
    return torch.from_numpy(np.left_shift(values, 16, dtype=np.uint32).view(np.int32)).to(tensor.device)


def _to_bf16(name: str, tensor: torch.Tensor) -> Tensor:
    words = _words(tensor).cpu().numpy()
    if tensor.dtype == torch.float32:
        # Column 0 has each element's low 16 bits, column 1 the bfloat16.
        halves = words.view("<u2").reshape(-1, 2)
        if bool(halves[:, 0].any()):
            raise CorruptFrame(f"{name} holds a value that is not a bfloat16: something else wrote the engine's memory")
        words = np.ascontiguousarray(halves[:, 1])
    return Tensor(dtype="BF16", shape=tuple(tensor.shape), data=words.view(np.uint8))
