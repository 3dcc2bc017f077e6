"""The tensors of an engine in memory, by checkpoint name: written in place, read back, and hashed.

Weights are bfloat16 on the wire. An engine computes with bfloat16 too, or with float32; then the low 16 bits of every
element must be zero, and an element with others is corrupt. Values are absolute, so writing them twice changes nothing.
No tensor is ever replaced by another one: kernels and captured graphs keep the addresses that they have seen.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update
from periplus.errors import CorruptFrame, WrongBase
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, WeightState


class TensorMemory:
    """Named tensors of one process, all float32 or bfloat16 and contiguous; tied weights are named once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._fits: StateLayout | None = None

    def check_fits(self, layout: StateLayout) -> None:
        """Check that a layout has these names and shapes, and BF16 only. Raises: WrongBase."""
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

    @torch.no_grad()
    def write(self, updates: Iterable[Update]) -> None:
        """Overwrite the elements that changed. Their layout must fit (`check_fits`)."""
        for update in updates:
            tensor = self._tensors[update.name]
            words, values = _words(tensor), _as_words(update.values, tensor)
            # Without positions the values replace a contiguous range.
            if update.positions is None:
                words[update.start : update.start + len(values)] = values
            else:
                words[torch.from_numpy(update.positions).to(words.device)] = values

    @torch.no_grad()
    def write_all(self, state: WeightState) -> None:
        """Overwrite all elements. The state's layout must fit (`check_fits`)."""
        for name, tensor in self._tensors.items():
            _words(tensor).copy_(_as_words(state[name].data.view(np.uint16), tensor))

    def read(self) -> WeightState:
        """Return what the tensors hold, as a mapping whose tensors are converted to bfloat16 when they are read.

        Reading a tensor raises CorruptFrame if it has an element that no publication can have written.
        """
        return _ReadBack(self._tensors)

    def digest(self) -> bytes:
        """Return the digest of what the tensors hold. One tensor at a time is converted. Raises: as `read`."""
        return state_digest(self.read())


class _ReadBack(Mapping[str, Tensor]):
    """Lazy mapping: each tensor is converted when it is read, so that a digest never holds more than one of them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return to_bf16(name, self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def to_bf16(name: str, tensor: torch.Tensor) -> Tensor:
    """Return a copy of a float32 or bfloat16 tensor in the host's memory, as bfloat16.

    Raises: CorruptFrame if a float32 element is no bfloat16 value.
    """
    words = _words(tensor).cpu().numpy()
    if tensor.dtype == torch.float32:
        # Column 0 has each element's low 16 bits, column 1 the bfloat16.
        halves = words.view("<u2").reshape(-1, 2)
        if bool(halves[:, 0].any()):
            raise CorruptFrame(f"{name} holds a value that is not a bfloat16: something else wrote the engine's memory")
        words = np.ascontiguousarray(halves[:, 1])
    return Tensor(dtype="BF16", shape=tuple(tensor.shape), data=words.view(np.uint8))


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
