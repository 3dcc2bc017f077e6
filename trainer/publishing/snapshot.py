"""Takes a version of the weights while training stands still, and completes it on the host while training goes on.

`take` is the short part, for which training waits: it rounds the weights to bfloat16, where they are. It returns a
function for the second part: given the state that was published before, it returns the new state on the host. Weights
on an accelerator are compared there first (device_snapshot.py), and so are weights that several ranks share
(sharded_snapshot.py). Training may change the weights meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from periplus.values.weight_state import WeightState
from trainer.data.adapters import published_parameters, trained_parameters
from trainer.publishing import reference_logprobs
from trainer.publishing.device_snapshot import DeviceCopy, patched
from trainer.publishing.publish import bf16_state, bf16_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A version of the weights on the host.

    `changes` holds, for each span of the codec, the ascending positions that differ from the version before, or None
    for a span that was copied whole. It is None as a whole if the two versions were not compared.
    """

    state: WeightState
    changes: Sequence[npt.NDArray[np.uint32] | None] | None = None


class Weights(Protocol):
    """The trained weights, from which versions are taken.

    Versions are taken one after the other. Complete each one before you take the next.
    """

    def first(self) -> WeightState:
        """Return the first state, on the host."""
        ...

    def take(self) -> Callable[[WeightState], Taken]:
        """Take the weights as they are now. Call the result with the state of the version before to get this one."""
        ...

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probabilities of the probe's prompts under the weights as they are now, rounded to bfloat16.

        Shapes and units are those of `reference_logprobs.logprobs`.
        """
        ...


class HostWeights:
    """Weights in the host's memory. A version is rounded at once and compared later, by the encoder.

    Weights that are not trained, beside adapters, are rounded once: all states share them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._first: WeightState = {}

    def first(self) -> WeightState:
        self._first = bf16_state(self._model)
        return self._first

    def take(self) -> Callable[[WeightState], Taken]:
        trained = {name: bf16_tensor(parameter.detach()) for name, parameter in trained_parameters(self._model)}
        taken = Taken(state={**self._first, **trained})
        return lambda base: taken

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return reference_logprobs.logprobs(self._model, ids_RP)


class DeviceWeights:
    """Weights on an accelerator. The device keeps the published state, and compares with it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._copy: DeviceCopy | None = None

    def first(self) -> WeightState:
        self._copy = DeviceCopy(dict(published_parameters(self._model)))
        return self._copy.state()

    def take(self) -> Callable[[WeightState], Taken]:
        copy = self._copy
        assert copy is not None, "the first state comes first"
        advance = copy.take()

        def completed(base: WeightState) -> Taken:
            changes = advance()
            return Taken(state=patched(base, copy, changes), changes=[change.positions for change in changes])

        return completed

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return reference_logprobs.logprobs(self._model, ids_RP)
