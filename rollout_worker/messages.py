"""The messages of a worker's lease stream, as values: what its gateway sends down, and what the worker sends up.

The stream (gateway.py) translates them from and to protobuf. Besides them it carries frames of trajectories, which the
outbox numbers (outbox.py), and the hello with which it begins. Nothing here decides anything.
"""

from dataclasses import dataclass

from periplus.values.policy import Policy
from rollout_worker.episodes.episode import FailedLease
from rollout_worker.episodes.queue import QueuedLease
from rollout_worker.weights.version_report import VersionReport


@dataclass(frozen=True, slots=True)
class LeasesReceived:
    """New leases for this worker."""

    leases: tuple[QueuedLease, ...]


@dataclass(frozen=True, slots=True)
class LeasesRevoked:
    """These leases are over. The worker drops those that it has not started.

    It ends the others too, unless the sample is `still_wanted`.
    """

    lease_ids: frozenset[int]
    still_wanted: bool = False


@dataclass(frozen=True, slots=True)
class FramesSpooled:
    """The gateway has these frames on disk. `epoch` is the start of the process that sent them."""

    epoch: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishReceived:
    """The worker may end, because of `why`."""

    why: str


@dataclass(frozen=True, slots=True)
class DoubtReceived:
    """The trainer found that this worker's samples are not of its weights, because of `why`.

    The engine is written anew, or with `starts_anew` the process ends and is started again.
    """

    why: str
    starts_anew: bool = False


GatewayMessage = LeasesReceived | LeasesRevoked | FramesSpooled | FinishReceived | DoubtReceived
"""Messages that a gateway sends to a worker."""


@dataclass(frozen=True, slots=True)
class SamplingStarted:
    """The worker is about to produce these leases' samples, with this policy."""

    lease_ids: tuple[int, ...]
    policy: Policy


WorkerMessage = SamplingStarted | FailedLease | VersionReport
"""Messages that a worker sends through its outbox, beside frames."""
