"""What a training step waits for, and the sentence that the job's watchers read about it.

    waits for 12 samples of eu (silent for 14 s) and 3 of us since 16:04:40, until 16:05:10 UTC

The samples are those of the oldest groups that the next batch lacks, by the regions that have leases of them. The end
is that of the hold, if a complete batch waits for older groups, or else when the first of the leases expires. The
sentence is shown only, and decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from trainer.ledger import consumption, hedging
from trainer.ledger.state import LedgerState
from trainer.ledger.values import LedgerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWait:
    """What a wanted batch waits for, since when and until when; the times are on the clock of the ledger.

    `num_samples` counts the samples by region, and `silent_s` has the seconds of silence of regions with a silent
    worker. `num_unleased` counts samples that no worker has. `until_s` is None if no time will end the wait.
    """

    since_s: float
    until_s: float | None
    num_samples: Mapping[str, int]
    silent_s: Mapping[str, float]
    num_unleased: int


def batch_wait(state: LedgerState, limits: LedgerLimits) -> BatchWait | None:
    """Return what the wanted batch waits for, or None if no batch is wanted."""
    if not state.batch_wanted:
        return None
    groups = consumption.awaited(state, limits)
    num_samples: dict[str, int] = {}
    silent_s: dict[str, float] = {}
    deadlines_s: list[float] = []
    for group in groups:
        for lease_id in group.leases.values():
            held = state.held[lease_id]
            worker = state.workers[held.worker_id]
            num_samples[worker.region] = num_samples.get(worker.region, 0) + 1
            if worker.is_silent:
                silent_s[worker.region] = max(silent_s.get(worker.region, 0.0), hedging.silence_s(state, worker))
            if (deadline_s := state.deadline_of(held)) is not None:
                deadlines_s.append(deadline_s)
    hold_until_s = consumption.hold_until_s(state, limits)
    return BatchWait(
        since_s=state.wanted_since_s,
        until_s=min(deadlines_s, default=None) if hold_until_s is None else hold_until_s,
        num_samples=num_samples,
        silent_s=silent_s,
        num_unleased=sum(group.size - len(group.done) - len(group.leases) for group in groups),
    )


def wait_sentence(wait: BatchWait, unix_offset_s: float) -> str:
    """Return the sentence about a wait. `unix_offset_s` is what the time of day is ahead of the ledger's clock."""
    parts: list[str] = []
    for region, number in sorted(wait.num_samples.items(), key=lambda item: (-item[1], item[0])):
        samples = f"{number} samples" if not parts else f"{number}"
        silence = f" (silent for {wait.silent_s[region]:.0f} s)" if region in wait.silent_s else ""
        parts.append(f"{samples} of {region or 'an unknown region'}{silence}")
    if wait.num_unleased:
        parts.append(f"{wait.num_unleased} samples that no worker has")
    text = f"waits for {' and '.join(parts) or 'workers'} since {_time_of_day(wait.since_s + unix_offset_s)}"
    return (
        f"{text}, until {_time_of_day(wait.until_s + unix_offset_s)} UTC" if wait.until_s is not None else f"{text} UTC"
    )


def _time_of_day(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"
