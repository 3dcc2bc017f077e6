"""Signed versions of any states, as a trainer and as a gateway with a copy make them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from periplus.codec.frame import CodecId
from periplus.codec.weights.encoder import encode
from periplus.publication import (
    Attestation,
    Publication,
    PublicationKind,
    PublisherKey,
    Trust,
    bundle_parts,
    derived_publication,
    signed_publication,
)
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from tests.support.keys import AUTHORITY

JOB = "job-1"


@dataclass
class Versions:
    """Signed versions of one fork: `states[i]` is version `first + i`. `probe` gives a state's log-probabilities."""

    states: list[WeightState]
    fork: int = 0
    first: int = 0
    probe: Callable[[WeightState], Sequence[float]] = lambda state: ()
    key: PublisherKey = field(default_factory=PublisherKey.generate)

    def __post_init__(self) -> None:
        self.certificate = AUTHORITY.certify(JOB, self.fork, self.key.public_key)
        self.trust = Trust(AUTHORITY.public_key, JOB)

    def policy(self, index: int) -> Policy:
        return Policy(self.fork, self.first + index)

    def digest(self, index: int) -> bytes:
        return state_digest(self.states[index])

    def bundle(self, payload: bytes = b"bundle", codec: CodecId = CodecId.FILES_ZSTD) -> Publication:
        return signed_publication(
            self.key,
            self.certificate,
            job_id=JOB,
            kind=PublicationKind.BUNDLE,
            policy=self.policy(0),
            codec=codec,
            content_bytes=1 << 24,
            parts=bundle_parts(payload),
        )

    def anchor(self, index: int) -> Publication:
        return self._signed(index, None)

    def delta(self, base: int, index: int) -> Publication:
        return self._signed(index, base)

    def chain(self, start: int, end: int) -> list[Publication]:
        return [self.delta(index, index + 1) for index in range(start, end)]

    def derived_anchor(self, index: int) -> Publication:
        return self._derived(index, None, self.states[index])

    def derived_delta(self, base: int, index: int, made: WeightState | None = None) -> Publication:
        """Return a derived delta. `made` is the state that it really leads to, by default the right one."""
        return self._derived(index, base, self.states[index] if made is None else made)

    def _signed(self, index: int, base: int | None) -> Publication:
        new = self.states[index]
        return signed_publication(
            self.key,
            self.certificate,
            job_id=JOB,
            kind=_kind(base),
            policy=self.policy(index),
            base=None if base is None else self.policy(base),
            base_digest=b"" if base is None else self.digest(base),
            codec=CodecId.WEIGHTS,
            content_bytes=content_bytes(new),
            state_digest=state_digest(new),
            parts=encode(None if base is None else self.states[base], new),
            probe=self.probe(new),
        )

    def _derived(self, index: int, base: int | None, made: WeightState) -> Publication:
        target = self.anchor(index)
        return derived_publication(
            Attestation(opening=target.opening, closing=target.closing),
            kind=_kind(base),
            base=None if base is None else self.policy(base),
            base_digest=b"" if base is None else self.digest(base),
            parts=encode(None if base is None else self.states[base], made),
        )


def _kind(base: int | None) -> PublicationKind:
    return PublicationKind.ANCHOR if base is None else PublicationKind.DELTA


def small_states(num_versions: int, *, seed: int = 0, num_elements: int = 3000) -> list[WeightState]:
    """Return BF16 states of three tensors; a hundredth of the elements changes from one to the next."""
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (num_elements // 10, 10), "b.weight": (num_elements,), "norm": (7,)}
    values = {name: _bf16(rng.normal(0, 0.05, shape)) for name, shape in shapes.items()}
    states: list[WeightState] = []
    for _ in range(num_versions):
        states.append({name: Tensor("BF16", shapes[name], array.copy()) for name, array in values.items()})
        for array in values.values():
            changed = rng.random(array.size) < 0.01
            changed[rng.integers(array.size)] = True
            array[changed] ^= rng.integers(1, 4, int(changed.sum()), dtype=np.uint16)
    return states


def flipped(state: WeightState, name: str, element: int = 0) -> WeightState:
    """Return the state with one bit of one element flipped."""
    data = state[name].data.copy()
    data[2 * element] ^= 1
    return {**state, name: replace(state[name], data=data)}


def _bf16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(-1)
