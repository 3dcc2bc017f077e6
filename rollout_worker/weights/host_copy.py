"""The worker's copy of the weights in host memory: deltas are decoded against it, and versions are proven in it.

While the parts of a publication come, they are decoded beside the copy (`decoder`). So a publication that breaks off
leaves nothing behind. When all parts are there, `take` writes what changed into the copy and hashes the copy. If the
hash equals the digest that the trainer signed, the version is proven. Otherwise the copy has no version any more, and a
full state is needed.

Only `take` writes into the copy. The object has no lock of its own: the caller of `take` or `is_proven`, or whoever
reads `state`, must hold the reader's lock.
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
    """What the trainer signed about one version; `probe_logprobs` is empty if it ran no probe."""

    policy: Policy
    state_digest: bytes
    probe_logprobs: Sequence[float] = ()


class HostCopy:
    """One state in host memory. `version` is the version that it is proven to be, or None."""

    def __init__(self) -> None:
        self.layout = StateLayout(lines=())
        self._arrays: dict[str, npt.NDArray[np.uint8]] = {}
        self.version: Signed | None = None

    @property
    def policy(self) -> Policy | None:
        """Policy of the proven version, or None."""
        return None if self.version is None else self.version.policy

    @property
    def state_digest(self) -> bytes:
        """Digest of the proven version; empty without one."""
        return b"" if self.version is None else self.version.state_digest

    @property
    def state(self) -> WeightState:
        """The copy's tensors as views of its memory, which `take` will overwrite."""
        return {line.name: Tensor(line.dtype, line.shape, self._arrays[line.name]) for line in self.layout.lines}

    def decoder(self, opening: Opening) -> Decoder:
        """Return a decoder for the parts of this publication. The base of a delta must be the proven version.

        Raises: UnknownCodec.
        """
        base = None if opening.base is None else self.state
        return state_decoder(opening.codec)(base, max_content_bytes=opening.content_bytes, max_parts=opening.max_chunks)

    def take(self, opening: Opening, closing: Closing, staged: Staged) -> bytes:
        """Write the decoded changes into the copy, hash it, and return its digest.

        Afterwards `version` is the opening's version if the digest is the signed one, else None.
        """
        # Until the hash is found right, the copy has no version, so an error in between leaves no wrong claim.
        self.version = None
        self._fit(staged.layout)
        staged.write_into(self._arrays)
        digest = state_digest(self.state)
        if digest == closing.state_digest:
            self.version = Signed(policy=opening.policy, state_digest=digest, probe_logprobs=closing.probe_logprobs)
        return digest

    def is_proven(self) -> bool:
        """Hash the copy again, and return whether it still is what was signed. If not, it has no version any more."""
        if self.version is not None and state_digest(self.state) != self.version.state_digest:
            self.version = None
        return self.version is not None

    def forget(self) -> None:
        """Drop the version, because the copy is not trusted any more. Its memory stays for the full state to come."""
        self.version = None

    def _fit(self, layout: StateLayout) -> None:
        if layout == self.layout:
            return
        # Keep the arrays of tensors that stay the same; new ones begin as zeros.
        known = set(self.layout.lines)
        self._arrays = {
            line.name: self._arrays[line.name] if line in known else np.zeros(line.num_bytes, dtype=np.uint8)
            for line in layout.lines
        }
        self.layout = layout
