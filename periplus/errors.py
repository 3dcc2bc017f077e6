"""The tree of the product's errors, and the gRPC status, retry advice and exit code of each class.

    PeriplusError
    ├── ConfigError          the user's input is wrong: a file, a key or a value              exit 2
    │   ├── FunctionRefused  a job's function or environment cannot be loaded or only ever fails: starting again is vain
    │   └── EngineRefused    an inference engine does not start on the machine and devices that it was placed on
    ├── NotFound             a job, region, run or file does not exist                        exit 3
    ├── PlanInfeasible       no placement satisfies the job on this fleet                     exit 4
    ├── Unreachable          an address does not answer                                       exit 5
    │   └── Overloaded       this peer has too many open calls there; some must end first
    ├── Denied               an identity, a permission or an owner's policy refuses           exit 6
    ├── Conflict             the state has changed, or a name or port is taken                exit 7
    │   └── Fenced           a newer session or fork has replaced the caller
    ├── TimedOut             an answer came too late                                          exit 8
    ├── WireError            bytes that break the protocol: the peer's fault, never retried   exit 1
    │   ├── CorruptFrame     a wrong checksum, length or layout
    │   ├── Forged           a signature or certificate that does not verify, or is of another job
    │   ├── UnknownCodec     a codec id that this version does not have
    │   └── WrongBase        a delta against a state that the reader does not hold
    ├── StorageError         the disk refuses to write, to sync or to read                    exit 1
    │   ├── DiskFull         the disk has no space now; nothing has changed, and the write may be retried
    │   ├── SpoolFull        the spool has reached its limit; nothing was lost; retire records and retry
    │   └── CorruptSpool     a record that was durable is damaged or missing
    ├── StateError           an event that is illegal in the present state                    exit 1
    ├── RewardFailed         a reward function gave no value for a completion, which costs that sample alone  exit 1
    │   ├── RewardTimedOut   it took too long, and its process was killed
    │   ├── RewardCrashed    its process ended
    │   └── RewardRaised     it raised an error, or returned what is no reward
    └── TrainingError        the training step must not be applied                            exit 1
        ├── NonFiniteLoss    the loss or a gradient is NaN or infinite; the weights are unchanged
        ├── RankLost         a process that shares training steps has failed; the last checkpoint can be resumed
        ├── UnsoundEngine    a worker's samples are not of its weights, and starting its engine anew did not help
        └── WrongRewards     the rewards of all workers are others than the trainer computes

Every message says what is wrong, the wrong value, and what to do. `MEANING` maps each class to its gRPC status, whether
a retry can help, and its exit code; `tests/periplus/test_errors.py` checks that the table is complete. `ValueError` is
for a caller's bad argument, and `assert` for our own invariants.

A TaskGroup wraps errors in an ExceptionGroup, whose own text does not say what happened. Code that shows an error to a
person gets the text from `explained_error`; `innermost` finds the original error.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc

LINE_CHARACTERS = 300
"""Most characters of another library's error in a message of ours: about two lines of a terminal. Chosen by hand."""

VALUE_CHARACTERS = 80
"""Most characters of a user's value in a message. Chosen by hand."""


class PeriplusError(Exception):
    """Base class of every error that Periplus raises for its callers. `str(error)` is the message for a person."""


class ConfigError(PeriplusError): ...


class FunctionRefused(ConfigError): ...


class EngineRefused(ConfigError): ...


class NotFound(PeriplusError): ...


class PlanInfeasible(PeriplusError): ...


class Unreachable(PeriplusError): ...


class Overloaded(Unreachable): ...


class Denied(PeriplusError): ...


class Conflict(PeriplusError): ...


class Fenced(Conflict): ...


class TimedOut(PeriplusError): ...


class WireError(PeriplusError): ...


class CorruptFrame(WireError): ...


class Forged(WireError): ...


class UnknownCodec(WireError): ...


class WrongBase(WireError): ...


class StorageError(PeriplusError): ...


class DiskFull(StorageError):
    """The disk has no space for a write. `path` is the file or folder; it is None if a peer sent the error."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class SpoolFull(StorageError): ...


class CorruptSpool(StorageError): ...


class StateError(PeriplusError): ...


class RewardFailed(PeriplusError): ...


class RewardTimedOut(RewardFailed): ...


class RewardCrashed(RewardFailed): ...


class RewardRaised(RewardFailed): ...


class TrainingError(PeriplusError): ...


class NonFiniteLoss(TrainingError): ...


class RankLost(TrainingError): ...


class UnsoundEngine(TrainingError): ...


class WrongRewards(TrainingError): ...


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """The gRPC status and retry advice of an error class for a remote caller, and its exit code for the shell."""

    status: grpc.StatusCode
    retryable: bool
    exit_code: int


_S = grpc.StatusCode
MEANING: dict[type[PeriplusError], ErrorMeaning] = {
    PeriplusError: ErrorMeaning(_S.INTERNAL, False, 1),
    ConfigError: ErrorMeaning(_S.INVALID_ARGUMENT, False, 2),
    FunctionRefused: ErrorMeaning(_S.INVALID_ARGUMENT, False, 2),
    EngineRefused: ErrorMeaning(_S.INVALID_ARGUMENT, False, 2),
    NotFound: ErrorMeaning(_S.NOT_FOUND, False, 3),
    PlanInfeasible: ErrorMeaning(_S.FAILED_PRECONDITION, False, 4),
    Unreachable: ErrorMeaning(_S.UNAVAILABLE, True, 5),
    Overloaded: ErrorMeaning(_S.RESOURCE_EXHAUSTED, True, 5),
    Denied: ErrorMeaning(_S.PERMISSION_DENIED, False, 6),
    Conflict: ErrorMeaning(_S.ABORTED, False, 7),
    Fenced: ErrorMeaning(_S.ABORTED, False, 7),
    TimedOut: ErrorMeaning(_S.DEADLINE_EXCEEDED, True, 8),
    WireError: ErrorMeaning(_S.DATA_LOSS, False, 1),
    CorruptFrame: ErrorMeaning(_S.DATA_LOSS, False, 1),
    Forged: ErrorMeaning(_S.DATA_LOSS, False, 1),
    UnknownCodec: ErrorMeaning(_S.DATA_LOSS, False, 1),
    WrongBase: ErrorMeaning(_S.DATA_LOSS, False, 1),
    StorageError: ErrorMeaning(_S.INTERNAL, False, 1),
    DiskFull: ErrorMeaning(_S.RESOURCE_EXHAUSTED, False, 1),
    SpoolFull: ErrorMeaning(_S.RESOURCE_EXHAUSTED, False, 1),
    CorruptSpool: ErrorMeaning(_S.DATA_LOSS, False, 1),
    StateError: ErrorMeaning(_S.FAILED_PRECONDITION, False, 1),
    RewardFailed: ErrorMeaning(_S.INTERNAL, False, 1),
    RewardTimedOut: ErrorMeaning(_S.DEADLINE_EXCEEDED, False, 1),
    RewardCrashed: ErrorMeaning(_S.INTERNAL, False, 1),
    RewardRaised: ErrorMeaning(_S.INTERNAL, False, 1),
    TrainingError: ErrorMeaning(_S.INTERNAL, False, 1),
    NonFiniteLoss: ErrorMeaning(_S.INTERNAL, False, 1),
    RankLost: ErrorMeaning(_S.INTERNAL, False, 1),
    UnsoundEngine: ErrorMeaning(_S.INTERNAL, False, 1),
    WrongRewards: ErrorMeaning(_S.INTERNAL, False, 1),
}

EXIT_OK = 0
"""Exit code of a command that succeeded."""

EXIT_USAGE = 2
"""Exit code for a wrong command line, the same as for a ConfigError."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as shells report it."""


def meaning(error: PeriplusError) -> ErrorMeaning:
    """Return the status, retry advice and exit code of an error's class."""
    return MEANING[type(error)]


def reason(error: PeriplusError) -> str:
    """Return the stable UPPER_SNAKE name of an error's class, which is sent in `ErrorDetail.reason`."""
    name = type(error).__name__
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


def from_reason(reason_: str, message: str) -> PeriplusError:
    """Return the error that a peer sent. An unknown reason becomes a plain PeriplusError."""
    for cls in MEANING:
        error = cls(message)
        if reason(error) == reason_:
            return error
    return PeriplusError(message)


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors inside an exception group at any depth, in order; for any other error, only itself."""
    if isinstance(error, BaseExceptionGroup):
        return tuple(leaf for inner in error.exceptions for leaf in leaves(inner))
    return (error,)


def innermost(error: BaseException) -> BaseException:
    """Return the first original error behind exception groups and chains of causes.

    A cancellation, which is not an Exception, is returned only if there is no other error. The `__cause__` of a
    PeriplusError is not followed, because the message of a PeriplusError was written for the person who reads it.
    """
    return _causes(error)[0]


def explained_error(error: BaseException) -> str:
    """Return the text to show a person for an error: that of the innermost error, and the number of other errors."""
    texts = list(dict.fromkeys(map(_text, _causes(error))))
    if len(texts) == 1:
        return texts[0]
    others = "1 other error" if len(texts) == 2 else f"{len(texts) - 1} other errors"
    return f"{texts[0]} (and {others})"


def one_line(error: Exception) -> str:
    """Return the text of an error of another library in one line of at most LINE_CHARACTERS; its class if it has none.

    Some libraries raise errors with whole pages of text, which do not fit into a message of ours.
    """
    return shortened(" ".join(str(error).split()) or type(error).__name__, LINE_CHARACTERS)


def shortened(text: str, most: int = VALUE_CHARACTERS) -> str:
    """Return the text, or its beginning and three dots if it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _causes(error: BaseException, seen: frozenset[int] = frozenset()) -> list[BaseException]:
    """Return the original errors in order. `seen` holds visited errors, since one may be raised from its own group."""
    found: list[BaseException] = []
    for leaf in leaves(error):
        cause = None if isinstance(leaf, PeriplusError) or id(leaf) in seen else leaf.__cause__
        found += [leaf] if cause is None else _causes(cause, seen | {id(leaf)})
    return [cause for cause in found if isinstance(cause, Exception)] or found


def _text(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename is not None else error.strerror
    if isinstance(error, PeriplusError):
        return str(error) or name
    return f"{name}: {error}" if str(error) else name
