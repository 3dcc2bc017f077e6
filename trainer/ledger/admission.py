"""Which results are acceptable: the training key (lineage, group, sample), and the age of every token.

A result is judged by what it is, not by who sends it or under which lease: a worker that was given up may still be
first. It knows no content: ids and log-probabilities were validated before (periplus/values/trajectory.py).
"""

from periplus.values.trajectory import Purpose
from trainer.ledger.state import LedgerState, SampleGroup
from trainer.ledger.values import EVAL_GROUPS_START, Arrival, LedgerLimits, Result
from trainer.ledger.window import fits, minus, plus


def judge(state: LedgerState, limits: LedgerLimits, result: Result) -> Arrival:
    """What to do with a result. Changes nothing."""
    if any(run.policy not in state.lineage for run in result.policies):
        return Arrival.DEAD_BRANCH
    group = state.groups.get(result.group)
    if group is None:
        return _of_closed_group(state, limits, result)
    if not 0 <= result.sample < group.size:
        return Arrival.UNKNOWN
    if (result.item, result.purpose) != (group.item, group.purpose) or not is_fit(state, limits, result):
        return Arrival.UNFIT
    if result.sample in group.done:
        return Arrival.DUPLICATE
    if not _is_young_enough(state, limits, group, result):
        return Arrival.TOO_OLD
    return Arrival.ACCEPTED


def _of_closed_group(state: LedgerState, limits: LedgerLimits, result: Result) -> Arrival:
    is_eval = EVAL_GROUPS_START <= result.group < state.next_eval_group
    was_opened = is_eval or (0 <= result.group < state.next_group and result.group not in state.reopen)
    size = 1 if is_eval else limits.group_size
    if not was_opened or not 0 <= result.sample < size:
        return Arrival.UNKNOWN
    return Arrival.LATE if result.group in state.dropped else Arrival.DUPLICATE


def is_fit(state: LedgerState, limits: LedgerLimits, result: Result) -> bool:
    """Whether its tokens can be of this history, and are no more than were leased."""
    if not result.policies or any(run.policy.version > state.policy.version for run in result.policies):
        return False
    return result.purpose is Purpose.EVAL or 0 < result.num_tokens <= limits.max_sample_tokens


def _is_young_enough(state: LedgerState, limits: LedgerLimits, group: SampleGroup, result: Result) -> bool:
    """Whether the group can still be consumed in time with this sample in it: see window.py."""
    oldest = result.oldest_version
    if group.purpose is Purpose.EVAL or oldest >= group.version:
        return oldest >= group.version
    classes = plus(minus(state.classes, (group.version,)), (oldest,))
    return fits(classes, groups_per_step=limits.groups_per_step, bound=limits.bound, next_step=state.next_step)
