"""The one error tree, and what each class means to a caller.

    PeriplusError
    ├── ConfigError          the operator's input is wrong: a file, a key, a value            exit 2
    ├── NotFound             a job, region or run that nobody knows                           exit 3
    ├── PlanInfeasible       no placement satisfies the job on this fleet                     exit 4
    ├── Unreachable          no answer from an address                                        exit 5
    ├── Denied               an identity or an owner's policy refuses                         exit 6
    ├── Conflict             the state moved, or a name or port is taken                      exit 7
    │   └── Fenced           a newer session or fork took over from the caller
    ├── TimedOut             an answer came too late                                          exit 8
    ├── WireError            bytes that break the protocol: the peer's fault, never retried   exit 1
    │   ├── CorruptFrame     checksum, length or layout
    │   ├── Forged           a signature or certificate that does not verify, or of another job
    │   ├── UnknownCodec     a codec id that this build does not have
    │   └── WrongBase        a delta against a state that the reader does not hold
    ├── StorageError         a disk refuses to write, to sync or to read                      exit 1
    │   ├── DiskFull         the disk has no room now; nothing has changed, the same write may be tried again
    │   ├── SpoolFull        the spool holds as much as it may; nothing was lost, it goes on when something is retired
    │   └── CorruptSpool     a record that was durable once is damaged or gone
    ├── StateError           an event that is illegal in the present state                    exit 1
    └── TrainingError        the step must not be applied                                     exit 1
        └── NonFiniteLoss    loss or gradient is NaN or infinite; the weights are untouched

Every message says what is wrong, the offending value and what to do. Each class maps once to a gRPC status, whether a
retry can help, and an exit code; `tests/periplus/test_errors.py` holds that the table is complete. `ValueError` stays
for a caller's bad argument and `assert` for our own invariants.

A TaskGroup hides what happened in an ExceptionGroup, whose own text says nothing. Whoever shows an error to a person,
at the root of a process or in a message, asks `explained_error` for the text; `innermost` finds the error behind it.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc


class PeriplusError(Exception):
    """Root of everything that Periplus raises for its callers. `str(error)` is the message for a person."""


class ConfigError(PeriplusError): ...


class NotFound(PeriplusError): ...


class PlanInfeasible(PeriplusError): ...


class Unreachable(PeriplusError): ...


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
    """`path`: the file or folder that could not be written; None if a peer sent the error."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class SpoolFull(StorageError): ...


class CorruptSpool(StorageError): ...


class StateError(PeriplusError): ...


class TrainingError(PeriplusError): ...


class NonFiniteLoss(TrainingError): ...


@dataclass(frozen=True, slots=True)
class ErrorMeaning:
    """What a class tells a remote caller and the shell."""

    status: grpc.StatusCode
    retryable: bool
    exit_code: int


_S = grpc.StatusCode
MEANING: dict[type[PeriplusError], ErrorMeaning] = {
    PeriplusError: ErrorMeaning(_S.INTERNAL, False, 1),
    ConfigError: ErrorMeaning(_S.INVALID_ARGUMENT, False, 2),
    NotFound: ErrorMeaning(_S.NOT_FOUND, False, 3),
    PlanInfeasible: ErrorMeaning(_S.FAILED_PRECONDITION, False, 4),
    Unreachable: ErrorMeaning(_S.UNAVAILABLE, True, 5),
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
    TrainingError: ErrorMeaning(_S.INTERNAL, False, 1),
    NonFiniteLoss: ErrorMeaning(_S.INTERNAL, False, 1),
}

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def meaning(error: PeriplusError) -> ErrorMeaning:
    """The row of the error's own class."""
    return MEANING[type(error)]


def reason(error: PeriplusError) -> str:
    """The stable UPPER_SNAKE name that travels in `ErrorDetail.reason`."""
    name = type(error).__name__
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


def from_reason(reason_: str, message: str) -> PeriplusError:
    """The error that a peer sent; an unknown reason becomes the root class."""
    for cls in MEANING:
        error = cls(message)
        if reason(error) == reason_:
            return error
    return PeriplusError(message)


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors inside an exception group, however deep, in order; any other error is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        return tuple(leaf for inner in error.exceptions for leaf in leaves(inner))
    return (error,)


def innermost(error: BaseException) -> BaseException:
    """Return the first error that says what happened, behind groups and behind the errors that it caused.

    A cancellation, which is no Exception, counts only where nothing else happened. An error of ours is not followed to
    its `__cause__`, because its message was written for a person who need not know the cause.
    """
    return _causes(error)[0]


def explained_error(error: BaseException) -> str:
    """Return the text that a person is shown for an error: the innermost one's, and how many others there were."""
    texts = list(dict.fromkeys(map(_text, _causes(error))))
    if len(texts) == 1:
        return texts[0]
    others = "1 other error" if len(texts) == 2 else f"{len(texts) - 1} other errors"
    return f"{texts[0]} (and {others})"


def _causes(error: BaseException, seen: frozenset[int] = frozenset()) -> list[BaseException]:
    """Return what happened, in order; `seen` are the errors on the way here, since one may come from its own group."""
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
