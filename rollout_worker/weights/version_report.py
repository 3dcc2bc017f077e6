"""The report of a worker about one version of the weights: made of what the host copy and the engine's check found."""

from dataclasses import dataclass

from periplus.values.policy import Policy
from periplus.values.probe_prompts import ProbeDifference
from rollout_worker.weights.engine_check import EngineCheck
from rollout_worker.weights.host_copy import Signed
from rollout_worker.weights.pending_versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """What this worker tells the trainer about one version of the weights.

    `ok`: the weights have the signed digest; else `why` says what is wrong. `state_digest`: digest of what was found.
    `engine_checked`: the digest is that of the engine's own tensors, and the probe was run. `probe_mean_difference` and
    `probe_max_difference`: mean and largest difference of the probe's log-probabilities from the trainer's, in nats; 0
    without a probe. `transfer_s`: seconds from the opening to the closing. `apply_s`: seconds of decoding and writing
    the host copy. `pause_s`: seconds without generation, as in SwapReport; after a repair, seconds without service.
    `fallback`: the version came as a derived publication, or after a failure, and not by the plain chain.
    `generation_s`: seconds since the process began in which the engine had a request under way; the worker adds them.
    """

    policy: Policy
    state_digest: bytes
    ok: bool
    why: str = ""
    engine_checked: bool = False
    probe_mean_difference: float = 0.0
    probe_max_difference: float = 0.0
    transfer_s: float = 0.0
    apply_s: float = 0.0
    pause_s: float = 0.0
    fallback: bool = False
    generation_s: float = 0.0

    @classmethod
    def of(cls, version: Version, *, pause_s: float = 0.0, finding: EngineCheck | None = None) -> "VersionReport":
        """Return the report of a version that the engine holds, or skipped on its way to a newer one."""
        # Without a finding the digest is that of the host copy, in which the version was proven.
        return cls(
            policy=version.signed.policy,
            state_digest=version.signed.state_digest,
            ok=True,
            engine_checked=finding is not None,
            probe_mean_difference=_difference(finding).mean,
            probe_max_difference=_difference(finding).max,
            transfer_s=version.transfer_s,
            apply_s=version.apply_s,
            pause_s=pause_s,
            fallback=version.fallback,
        )

    @classmethod
    def of_repair(cls, signed: Signed, finding: EngineCheck, pause_s: float) -> "VersionReport":
        """Return the report of an engine that was written anew from the host copy, without a new version."""
        return cls(
            policy=signed.policy,
            state_digest=signed.state_digest,
            ok=True,
            engine_checked=True,
            probe_mean_difference=_difference(finding).mean,
            probe_max_difference=_difference(finding).max,
            pause_s=pause_s,
        )

    @classmethod
    def of_fault(cls, policy: Policy, finding: EngineCheck) -> "VersionReport":
        """Return the report of an engine that failed its check."""
        return cls(
            policy=policy,
            state_digest=finding.digest,
            ok=False,
            why=finding.why,
            engine_checked=True,
            probe_mean_difference=_difference(finding).mean,
            probe_max_difference=_difference(finding).max,
        )


def _difference(finding: EngineCheck | None) -> ProbeDifference:
    return ProbeDifference() if finding is None or finding.difference is None else finding.difference
