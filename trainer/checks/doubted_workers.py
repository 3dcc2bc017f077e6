"""Workers whose samples were not of the weights that they named, until their engines hold proven weights again.

Nobody knows when a fault began, so a finding puts all that a worker has sampled in doubt. The worker is asked to write
its engine anew, and after a second finding to start its process anew. It reports the fault first, and then the version
that it has proven in the engine. Samples that began with that version, or an older one, stay in doubt.
"""

from collections.abc import Callable
from dataclasses import dataclass

from periplus.errors import UnsoundEngine
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory
from trainer.intake.messages import EngineDoubted
from trainer.reporting.delivery import ReaderProof

MAX_REPAIRS = 2
"""Repairs in a row of one worker's engine, the second by a new process, after which the next finding ends the job."""

HELPED_TOKENS = 8192
"""Tokens that were computed again without a finding, after which the repair before has helped. Most planted faults are
found within 5,000 (docs/design/0011-engines.md)."""


@dataclass(slots=True)
class _Doubt:
    """`asked` is what the worker was told. `until` is the newest version in doubt; None until the engine is sound."""

    asked: EngineDoubted
    is_fault_reported: bool = False
    until: Policy | None = None


class DoubtedWorkers:
    """The workers in doubt of one job. `send` passes a message to the gateway."""

    def __init__(self, send: Callable[[EngineDoubted], None]) -> None:
        self._send = send
        self._doubts: dict[str, _Doubt] = {}
        self._num_found: dict[str, int] = {}
        self._epochs: dict[str, int] = {}

    def found(self, worker_id: str, why: str, num_tokens: int) -> None:
        """Doubt a worker from now on, and have its engine repaired. Raises: UnsoundEngine if that has not helped.

        `num_tokens` of the worker were computed again since its last finding.
        """
        before = self._num_found.get(worker_id, 0) if num_tokens < HELPED_TOKENS else 0
        num_found = self._num_found[worker_id] = before + 1
        if num_found > MAX_REPAIRS:
            raise UnsoundEngine(
                f"samples of worker {worker_id} are not of the weights that it names, though its engine was written "
                f"and its process started anew: {why}; look at device and engine, then resume the job without it"
            )
        asked = EngineDoubted(worker_id=worker_id, why=why, starts_anew=num_found == MAX_REPAIRS)
        self._doubts[worker_id] = _Doubt(asked)
        self._send(asked)

    def joined(self, worker_id: str, epoch: int) -> None:
        """Note that a worker has connected. `epoch` is its process's start."""
        doubt, is_new = self._doubts.get(worker_id), self._epochs.get(worker_id) != epoch
        self._epochs[worker_id] = epoch
        if doubt is None or doubt.until is not None:
            return
        if is_new:
            doubt.is_fault_reported = True  # its engine holds nothing yet
        elif not doubt.is_fault_reported:
            self._send(doubt.asked)  # the message may have been lost with the connection

    def proven(self, worker_id: str, proof: ReaderProof) -> bool:
        """Note what a worker says of a version in its engine. Return whether it is the fault that it was told of."""
        doubt = self._doubts.get(worker_id)
        if doubt is None or doubt.until is not None:
            return False
        if not proof.ok and not doubt.is_fault_reported:
            doubt.is_fault_reported = True
            return True
        if proof.ok and doubt.is_fault_reported and proof.engine_checked:
            doubt.until = proof.policy
        return False

    def in_doubt(self, trajectory: Trajectory) -> bool:
        """Return whether a sample may be one of an engine that was not sound."""
        doubt = self._doubts.get(trajectory.worker_id)
        return doubt is not None and (doubt.until is None or trajectory.policies[0].policy <= doubt.until)
