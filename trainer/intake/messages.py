"""The messages between a trainer and its gateway, as values: what workers send up, and what the trainer sends down.

The gateway's stream (gateway.py) translates them from and to protobuf, so that everything behind it runs and is tested
without gRPC. `RoomOffered` and `LeasesStarted` are events of the ledger, and `Granted` and `Revoked` are effects of it
(trainer/ledger/values.py): a worker's message says just that. Nothing here decides anything.
"""

from dataclasses import dataclass

from periplus.codec.frame import Frame
from periplus.errors import WireError
from periplus.values.transport_keys import FrameKey
from trainer.ledger.values import Granted, LeasesStarted, Revoked, RoomOffered
from trainer.reporting.delivery import ReaderProof

# ---- up --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnchorWanted:
    """A reader has nothing to start from: the gateway asks for a full state of the newest version."""


@dataclass(frozen=True, slots=True)
class GatewayFound:
    """The lost connection to the gateway is open again. It comes before all other messages of the new connection.

    Nothing that was on its way counts as delivered, and every worker that is still there says hello again.
    """


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame of trajectories of the worker in `key`. The gateway of `region` spools it until it is acknowledged."""

    key: FrameKey
    region: str
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReceived:
    """A worker connected. `bundle_digest` identifies its tokenizer and model config, `epoch` its process's start."""

    worker_id: str
    region: str
    bundle_digest: bytes
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartureReceived:
    """A worker's stream ended, because of `why`. With `connection_lost` its process may go on."""

    worker_id: str
    why: str
    connection_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReceived:
    """A worker cannot produce a sample, because of `why`. Lease ids repeat from fork to fork, hence the sample.

    `reward_failure` is the kind of failure if a reward function is at fault, else empty.
    """

    worker_id: str
    lease_id: int
    group: int
    sample: int
    why: str
    reward_failure: str = ""


@dataclass(frozen=True, slots=True)
class ProofReceived:
    """A worker says what became of one version of the weights."""

    worker_id: str
    proof: ReaderProof


@dataclass(frozen=True, slots=True)
class UnreadableMessage:
    """A message of a worker whose content cannot be read, with the error that says why."""

    worker_id: str
    why: WireError


LedgerMessage = HelloReceived | DepartureReceived | FailureReceived | ProofReceived | RoomOffered | LeasesStarted
"""Messages of workers that the ledger hears of."""

UpMessage = LedgerMessage | FrameReceived | UnreadableMessage | AnchorWanted | GatewayFound
"""Messages that the link to the gateway (gateway.py) brings to the trainer."""

# ---- down ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesAcknowledged:
    """The gateway of `region` may forget these frames of one start of a worker: they are committed, or refused."""

    region: str
    worker_id: str
    epoch: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The worker may end: the job needs no further samples, because of `why`."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDoubted:
    """The worker's samples are not of the weights that it named, because of `why`: it writes its engine anew.

    With `starts_anew` its process ends, and is started again.
    """

    worker_id: str
    why: str
    starts_anew: bool = False


DownMessage = Granted | Revoked | FramesAcknowledged | JobFinished | EngineDoubted
"""Messages that the trainer sends to a worker or to the gateway that keeps the worker's frames."""
