"""A whole history of a run: two kills, three forks, evaluations, drops of each kind, duplicates, losses, abandoned
samples."""

import random
from pathlib import Path

from periplus.audit import records as audit
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason
from tests.support.audit.run import AuditRun


def honest_run(root: Path, *, group_size: int = 2, seed: int = 7, prune: bool = False) -> AuditRun:
    """Write three forks, two of them killed after a checkpoint that did not cover all.

    `prune`: frames are removed at the first checkpoint, one evaluation does not hold up training, and the exported
    weights have merged adapters. So there are lines of every kind.
    """
    run = AuditRun(root=root, group_size=group_size, rng=random.Random(seed))
    run.start()
    run.evaluate()
    _fork(run, steps=4, checkpoint_after=2, prune=prune)
    run.keep([run.trajectory(run.lease(run.open_group(), 0))])  # in a frame, and killed before its line was written
    run.kill()
    run.start(Policy(0, 2))
    _fork(run, steps=3, checkpoint_after=2)
    run.kill()
    run.start(Policy(1, 4))
    _fork(run, steps=3, checkpoint_after=2)
    if prune:
        run.say(
            audit.DoubtEntry(
                worker_id="rollout-eu-0", since=run.policy, policy=run.policy, why="log-probabilities differ"
            )
        )
        run.evaluate_in_background()
    else:
        run.evaluate()
    run.end(merged=prune)
    return run


def short_run(root: Path) -> AuditRun:
    """Write two forks of few steps. The second begins at the first's checkpoint."""
    run = AuditRun(root=root, group_size=2, rng=random.Random(7))
    run.start()
    _fork(run, steps=2, checkpoint_after=1)
    run.kill()
    run.start(Policy(0, 1))
    _fork(run, steps=1, checkpoint_after=1)
    run.end()
    return run


def _fork(run: AuditRun, *, steps: int, checkpoint_after: int, prune: bool = False) -> None:
    """Write steps with all that can happen to a group. At the checkpoint one group is whole, and one is half in."""
    on_their_way: list[audit.LeaseEntry] = []
    for step in range(1, steps + 1):
        for lease in on_their_way:
            run.arrive(run.trajectory(lease))
        on_their_way.clear()
        for group in sorted(run.open_groups):  # half in, or of an earlier fork: what is missing is leased again
            if _oldest(run, group) + run.bound < run.policy.version:
                run.drop(group, "overdue")
            else:
                run.fill(group)
        whole = sorted(run.waiting)
        while len(whole) < run.groups_per_step:
            whole.append(run.open_group())
            _troubled(run, whole[-1], step)
            run.fill(whole[-1], policies=_swapped(run))
        run.fill(run.open_group(), policies=_swapped(run))
        half = run.open_group()
        run.arrive(run.trajectory(run.lease(half, 0)))
        last = run.lease(half, run.group_size - 1)
        if step == checkpoint_after:
            on_their_way.append(last)
        else:
            run.drop(half, ("failed", "overdue", "filtered")[step % 3])
            run.arrive(run.trajectory(last), verdict=audit.AdmissionVerdict.REFUSED, why="late")
        run.consume(whole[: run.groups_per_step], trained=step != 3, why="no_token" if step == 3 else "")
        if step == checkpoint_after:
            run.checkpoint()
            if prune:
                run.prune()


def _troubled(run: AuditRun, group: int, step: int) -> None:
    """Write what can go wrong before a group is whole.

    A sample is abandoned, one is refused, leases are lost (one result comes in all the same, so that its second lease
    was in vain), and one result comes twice.
    """
    slow = run.lease(group, 1, "rollout-ap-0")
    run.lose(slow)
    run.lease(group, 1)
    run.arrive(run.trajectory(slow))  # first all the same: the lease before this line is released
    lost = run.lease(group, 0, "rollout-ap-0")
    run.lose(lost, ("expired", "worker_gone", "failed")[step % 3])
    given_up = run.lease(group, 0)
    run.arrive(run.trajectory(given_up, stop=StopReason.ABANDONED), verdict=audit.AdmissionVerdict.ABANDONED)
    run.lose(given_up, "failed")
    refused = run.lease(group, 0)
    run.arrive(run.trajectory(refused), verdict=audit.AdmissionVerdict.REFUSED, why="unfit")
    first = run.lease(group, 0)
    run.arrive(run.trajectory(first))
    run.arrive(run.trajectory(lost), verdict=audit.AdmissionVerdict.DUPLICATE, why="duplicate")


def _swapped(run: AuditRun) -> tuple[Policy, ...]:
    """Return the policies of a generation within which the weights changed, or () where there is no older policy."""
    older = Policy(run.policy.fork, run.policy.version - 1)
    return (older, run.policy) if older in run.lineage and older.version >= 0 else ()


def _oldest(run: AuditRun, group: int) -> int:
    kept = run.waiting.get(group, {}).values()
    return min((r.policy.version for k in kept for r in k.result.policies), default=run.policy.version)
