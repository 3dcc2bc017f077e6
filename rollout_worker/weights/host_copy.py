"""The reader's copy of the weights in host memory: what deltas are decoded against, and where a version is proven.

A version is decoded beside the copy while its parts come (`decoder`), so that a publication that breaks off leaves
nothing behind. When all of it is there, `take` writes what changed into the copy and hashes the copy: equal to the
digest that the trainer signed is proven, anything else leaves the copy without a version, and a full state is needed.
Between two calls of `take` nobody writes into the copy, and readers of `state` may look at it.

One caller at a time: whoever calls `take`, `is_proven` or reads `state` holds the lock of the shell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.codec.registry import state_decoder
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Staged
from periplus.publication import Closing, Opening
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What the trainer says of one version."""

    policy: Policy
    state_digest: bytes
    probe_logprobs: Sequence[float] = ()


class HostCopy:
    """One state, and the version that it is proven to be (None: not proven)."""

    def __init__(self) -> None:
        self.layout = StateLayout(lines=())
        self._arrays: dict[str, npt.NDArray[np.uint8]] = {}
        self.version: Signed | None = None

    @property
    def policy(self) -> Policy | None:
        return None if self.version is None else self.version.policy

    @property
    def state_digest(self) -> bytes:
        """Digest of the proven version; empty without one."""
        return b"" if self.version is None else self.version.state_digest

    @property
    def state(self) -> WeightState:
        """Views of the copy, which `take` will write into."""
        return {line.name: Tensor(line.dtype, line.shape, self._arrays[line.name]) for line in self.layout.lines}

    def decoder(self, opening: Opening) -> Decoder:
        """For the parts of this publication; a delta's base must be the proven version. Raises: UnknownCodec."""
        base = None if opening.base is None else self.state
        return state_decoder(opening.codec)(base, max_content_bytes=opening.content_bytes, max_parts=opening.max_chunks)

    def take(self, opening: Opening, closing: Closing, staged: Staged) -> bytes:
        """Write, hash, and return the digest of what the copy then holds; `version` says whether it is as signed."""
        self.version = None
        self._fit(staged.layout)
        staged.write_into(self._arrays)
        digest = state_digest(self.state)
        if digest == closing.state_digest:
            self.version = Signed(policy=opening.policy, state_digest=digest, probe_logprobs=closing.probe_logprobs)
        return digest

    def is_proven(self) -> bool:
        """Whether the copy still is what was signed: hashed again. If not, it has no version any more."""
        if self.version is not None and state_digest(self.state) != self.version.state_digest:
            self.version = None
        return self.version is not None

    def forget(self) -> None:
        """It is not trusted any more; the memory stays for the full state that will be asked for."""
        self.version = None

    def _fit(self, layout: StateLayout) -> None:
        if layout == self.layout:
            return
        known = set(self.layout.lines)
        self._arrays = {
            line.name: self._arrays[line.name] if line in known else np.zeros(line.num_bytes, dtype=np.uint8)
            for line in layout.lines
        }
        self.layout = layout
