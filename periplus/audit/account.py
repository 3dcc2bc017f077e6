"""Accounts of an audit: how every lease and sample ended, as sums over one fork or over the surviving history.

A history is a list of (fork, first line that does not count). One fork alone is `[(fork, FOREVER)]`, and the surviving
history is `fork.segments()` of the newest fork. Samples that are replayed after a restore count once. Two equations
hold in each account:

    leased    = returned + lost + released + outstanding + leases that are unaccounted for
    accepted  = trained + skipped + dropped + measured + pending

A lease has *returned* if a result came, with any verdict. It is *released* if its sample came from another lease, or
its group was dropped, while it was out, so that nobody waits for it. A lease is *outstanding*, and an accepted sample
*pending*, if it was still on its way or unused when the fork was left or the file ended. A sample is *measured* if an
evaluation used it, and *skipped* if its batch was consumed by a step that did not train.

`unaccounted_for` finds the samples and groups whose fate no line of the journal tells.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from periplus.audit.findings import Code, Findings
from periplus.audit.history import Fork, Leased, SampleKey
from periplus.audit.records import AdmissionVerdict
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose

Segments = Sequence[tuple[Fork, int]]
"""A history: forks, each with the first of its lines that does not count."""

LENGTHS_COUNT_WHEN_REFUSED = frozenset(("too_old", "late"))
"""Reasons for refusing a sample that is complete. Its length counts in the mean length of what was sampled."""


@dataclass(slots=True, kw_only=True)
class Account:
    """Sums over a history. They count samples, unless a name says otherwise.

    `lost`, `refused`, `dropped` and `groups_dropped` count by reason, and `tokens_by_staleness` by age in versions.
    `abandoned_tokens` lists the lengths of abandoned samples, and of those whose group was given up before they came.
    `trained_by_frame` counts the trained samples whose frames were compared with the journal.
    """

    steps: int = 0
    steps_not_trained: int = 0
    leased: int = 0
    returned: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    released: int = 0
    outstanding: int = 0
    unaccounted: int = 0
    completed: int = 0
    accepted: int = 0
    replayed: int = 0
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    abandoned_tokens: list[int] = field(default_factory=list)
    trained: int = 0
    trained_by_frame: int = 0
    trained_tokens: int = 0
    skipped: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    groups_dropped: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    pending: int = 0
    trained_twice: int = 0
    tokens_by_staleness: Counter[int] = field(default_factory=Counter)
    tokens_stale: int = 0
    tokens_from_future: int = 0
    tokens_of_dead_branch: int = 0
    sampled: int = 0
    sampled_tokens: int = 0

    @property
    def violations(self) -> int:
        """Number of tokens that were trained on although they were stale, from the future or of a dead branch."""
        return self.tokens_stale + self.tokens_from_future + self.tokens_of_dead_branch

    @property
    def mean_tokens_trained(self) -> float | None:
        return self.trained_tokens / self.trained if self.trained else None

    @property
    def mean_tokens_sampled(self) -> float | None:
        """Mean tokens of all training samples that came back, including those that were given up; None without any."""
        return self.sampled_tokens / self.sampled if self.sampled else None

    @property
    def length_bias(self) -> float | None:
        """Relative difference of the mean length trained on to the mean length sampled; below 0 favours short ones."""
        trained, sampled = self.mean_tokens_trained, self.mean_tokens_sampled
        return trained / sampled - 1 if trained is not None and sampled else None


def account(segments: Segments, unaccounted: int) -> Account:
    """Return the sums over a history.

    `unaccounted` is the count that `unaccounted_for` returns for its newest fork.
    """
    total = Account(unaccounted=unaccounted)
    accepted: set[SampleKey] = set()
    ended: set[SampleKey] = set()
    used: Counter[SampleKey] = Counter()
    for fork, limit in reversed(list(segments)):
        _leases(total, fork, limit)
        _results(total, fork, limit)
        _batches(total, fork, limit, used)
        # Lines at or beyond `limit` are on a dead branch of this fork, and do not count.
        own = {sample for sample, found in fork.accepted.items() if found.at < limit}
        dropped = _drops(total, fork, limit)
        # Evaluation samples count in each fork: a restored trainer evaluates anew, and may number its groups alike.
        evals = {sample for sample in own if fork.is_eval(sample[0])}
        measured = {(s.group, s.sample) for at, measured in fork.evals if at < limit for s in measured.samples}
        total.measured += len(measured)
        total.pending += len(evals - measured - dropped)
        total.accepted += len(evals)
        # Training samples go into sets over all forks, because a restore accepts some of them a second time.
        accepted |= own - evals
        ended |= dropped
    total.accepted += len(accepted)
    total.pending += len(accepted - ended - used.keys())
    # A step that is repeated after a restore is not counted here: its first run lies beyond the limit.
    total.trained_twice = sum(count - 1 for count in used.values())
    return total


def _drops(total: Account, fork: Fork, limit: int) -> set[SampleKey]:
    drops = [drop for at, drop in fork.drops if at < limit]
    for drop in drops:
        total.groups_dropped[drop.why] += 1
        total.dropped[drop.why] += len(drop.samples)
    return {(drop.group, dropped.sample) for drop in drops for dropped in drop.samples}


def _leases(total: Account, fork: Fork, limit: int) -> None:
    for leased in fork.leases.values():
        if leased.at >= limit:
            continue
        total.leased += 1
        # A line number of -1 means never. What came first ends the lease: a result after a loss does not count as
        # returned.
        if 0 <= leased.returned_at < limit and not 0 <= leased.lost_at < leased.returned_at:
            total.returned += 1
        elif 0 <= leased.lost_at < limit:
            total.lost[leased.lost_why] += 1
        # The sample was leased again with no line that ends this lease.
        elif leased.superseded:
            total.unaccounted += 1
        # No line ends the lease, but nobody waits for it: its sample came by another lease, or its group has ended.
        elif _is_released(fork, leased, limit):
            total.released += 1
        else:
            total.outstanding += 1


def _is_released(fork: Fork, leased: Leased, limit: int) -> bool:
    sample = (leased.lease.group, leased.lease.sample)
    accepted = fork.accepted.get(sample)
    # `limit` stands for never.
    ends = (fork.group_ended_at.get(sample[0], limit), fork.measured_at.get(sample, limit))
    return (accepted is not None and accepted.at < limit) or min(ends) < limit


def _results(total: Account, fork: Fork, limit: int) -> None:
    for returned in fork.results:
        if returned.at >= limit:
            continue
        result = returned.result
        # A restored trainer reads the kept frames again; the first result for each of them has been counted.
        if returned.is_replay:
            total.replayed += 1
            continue
        total.completed += 1
        # The mean length of what was sampled must include samples that were given up: long ones are given up more
        # often, and training on the rest would favour short ones.
        counts_as_sampled = result.verdict in (AdmissionVerdict.ACCEPTED, AdmissionVerdict.ABANDONED)
        match result.verdict:
            case AdmissionVerdict.DUPLICATE:
                total.duplicates += 1
            case AdmissionVerdict.ABANDONED:
                total.abandoned_tokens.append(result.num_tokens)
            case AdmissionVerdict.REFUSED:
                total.refused[result.why] += 1
                if result.why == "late":  # its group had been given up while it was produced
                    total.abandoned_tokens.append(result.num_tokens)
                counts_as_sampled = result.why in LENGTHS_COUNT_WHEN_REFUSED
        if counts_as_sampled and returned.purpose is not Purpose.EVAL:
            total.sampled += 1
            total.sampled_tokens += result.num_tokens


def _batches(total: Account, fork: Fork, limit: int, used: Counter[SampleKey]) -> None:
    for batch in fork.batches:
        if batch.at >= limit:
            continue
        total.steps += 1
        samples = batch.consume.samples
        # A sample is used up by a step that does not train, too.
        used.update((sample.group, sample.sample) for sample in samples)
        if not batch.consume.trained:
            total.steps_not_trained += 1
            total.skipped += len(samples)
            continue
        total.trained += len(samples)
        total.trained_by_frame += batch.by_frame
        total.trained_tokens += sum(batch.num_tokens)
        total.tokens_by_staleness.update(batch.ages)
        total.tokens_stale += batch.stale
        total.tokens_from_future += batch.from_future
        total.tokens_of_dead_branch += batch.dead_branch


# ---- leases and samples without an end ---------------------------------------------------------------------------


def unaccounted_for(fork: Fork, newest_before: int, findings: Findings, place: str) -> int:
    """Return the number of samples and groups that this fork should have used or dropped, and report them as findings.

    `newest_before` is the newest training group that any earlier fork leased, or -1 for none.

    An accepted sample is unaccounted for if a later batch left it too old for any step, and no line drops it. Groups
    are opened in the order of their numbers, and those that a restore opens again come before new ones. So once a fork
    has leased a new group, each group before it must have been leased. A row of skipped groups is one finding.
    """
    count = 0
    last = fork.batches[-1].consume.policy.version if fork.batches else -1
    for sample, accepted in fork.all_waiting():
        if fork.accepted.get(sample) is not accepted:  # it is inherited, and may have been leased again
            continue
        # A sample is as old as its oldest token.
        oldest = min((run.policy.version for run in accepted.result.policies), default=last)
        if not fork.is_eval(sample[0]) and oldest + fork.opened.bound < last:
            count += 1
            message = f"sample {sample[1]} of group {sample[0]} was accepted, became too old, and was never dropped"
            findings.add(Code.UNACCOUNTED, place, message, group=sample[0], sample=sample[1])
    for first, after in _skipped_groups(fork, newest_before):
        count += after - first
        which = f"group {first} was" if after == first + 1 else f"groups {first} to {after - 1} were"
        message = f"{which} passed over: no line says what became of them in fork {fork.number}"
        findings.add(Code.UNACCOUNTED, place, message, group=first, groups=after - first)
    return count


def newest_trained_group(fork: Fork) -> int:
    """Return the largest number of a training group that the fork leased, or -1 for none."""
    return max(_trained_groups(fork), default=-1)


def _skipped_groups(fork: Fork, newest_before: int) -> list[tuple[int, int]]:
    """Return the ranges (first, one after the last) of training groups that the fork never leased."""
    # A fork that leased nothing new has only opened groups of its ancestors again, which need not be all.
    own = _trained_groups(fork)
    newest = max(own, default=-1)
    if newest <= newest_before or not own:
        return []
    # If the ancestors' lines are in another file, numbers below the fork's own first group are not known.
    has_history = fork.opened.parent is None or fork.parent is not None
    first = 0 if has_history else min(own)
    # Groups that this history knows without a lease of this fork: accepted, waiting or ended before.
    known = own | {sample[0] for sample in fork.accepted} | fork.pending.keys()
    for segment, limit in fork.segments():
        known |= {group for group, at in segment.group_ended_at.items() if at < limit}
    in_order = sorted(group for group in known if first <= group <= newest)
    # Each known group is paired with the one before it; a distance above one is a range that was skipped.
    befores = [first - 1, *in_order]
    return [(before + 1, group) for before, group in zip(befores, in_order, strict=False) if group > before + 1]


def _trained_groups(fork: Fork) -> set[int]:
    return {group for group, (_, purpose) in fork.items.items() if purpose is Purpose.TRAIN}


@dataclass(slots=True, kw_only=True)
class DoubtedSamples:
    """What a history trained on of one worker before its samples were found not to be of the weights that it named.

    `why` is the last such finding. `samples` and `tokens` count what began with a version that is in doubt, in the
    steps from `first` to `last`, the policies that they started from.
    """

    worker_id: str
    why: str
    samples: int = 0
    tokens: int = 0
    first: Policy | None = None
    last: Policy | None = None


def doubted(forks: Sequence[Fork], segments: Segments) -> tuple[DoubtedSamples, ...]:
    """Return what a history trained on although a later line of any fork puts it in doubt, by worker."""
    doubts = sorted(((at, doubt) for fork in forks for at, doubt in fork.doubts), key=lambda line: line[0])
    found = {doubt.worker_id: DoubtedSamples(worker_id=doubt.worker_id, why=doubt.why) for _, doubt in doubts}
    since: dict[str, Policy] = {}
    # From the end to the beginning: a batch is in doubt by the lines after it.
    for fork, limit in segments if doubts else ():
        for batch in reversed(fork.batches):
            while doubts and doubts[-1][0] > batch.at:
                _, doubt = doubts.pop()
                since[doubt.worker_id] = min(doubt.since, since.get(doubt.worker_id, doubt.since))
            if not batch.consume.trained or batch.at >= limit:
                continue
            for used in batch.consume.samples:
                result = fork.result_of((used.group, used.sample))
                if result is None or result.worker_id not in since or not result.policies:
                    continue
                if result.policies[0].policy >= since[result.worker_id]:
                    sums, policy = found[result.worker_id], batch.consume.policy
                    sums.samples += 1
                    sums.tokens += result.num_tokens
                    sums.first, sums.last = policy, sums.last or policy
    return tuple(found[worker_id] for worker_id in sorted(found))


def dead_steps(forks: Sequence[Fork], survivor: Fork) -> tuple[Policy, ...]:
    """Return the steps that are not in the history of `survivor`."""
    counts = {
        (fork.number, batch.at) for fork, limit in survivor.segments() for batch in fork.batches if batch.at < limit
    }
    return tuple(b.consume.policy for fork in forks for b in fork.batches if (fork.number, b.at) not in counts)
