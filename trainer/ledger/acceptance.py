"""Which results the ledger accepts. A result is one finished sample that a worker sends back.

A result belongs to a group (all samples of one prompt), and has a number within it. It is accepted if the policies that
sampled it are on this trainer's lineage, its group is open, it answers what was leased, no other result of the same
sample came first, and its oldest token is young enough: with it in its group, every open group can still be consumed
within the staleness bound (`staleness_window.fits`).

The sender and its lease do not matter. A worker whose lease has ended may still deliver the first valid result. The
contents do not matter either: token ids and log-probabilities were validated before (periplus/values/trajectory.py).
Nothing here changes the state.
"""

from periplus.values.trajectory import Purpose
from trainer.ledger.staleness_window import fits, minus, plus
from trainer.ledger.state import LedgerState, SampleGroup
from trainer.ledger.values import EVAL_GROUPS_START, Arrival, LedgerLimits, Result


def classify_result(state: LedgerState, limits: LedgerLimits, result: Result) -> Arrival:
    """Return whether a result is accepted, or why it is not. The state is not changed."""
    if any(run.policy not in state.lineage for run in result.policies):
        return Arrival.DEAD_BRANCH
    group = state.groups.get(result.group)
    if group is None:
        return _classify_without_group(state, limits, result)
    if not 0 <= result.sample < group.size:
        return Arrival.UNKNOWN
    if (result.item, result.purpose) != (group.item, group.purpose) or not is_fit(state, limits, result):
        return Arrival.UNFIT
    # Fit first: a wrong result is refused for what it is, also if the right one is here.
    if result.sample in group.done:
        return Arrival.DUPLICATE
    if not _is_young_enough(state, limits, group, result):
        return Arrival.TOO_OLD
    return Arrival.ACCEPTED


def _classify_without_group(state: LedgerState, limits: LedgerLimits, result: Result) -> Arrival:
    """Classify a result whose group is not open: the group was dropped, consumed, or never opened in this fork."""
    is_eval = EVAL_GROUPS_START <= result.group < state.next_eval_group
    # Numbers in `reopen` were left open by an earlier fork and not opened in this one.
    was_opened = is_eval or (0 <= result.group < state.next_group and result.group not in state.reopen)
    size = 1 if is_eval else limits.group_size
    if not was_opened or not 0 <= result.sample < size:
        return Arrival.UNKNOWN
    return Arrival.LATE if result.group in state.dropped else Arrival.DUPLICATE


def is_fit(state: LedgerState, limits: LedgerLimits, result: Result) -> bool:
    """Return whether no policy of the result is newer than the present one, and its length is within the lease.

    A result without any policy run is unfit. The length of an evaluation sample is not limited here.
    """
    if not result.policies or any(run.policy.version > state.policy.version for run in result.policies):
        return False
    return result.purpose is Purpose.EVAL or 0 < result.num_tokens <= limits.max_sample_tokens


def _is_young_enough(state: LedgerState, limits: LedgerLimits, group: SampleGroup, result: Result) -> bool:
    """Return whether every open group can still be consumed within the bound with this sample in its group.

    An evaluation sample must come from the version at which the evaluation was asked for, or a newer one.
    """
    oldest = result.oldest_version
    if group.purpose is Purpose.EVAL or oldest >= group.version:
        return oldest >= group.version
    # With this sample, the class of the group falls from `group.version` to the sample's oldest version.
    classes = plus(minus(state.classes, (group.version,)), (oldest,))
    return fits(classes, groups_per_step=limits.groups_per_step, bound=limits.bound, next_step=state.next_step)
