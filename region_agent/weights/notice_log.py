"""The log lines of a weight cache: its machine's notices that a person may want to know of."""

import logging
from typing import assert_never

from periplus.errors import DiskFull
from periplus.process.telemetry import event
from region_agent.weights.jobs import (
    CacheNotice,
    CopyMoved,
    CopyRefused,
    CopyServes,
    DerivedForgotten,
    DerivedGivenUp,
    DerivedImpossible,
    DerivedReady,
    DiskAccepts,
    DiskRefuses,
    TakenOver,
    TakeOverFailed,
)

log = logging.getLogger(__name__)


def log_notice(job_id: str, notice: CacheNotice) -> None:
    """Log a notice, unless the caller or a reader says what it says."""
    match notice:
        case CopyRefused(why):
            event(log, logging.ERROR, "copy_refused", job=job_id, why=why)
        case CopyMoved(policy, num_links, is_new):
            name = "copy_created" if is_new else "copy_advanced"
            event(log, logging.INFO, name, job=job_id, policy=policy, chain=num_links)
        case TakenOver(policy):
            # A copy that jumps to what the gateway above sent is as good as a new one.
            event(log, logging.INFO, "copy_created", job=job_id, policy=policy)
        case DiskRefuses(error):
            # A full disk heals once there is room. Any other refusal needs a person.
            level = logging.WARNING if isinstance(error, DiskFull) else logging.ERROR
            event(log, level, "weights_unsaved", job=job_id, why=error)
        case DiskAccepts():
            event(log, logging.INFO, "weights_saved", job=job_id)
        case DerivedImpossible(order, why):
            event(log, logging.ERROR, "weights_not_derived", job=job_id, policy=order.key.target, why=why)
        case DerivedReady(order, made):
            event(
                log,
                logging.INFO,
                "weights_derived",
                job=job_id,
                kind=order.kind.value,
                policy=order.key.target,
                have=order.key.have or "none",
                num_bytes=made.num_bytes,
                make_s=round(made.make_s, 3),
            )
        # These are for the shell. Who waits for a takeover or reads a derived publication gets an error, and logs it.
        case CopyServes() | TakeOverFailed() | DerivedGivenUp() | DerivedForgotten():
            pass
        case _:
            assert_never(notice)
