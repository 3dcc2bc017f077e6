"""Checks an engine against a version that the trainer signed: what it holds, and what it computes with.

The digest covers the engine's own tensors under the checkpoint's names. The probe compares log-probabilities that the
engine computes for fixed prompts with the trainer's (periplus/values/probe_prompts.py, which also says how the limits
were found). It judges the mean difference. The first whole state is held against how much the trainer's own values
change in bfloat16. If it passes, it gives the *baseline*: how far this engine is from the trainer when it is sound.
Later checks are held against a multiple of it, so that a fault shows that is about as small as the engine's rounding.
An engine with room beside its slots also decodes a few tokens, as completions are decoded, and computes them again as a
prompt: on a GPU these are other kernels, and captured graphs, which no prompt uses. Both may differ by what a first
probe may.

The baseline stays for the life of the engine. If rounding ever grew beyond the limit without a fault, repairs would not
help, and the worker's process would end and begin with a new baseline.
"""

from dataclasses import dataclass

import numpy as np

from periplus.errors import CorruptFrame
from periplus.values.probe_prompts import (
    NUM_TOKENS,
    PROBE_LIMITS_BF16,
    PROBE_LIMITS_FLOAT32,
    ProbeDifference,
    probe_difference,
    probe_prompts,
)
from rollout_worker.engines.engine import Engine
from rollout_worker.weights.host_copy import Signed

DECODED_AFTER, NUM_DECODED = NUM_TOKENS // 2, NUM_TOKENS - NUM_TOKENS // 2
"""Tokens of each prompt after which the engine decodes, and tokens that it decodes: together a prompt of the probe, for
which every engine has room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """Result of a check of the engine. `why` says what is wrong, and is empty if nothing is.

    `digest` is that of the engine's tensors; empty if they could not be read. `difference` is the probe's; None where
    the probe was not run.
    """

    digest: bytes
    difference: ProbeDifference | None
    why: str

    @property
    def is_sound(self) -> bool:
        """Whether the engine holds and computes what it should."""
        return not self.why


class EngineChecker:
    """Checks one engine. `baseline` is the probe's relative difference at the first state that passed, or None.

    `relative_rounding` is the trainer's own (periplus/values/probe_prompts.py), or None if it was not measured.
    """

    def __init__(self, engine: Engine, probe_seed: int, relative_rounding: float | None = None) -> None:
        self._engine = engine
        self._rounding = relative_rounding
        self._prompts = probe_prompts(probe_seed, engine.vocab_size)
        # An engine that computes in bfloat16 differs more from the trainer than one in float32.
        self._limits = PROBE_LIMITS_BF16 if engine.computes_in_bfloat16 else PROBE_LIMITS_FLOAT32
        self.baseline: float | None = None

    async def check(self, signed: Signed) -> EngineCheck:
        """Compare the engine with a version. Without signed log-probabilities only the digest is compared.

        Requests may be under way. Raises: EngineDied.
        """
        try:
            # First the content of the tensors; reading one also finds values that no publication can have written.
            digest = await self._engine.digest()
        except CorruptFrame as error:
            return EngineCheck(digest=b"", difference=None, why=str(error))
        if digest != signed.state_digest:
            why = f"the engine's tensors have digest {digest.hex()}, the published version has "
            return EngineCheck(digest=digest, difference=None, why=why + signed.state_digest.hex())
        if not signed.probe_logprobs:
            return EngineCheck(digest=digest, difference=None, why="")
        # The tensors are right: see whether the engine computes with them.
        found = (await self._engine.logprobs(self._prompts)).reshape(-1).tolist()
        difference = probe_difference(signed.probe_logprobs, found)
        limit_nats = self._limits.of(self.baseline, difference.spread, self._rounding)
        if difference.mean <= limit_nats and difference.max <= self._limits.max_nats:
            # It computes prompts with them. See whether it decodes as it computes prompts.
            why = await self._decoding_fault(self._limits.of(None, difference.spread, self._rounding))
            if not why and self.baseline is None:
                self.baseline = difference.relative
            return EngineCheck(digest=digest, difference=difference, why=why)
        why = (
            f"the engine's log-probabilities of the probe differ by {difference.mean:.3g} nats in the mean from the "
            f"trainer's (limit: {limit_nats:.3g}) and by {difference.max:.3g} at most (limit: "
            f"{self._limits.max_nats:.3g}), though its tensors are right: it computes with others"
        )
        return EngineCheck(digest=digest, difference=difference, why=why)

    async def _decoding_fault(self, limit_nats: float) -> str:
        """Return how decoded tokens differ from the engine's own prefill of the same tokens; empty if they do not."""
        prompts = self._prompts[:, :DECODED_AFTER]
        decoded = await self._engine.continuations(prompts, NUM_DECODED)
        if decoded is None:
            return ""
        prefilled = await self._engine.logprobs(np.concatenate([prompts, decoded.token_ids], axis=1))
        mean_nats = float(np.abs(prefilled[:, DECODED_AFTER - 1 :] - decoded.logprobs).mean())
        if mean_nats <= limit_nats:
            return ""
        return (
            f"decoded tokens have log-probabilities that differ by {mean_nats:.3g} nats in the mean from those of the "
            f"engine's own prefill of them (limit: {limit_nats:.3g}): it decodes with other weights or kernels"
        )
