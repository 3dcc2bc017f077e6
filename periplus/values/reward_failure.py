"""The kinds of failure of a reward function, as they travel with a sample or with the news that there is none."""

from enum import StrEnum

from periplus.errors import RewardCrashed, RewardFailed, RewardTimedOut


class RewardFailureKind(StrEnum):
    """Why a reward function gave no value for a completion."""

    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    RAISED = "raised"


def failure_kind(error: RewardFailed) -> RewardFailureKind:
    """Return the kind of an error."""
    match error:
        case RewardTimedOut():
            return RewardFailureKind.TIMED_OUT
        case RewardCrashed():
            return RewardFailureKind.CRASHED
        case _:
            return RewardFailureKind.RAISED
