"""The weights of a version, taken while training stands still, and made a state on the host afterwards.

Taking is short: rounding on the host, or rounding and comparing on the device where the masters are (compact.py). What
comes of it needs the state that was published before, and may be done while training goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from periplus.values.weight_state import WeightState
from trainer.publishing.device_snapshot import DeviceCopy, patched
from trainer.publishing.publish import bf16_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A version on the host. `changes`: by span of the codec, the positions that differ from the version before, or
    None where they are not known; None if nobody compared."""

    state: WeightState
    changes: Sequence[npt.NDArray[np.uint32] | None] | None = None


class Weights(Protocol):
    """Where the masters live. Versions are taken one after the other, and each is finished before the next is taken."""

    def first(self) -> WeightState:
        """The state to start from, on the host."""
        ...

    def take(self) -> Callable[[WeightState], Taken]:
        """What the masters are now; to be called with the state that was taken before."""
        ...


class HostWeights:
    """In the host's memory."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def first(self) -> WeightState:
        return bf16_state(self._model)

    def take(self) -> Callable[[WeightState], Taken]:
        taken = Taken(state=bf16_state(self._model))
        return lambda base: taken


class DeviceWeights:
    """On an accelerator."""

    def __init__(self, model: Any) -> None:
        self._copy = DeviceCopy(dict(model.named_parameters()))

    def first(self) -> WeightState:
        return self._copy.state()

    def take(self) -> Callable[[WeightState], Taken]:
        changes = self._copy.advance()
        positions = [change.positions for change in changes]
        return lambda base: Taken(state=patched(base, self._copy, changes), changes=positions)


def weights_of(model: Any) -> Weights:
    """Return the kind of snapshot that suits the device that the model is on."""
    is_on_host = all(parameter.device.type == "cpu" for parameter in model.parameters())
    return HostWeights(model) if is_on_host else DeviceWeights(model)
