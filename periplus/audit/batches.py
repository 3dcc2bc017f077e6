"""Checks of the journal's lines that end groups: batches, drops and evaluations, against the accepted samples.

Each function takes one line, reports its contradictions as findings, and brings the fork's state up to date. The
staleness of a batch is recomputed from the policies of its tokens, as the kept frames have them, along the lineage of
the fork that consumed it. A line that is wrong still takes effect, so that one fault does not cause many findings.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from periplus.audit.findings import Code, Findings
from periplus.audit.history import Accepted, ConsumedBatch, Fork, History, OldestFrame, SampleKey
from periplus.audit.records import (
    UNSOUND,
    ConsumeEntry,
    DropEntry,
    EvalBeginEntry,
    EvalEntry,
    UsedSample,
    batch_root,
    next_batches_root,
)
from periplus.values.policy import Lineage, Policy, staleness

SHOWN = 20
"""Most sample numbers that a finding lists."""


def consume(history: History, fork: Fork, at: int, record: ConsumeEntry, findings: Findings, place: str) -> None:
    """Check the batch that a `consume` line takes from the ledger, and move the fork to the next version."""
    if record.policy != fork.head:
        findings.add(
            Code.VERSION_GAP,
            place,
            f"a step starts from {record.policy}, but the fork is at {fork.head}",
            found=str(record.policy),
            expected=str(fork.head),
        )
    # Everything is recomputed from the accepted samples, and only then compared with what the line claims.
    batch = ConsumedBatch(at, record)
    seen: set[SampleKey] = set()
    rewards: list[float] = []
    for used in record.samples:
        accepted = _trained(history, fork, used, seen, findings, place)
        seen.add((used.group, used.sample))
        if accepted is not None:
            _count(batch, fork.lineage, accepted)
            _keep_oldest(batch, (used.group, used.sample), accepted)
            if accepted.kept is not None and accepted.kept.reward is not None:
                rewards.append(accepted.kept.reward)
    if rewards:
        batch.reward_mean = math.fsum(rewards) / len(rewards)
    # A step may start before its own version is published; the version before it, and the fork's first, must be.
    published(fork, max(fork.lineage.first_version, record.policy.version - 1), findings, place)
    if fork.background is None:
        evaluations_ended(fork, findings, place)
    _whole_groups(fork, record.samples, findings, place)
    _claims(fork, batch, findings, place)
    _violations(fork, batch, findings, place)
    # The state moves on even if the line was wrong, so that one contradiction is not reported again at each later line.
    fork.add_batch(batch)
    for group, sample in seen:
        fork.consumed_at.setdefault((group, sample), at)
        fork.end_group(group, at)
    fork.head = record.policy.next()
    _extend_root(fork, record)


def drop(fork: Fork, at: int, record: DropEntry, findings: Findings, place: str) -> None:
    """Check that a `drop` line lists exactly the accepted samples of its group, and end the group."""
    group = record.group
    # Samples that an ancestor accepted need not be listed: a restored trainer may not have taken them in again yet.
    accepted = dict(fork.pending.get(group, {}))
    own = {sample for sample, found in accepted.items() if fork.accepted.get((group, sample)) is found}
    problems = []
    if fork.has_ended((group, 0)):
        problems.append("the group had ended before")
    listed = {dropped.sample for dropped in record.samples}
    if len(listed) != len(record.samples):
        problems.append("a sample is listed twice")
    problems += [f"accepted sample {sample} is not listed" for sample in sorted(own - listed)]
    for dropped in record.samples:
        found = accepted.get(dropped.sample)
        if found is None:
            problems.append(f"sample {dropped.sample} was not accepted, or was used before")
        elif (found.result.digest, found.result.num_tokens) != (dropped.digest, dropped.num_tokens):
            problems.append(f"sample {dropped.sample} differs from the accepted one")
    for problem in problems:
        findings.add(Code.DROP_CONTRADICTS, place, f"group {group} is dropped ({record.why}): {problem}", group=group)
    fork.drops.append((at, record))
    # An evaluation group has the one sample 0, which ends even if the line lists none.
    if fork.is_eval(group):
        fork.open_evals.discard(group)
        for sample in listed | {0}:
            fork.measured_at.setdefault((group, sample), at)
            fork.take((group, sample))
    else:
        fork.end_group(group, at)


def begin_evaluation(fork: Fork, record: EvalBeginEntry, findings: Findings, place: str) -> None:
    """Check that an evaluation in the background begins at the fork's policy, while no other evaluation runs."""
    evaluations_ended(fork, findings, place)
    if record.policy != fork.head or fork.background is not None:
        message = f"an evaluation of {record.policy} begins while the fork is at {fork.head}"
        if fork.background is not None:
            message += f" and one of {fork.background} runs"
        findings.add(Code.EVAL_CONTRADICTS, place, message, policy=str(record.policy))
    fork.background = record.policy


def evaluate(fork: Fork, at: int, record: EvalEntry, findings: Findings, place: str) -> None:
    """Check the samples of an `eval` line: accepted, leased for an evaluation, and sampled by the named policies."""
    newest = record.newest or record.policy
    for used in record.samples:
        sample = (used.group, used.sample)
        # The sample is used up even if something is wrong with it.
        found = fork.take(sample)
        fork.open_evals.discard(used.group)
        problem = ""
        if found is None:
            problem = "was evaluated before" if sample in fork.measured_at else "was never accepted"
        elif found.result.digest != used.digest:
            problem = "differs from the accepted one"
        elif not fork.is_eval(used.group):
            problem = "was leased for training"
        elif other := _other_policy(fork.lineage, found, record.policy, newest):
            by = str(record.policy) if newest == record.policy else f"one of {record.policy} to {newest}"
            problem = f"was sampled by {other}, not by {by}"
        if problem:
            message = f"an evaluation uses sample {used.sample} of group {used.group}, which {problem}"
            findings.add(Code.EVAL_CONTRADICTS, place, message, group=used.group, sample=used.sample)
        fork.measured_at.setdefault(sample, at)
    is_possible = (
        record.policy == fork.head
        if record.newest is None
        else record.policy == fork.background and record.policy <= newest <= fork.head
    )
    if not is_possible:
        message = f"an evaluation of {record.policy} while the fork is at {fork.head}"
        findings.add(Code.EVAL_CONTRADICTS, place, message, policy=str(record.policy))
    # Training goes on during an evaluation in the background, so that its newest version may not be published yet.
    published(fork, fork.head.version if record.newest is None else newest.version, findings, place)
    fork.evals.append((at, record))
    # One evaluation runs at a time, so that this line ends all its groups.
    fork.background = None
    evaluations_ended(fork, findings, place)


def evaluations_ended(fork: Fork, findings: Findings, place: str) -> None:
    """Report evaluation groups that are neither evaluated nor dropped.

    A trainer must have none of these after an evaluation, when it takes a step while no evaluation runs in the
    background, and when it ends with success.
    """
    if fork.open_evals:
        group = min(fork.open_evals)
        message = f"{len(fork.open_evals)} groups, such as {group}, were leased for an evaluation, and none used them"
        findings.add(Code.EVAL_CONTRADICTS, place, message, group=group, groups=len(fork.open_evals))
        # Reported once: later lines start afresh.
        fork.open_evals.clear()


def published(fork: Fork, version: int, findings: Findings, place: str) -> None:
    """Report the versions of the fork, up to this one, that should be published by now and are not."""
    if fork.next_published <= version:
        missing = f"{fork.number}.{fork.next_published}"
        count = version + 1 - fork.next_published
        message = f"{missing} was never published" + (f", nor {count - 1} versions after it" if count > 1 else "")
        findings.add(Code.PUBLISH_MISSING, place, message, policy=missing, versions=count)
        # The missing versions count as published from here on, so that they are reported once.
        fork.next_published = version + 1


def _other_policy(lineage: Lineage, found: Accepted, policy: Policy, newest: Policy) -> Policy | None:
    """Return a policy of the sample's tokens that has other weights than the evaluated ones, or None."""
    return next(
        (
            run.policy
            for run in found.result.policies
            if not policy.version <= run.policy.version <= newest.version or run.policy not in lineage
        ),
        None,
    )


def _trained(
    history: History, fork: Fork, used: UsedSample, seen: set[SampleKey], findings: Findings, place: str
) -> Accepted | None:
    """Check one sample of a batch, and return its accepted result.

    Returns None if it was used before, or never accepted. A sample that was accepted on a dead branch returns the
    result from there, so that its tokens are counted.
    """
    sample = (used.group, used.sample)
    names: dict[str, object] = {"group": used.group, "sample": used.sample, "digest": used.digest.hex()}
    what = f"sample {used.sample} of group {used.group}"
    # The checks go from the worst on: trained twice, group dropped, evaluation, other content, never accepted.
    found = fork.waiting(sample)
    before = fork.consumed(sample)
    if sample in seen or before is not None:
        where = f"line {before + 1}" if before is not None else "this batch"
        findings.add(Code.TRAINED_TWICE, place, f"{what} is trained on, and was trained on in {where} before", **names)
        return None
    if fork.group_ended(used.group) is not None:
        findings.add(Code.TRAINED_AFTER_DROP, place, f"{what} is trained on, and its group was dropped", **names)
        return None
    # This is a finding, but its tokens were trained on and are counted below.
    if fork.is_eval(used.group):
        findings.add(Code.TRAINED_EVAL, place, f"{what} is trained on, and was leased for an evaluation", **names)
    if found is not None:
        if found.result.digest != used.digest:
            findings.add(
                Code.DIGEST_DIFFERS,
                place,
                f"{what}: the optimizer's input is not the sample that was accepted",
                accepted=found.result.digest.hex(),
                **names,
            )
        return found
    # Not accepted in this history: look in the dead branches for the very same content, the newest first.
    elsewhere = [
        other.accepted[sample]
        for other in reversed(history.forks)
        if sample in other.accepted and other.accepted[sample].result.digest == used.digest
    ]
    if elsewhere:
        message = f"{what} is trained on, but was accepted on a branch that this history does not have"
        findings.add(Code.DEAD_BRANCH, place, message, **names)
        return elsewhere[0]
    if fork.was_leased(sample):
        findings.add(Code.TRAINED_NOT_ACCEPTED, place, f"{what} is trained on, and was never accepted", **names)
    else:
        findings.add(Code.TRAINED_NOT_LEASED, place, f"{what} is trained on, and was never leased", **names)
    return None


def _count(batch: ConsumedBatch, lineage: Lineage, accepted: Accepted) -> None:
    policy = batch.consume.policy
    batch.num_tokens.append(accepted.result.num_tokens)
    batch.by_frame += accepted.kept is not None
    for run in accepted.result.policies:
        # `staleness` raises if the sampling policy is not an ancestor of the consuming one, or is newer.
        try:
            batch.ages[staleness(policy, run.policy, lineage)] += run.num_tokens
        except ValueError:
            if _is_future(policy, run.policy, lineage):
                batch.from_future += run.num_tokens
            else:
                batch.dead_branch += run.num_tokens


def _keep_oldest(batch: ConsumedBatch, sample: SampleKey, accepted: Accepted) -> None:
    frame = accepted.result.frame
    if frame is not None and (batch.oldest is None or frame < batch.oldest.frame):
        batch.oldest = OldestFrame(frame, sample)


def _is_future(consumer: Policy, sampled_by: Policy, lineage: Lineage) -> bool:
    return sampled_by.fork > consumer.fork or (sampled_by in lineage and sampled_by.version > consumer.version)


def _violations(fork: Fork, batch: ConsumedBatch, findings: Findings, place: str) -> None:
    bound = fork.opened.bound
    # Age is the step's version less the version that sampled the token; up to `bound` is allowed.
    old = {age: tokens for age, tokens in sorted(batch.ages.items()) if age > bound}
    batch.stale = sum(old.values())
    if old:
        findings.add(
            Code.STALE,
            place,
            f"{batch.stale} tokens are older than the bound {bound}: up to {max(old)}",
            tokens_by_age={str(age): tokens for age, tokens in old.items()},
            bound=bound,
        )
    if batch.from_future:
        message = f"{batch.from_future} tokens are of a policy newer than the step's own, {batch.consume.policy}"
        findings.add(Code.FROM_FUTURE, place, message, tokens=batch.from_future)
    if batch.dead_branch:
        message = f"{batch.dead_branch} tokens are of a policy that is not in the history of fork {fork.number}"
        findings.add(Code.DEAD_BRANCH, place, message, tokens=batch.dead_branch)


def _whole_groups(fork: Fork, samples: Sequence[UsedSample], findings: Findings, place: str) -> None:
    size, per_step = fork.opened.group_size, fork.opened.groups_per_step
    groups: dict[int, Counter[int]] = {}
    for used in samples:
        groups.setdefault(used.group, Counter())[used.sample] += 1
    for group, found in groups.items():
        # With `size` different numbers, of which the largest is size - 1, each of 0 to size - 1 is there.
        if len(found) != size or max(found) != size - 1:
            shown = sorted(found)[:SHOWN]
            findings.add(
                Code.GROUP_INCOMPLETE,
                place,
                f"group {group} is trained with samples {shown} of {size}",
                group=group,
                samples=shown,
                expected=size,
            )
    if len(groups) + (left_out := _left_out(fork)) != per_step:
        message = f"a batch of {len(groups)} groups, and {left_out} left out; a step takes {per_step}"
        findings.add(Code.BATCH_SIZE, place, message, found=len(groups), expected=per_step)


def _left_out(fork: Fork) -> int:
    """Return the number of groups that were left out of the batch at the end of the journal."""
    since = fork.batches[-1].at if fork.batches else -1
    drops = takewhile(lambda each: each[0] > since, reversed(fork.drops))
    return sum(drop.why == UNSOUND and not fork.is_eval(drop.group) for _, drop in drops)


def _claims(fork: Fork, batch: ConsumedBatch, findings: Findings, place: str) -> None:
    record = batch.consume
    root = batch_root([used.digest for used in record.samples])
    if record.root != root:
        message = "the root of the batch does not follow from its samples"
        findings.add(Code.ROOT_WRONG, place, message, found=record.root.hex(), expected=root.hex())
    # A line lists only ages that some token has.
    ages = {age: tokens for age, tokens in sorted(batch.ages.items()) if tokens}
    if dict(record.staleness_tokens) != ages:
        found = {str(age): tokens for age, tokens in sorted(record.staleness_tokens.items())}
        expected = {str(age): tokens for age, tokens in ages.items()}
        message = f"tokens by age are said to be {found}; recomputed: {expected}"
        findings.add(Code.STALENESS_CLAIMED, place, message, found=found, expected=expected)


def _extend_root(fork: Fork, record: ConsumeEntry) -> None:
    before = fork.roots.get(record.policy.version)
    # Without the root before, which lies in another file, no later root can be checked.
    if before is not None:
        fork.roots[record.policy.version + 1] = next_batches_root(before, record.root)
