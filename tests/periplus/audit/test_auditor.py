"""Runs of honest trainers are clean, whatever happened to them; runs of careless ones are not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.audit.account import Account
from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict, DoubtEntry
from periplus.audit.report import report_text
from periplus.job.run_directory import RunDirectory
from periplus.spool.format import Durability
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason, Trajectory
from tests.support.audit.files import audited, gateway_spool
from tests.support.audit.forger import Forger
from tests.support.audit.history import honest_run
from tests.support.audit.run import JOB, AuditRun


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[AuditRun]:
    """A run of which the test decides each step; it is never wrong by itself."""
    run = AuditRun(root=tmp_path / "careless")
    run.start()
    yield run
    run.kill()


def is_balanced(a: Account) -> bool:
    leases = a.returned + sum(a.lost.values()) + a.released + a.outstanding
    samples = a.trained + a.skipped + sum(a.dropped.values()) + a.measured + a.pending
    return (leases, samples, a.unaccounted) == (a.leased, a.accepted, 0)


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("prune", [False, True])
def test_an_honest_run_with_every_kind_of_trouble_is_clean(tmp_path: Path, group_size: int, prune: bool) -> None:
    honest_run(tmp_path / "run", group_size=group_size, seed=group_size, prune=prune)
    report = audited(tmp_path / "run")
    assert (report.findings, report.is_clean, report.is_ended) == ((), True, True)
    assert [str(fork.head) for fork in report.forks] == ["0.4", "1.5", "2.7"]
    assert [str(policy) for policy in report.dead_steps] == ["0.2", "0.3", "1.4"]
    survivor = report.surviving
    assert survivor is not None
    assert all(is_balanced(account) for account in (survivor, *(fork.account for fork in report.forks)))
    assert (survivor.steps, survivor.trained + survivor.skipped) == (7, 7 * 2 * group_size)
    assert (survivor.violations, survivor.trained_twice) == (0, 0)
    assert set(survivor.tokens_by_staleness) == {0, 1}
    assert sum(survivor.tokens_by_staleness.values()) == survivor.trained_tokens
    assert survivor.lost.keys() | report.forks[0].account.lost.keys() == {"expired", "failed", "worker_gone"}
    assert survivor.dropped.keys() == {"failed", "overdue"}
    assert survivor.refused.keys() == {"late", "unfit"}
    assert min(len(survivor.abandoned_tokens), survivor.duplicates, survivor.released, survivor.replayed) > 0
    assert report.uncommitted == 1, "the frame that was being committed when the first trainer died"
    assert bool(report.pruned_results) is prune
    assert (survivor.trained_by_frame < survivor.trained) is prune


def test_lengths_and_ages_are_recomputed_from_the_frames(careless: AuditRun) -> None:
    careless.step()
    given_up = careless.trajectory(careless.lease(careless.open_group(), 0), stop=StopReason.ABANDONED)
    careless.arrive(given_up, verdict=AdmissionVerdict.ABANDONED)
    careless.end()
    report = audited(careless.root)
    account = report.surviving
    assert report.is_clean
    assert account is not None
    assert account.mean_tokens_trained == account.trained_tokens / 4
    assert account.mean_tokens_sampled == (account.trained_tokens + len(given_up.completion_ids)) / 5
    assert account.length_bias == pytest.approx(account.mean_tokens_trained / account.mean_tokens_sampled - 1)
    assert account.abandoned_tokens == [len(given_up.completion_ids)]


def test_what_was_trained_on_before_a_worker_was_found_unsound_is_told(careless: AuditRun) -> None:
    for _ in range(3):
        groups = [careless.open_group() for _ in range(2)]
        careless.arrive(careless.trajectory(careless.lease(groups[0], 0, worker="rollout-asia-0")))
        for group in groups:
            careless.fill(group)
        careless.consume(groups)
        careless.checkpoint()
    careless.say(
        DoubtEntry(worker_id="rollout-asia-0", since=Policy(0, 1), policy=Policy(0, 3), why="log-probabilities differ")
    )
    careless.say(DoubtEntry(worker_id="rollout-us-0", since=Policy(0, 2), policy=Policy(0, 3), why="drawn otherwise"))
    careless.step()
    careless.journal.flush()
    report = audited(careless.root)
    assert report.is_clean
    asia, us = report.doubted
    assert (asia.worker_id, asia.samples, asia.first, asia.last) == ("rollout-asia-0", 2, Policy(0, 1), Policy(0, 2))
    assert (us.worker_id, us.samples, us.first) == ("rollout-us-0", 0, None)
    text = report_text(report)
    assert f"2 samples ({asia.tokens} tokens) were trained on in steps 0.1 to 0.2 before: log-probabilities" in text
    assert "none of its samples was trained on before: drawn otherwise" in text
    # What a restored fork does not see is not in its history.
    careless.kill()
    careless.start(Policy(0, 2))
    careless.journal.flush()
    (asia, _) = audited(careless.root).doubted
    assert (asia.samples, asia.last) == (1, Policy(0, 1))


def test_a_run_that_was_killed_with_a_torn_line_can_be_audited(run: Path) -> None:
    lines = (run / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (run / "audit.jsonl").write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    (run / "final" / "model.safetensors").unlink()
    report = audited(run)
    assert (report.is_clean, report.is_ended, report.torn_bytes) == (True, False, 20)


def test_a_run_can_be_audited_at_any_moment_between_two_of_its_lines(careless: AuditRun) -> None:
    for _ in range(3):
        careless.step()
        careless.checkpoint()
        careless.evaluate()
        careless.journal.flush()
        assert audited(careless.root).is_clean


def test_a_lease_number_that_another_worker_has_in_a_later_fork_is_no_contradiction(careless: AuditRun) -> None:
    careless.step()
    group = careless.open_group()
    on_its_way = careless.lease(group, 0, worker="rollout-eu-0")
    careless.checkpoint()
    careless.kill()
    careless.start(Policy(0, 1))
    others = [careless.open_group(), careless.open_group()]
    for other in others:
        careless.fill(other)
    again = careless.lease(group, 0, worker="rollout-ap-0")
    assert again.lease_id == on_its_way.lease_id
    careless.arrive(careless.trajectory(on_its_way), verdict=AdmissionVerdict.REFUSED, why="unfit")
    careless.lose(again)
    careless.fill(group)
    careless.consume([group, others[0]])
    careless.end()
    assert audited(careless.root).findings == ()


def test_a_fork_whose_parent_is_in_another_directory_is_audited_from_there_on(tmp_path: Path) -> None:
    first = AuditRun(root=tmp_path / "first")
    first.start()
    first.step()
    first.checkpoint()
    first.kill()
    second = AuditRun(root=tmp_path / "second", checkpoints=first.checkpoints)
    second.start(Policy(0, 1))
    second.step()
    second.end()
    elsewhere = Forger(second.root)
    elsewhere.edit(0, resumed_at=None, manifest=None)
    elsewhere.reseal()
    report = audited(second.root)
    assert report.findings == ()
    assert report.surviving is not None
    assert report.surviving.steps == 1


def test_a_checkpoint_that_was_renamed_but_never_recorded_may_be_resumed_from(careless: AuditRun) -> None:
    careless.step()
    careless.checkpoint()
    careless.kill()
    journal = RunDirectory(careless.root).audit
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b'"checkpoint"' in lines[-2]
    journal.write_bytes(b"".join(lines[:-2]))
    assert audited(careless.root).is_clean
    careless.start(Policy(0, 1))
    careless.step()
    careless.end()
    report = audited(careless.root)
    assert report.findings == ()
    assert "0.1" in report.notes[0]


# ---- careless trainers: every file agrees, and the promise is broken all the same -----------------------------------


def only(run: AuditRun) -> set[Code]:
    run.end()
    return set(audited(run.root).counts)


def test_a_token_older_than_the_bound_is_found(careless: AuditRun) -> None:
    groups = [careless.open_group() for _ in range(2)]
    for group in groups:
        careless.fill(group)
    for _ in range(2):
        careless.step()
    careless.consume(groups)
    assert only(careless) == {Code.STALE}
    account = audited(careless.root).surviving
    assert account is not None
    assert account.tokens_stale == account.violations == account.tokens_by_staleness[2] > 0


def test_a_sample_of_a_dead_branch_is_found(careless: AuditRun) -> None:
    careless.step()
    careless.checkpoint()
    careless.step()
    group = careless.open_group()
    careless.fill(group)
    dead = careless.waiting[group]
    careless.kill()
    careless.start(Policy(0, 1))
    other = careless.open_group()
    careless.fill(other)
    careless.waiting[group] = dead
    careless.consume([group, other], blind=True)
    assert only(careless) >= {Code.DEAD_BRANCH}


def test_tokens_of_a_dead_branch_are_found_though_their_sample_was_accepted_anew(careless: AuditRun) -> None:
    careless.step()
    careless.checkpoint()
    careless.step()
    careless.kill()
    careless.start(Policy(0, 1))
    groups = [careless.open_group(), careless.open_group()]
    careless.fill(groups[0], policies=[Policy(0, 2)])
    careless.fill(groups[1])
    careless.consume(groups, blind=True)
    assert only(careless) == {Code.DEAD_BRANCH}
    account = audited(careless.root).surviving
    assert account is not None
    assert account.tokens_of_dead_branch > 0


def test_tokens_from_the_future_are_found(careless: AuditRun) -> None:
    groups = [careless.open_group(), careless.open_group()]
    careless.fill(groups[0], policies=[Policy(0, 3)])
    careless.fill(groups[1])
    careless.policy = Policy(0, 3)
    careless.consume(groups)
    assert only(careless) >= {Code.ACCEPTED_UNFIT, Code.VERSION_GAP}


def test_a_sample_that_is_left_behind_too_old_is_unaccounted_for(careless: AuditRun) -> None:
    left = careless.open_group()
    careless.fill(left)
    for _ in range(3):
        careless.step()
    assert only(careless) == {Code.UNACCOUNTED}
    account = audited(careless.root).surviving
    assert account is not None
    assert account.unaccounted == careless.group_size


def test_a_lease_that_is_given_to_a_second_worker_without_a_word_is_unaccounted_for(careless: AuditRun) -> None:
    group = careless.open_group()
    careless.lease(group, 0, "first")
    careless.fill(group)
    assert only(careless) == {Code.UNACCOUNTED}


def test_a_group_that_is_passed_over_is_unaccounted_for(careless: AuditRun) -> None:
    careless.step()
    careless.next_group += 1
    careless.step()
    assert only(careless) == {Code.UNACCOUNTED}


def test_a_group_that_a_restore_forgets_is_unaccounted_for(careless: AuditRun) -> None:
    forgotten = careless.open_group()
    careless.lease(forgotten, 0)
    careless.step()
    careless.checkpoint()
    careless.kill()
    careless.start(Policy(0, 1))
    careless.step()
    assert only(careless) == {Code.UNACCOUNTED}


def test_frames_that_a_restore_would_need_must_not_be_pruned(careless: AuditRun) -> None:
    waiting = careless.open_group()
    careless.fill(waiting)
    careless.step()
    careless.checkpoint()
    careless.fill(careless.open_group())
    del careless.waiting[waiting]
    careless.prune()
    assert only(careless) == {Code.PRUNED_TOO_EARLY}


# ---- gateways' spools ------------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(honest: Path, tmp_path: Path) -> Path:
    """A gateway that kept everything it sent."""
    return gateway_spool(honest, tmp_path / "gateway")


def test_a_gateway_that_kept_what_it_sent_agrees(honest: Path, gateway: Path) -> None:
    report = audited(honest, gateway)
    assert report.is_clean
    assert (report.spools[0].uncommitted, report.spools[0].committed) == (1, report.num_witnesses - 1)


def _rewarded(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, reward=0.0)


def test_a_trainer_that_rewrote_everything_is_contradicted_by_the_gateway(run: Path, gateway: Path) -> None:
    forger = Forger(run)
    forger.rewrite_everything(lambda t: t if t.group != 0 else _rewarded(t))
    assert audited(run).is_clean, "nothing on the trainer's own disk can show it"
    assert set(audited(run, gateway).counts) == {Code.SPOOL_CONTRADICTS}


def test_what_a_gateway_never_delivered_is_counted_and_is_no_fault(honest: Path, tmp_path: Path) -> None:
    Spool.open(tmp_path / "empty", durability=Durability.PROCESS, max_bytes=1 << 20).close()
    other = AuditRun(root=tmp_path / "other")
    other.start()
    other.keep([other.trajectory(other.lease(700, 0))])
    other.kill()
    report = audited(honest, tmp_path / "empty", gateway_spool(other.root, tmp_path / "full"))
    assert report.is_clean
    assert [spool.uncommitted for spool in report.spools] == [0, 1]


def test_trajectories_of_another_job_in_a_spool_are_neither_compared_nor_counted(tmp_path: Path) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    groups = [run.open_group(), run.open_group()]
    for group in groups:
        held = [run.lease(group, sample, worker=f"{JOB}/rollout-eu-0") for sample in (0, 1)]
        run.arrive(*map(run.trajectory, held))
    run.consume(groups)
    run.end()
    folder = gateway_spool(run.root, tmp_path / "gateway")
    gateway_spool(run.root, folder, lambda t: replace(t, worker_id="sums-2/rollout-eu-0", reward=0.0))
    report = audited(run.root, folder)
    assert (report.findings, report.spools[0].committed, report.spools[0].uncommitted) == ((), 4, 0)
    assert f"spool {folder} has 4 trajectories of other jobs (sums-2), which are not compared" in report.notes
    forged = gateway_spool(run.root, tmp_path / "forged", lambda t: replace(t, reward=0.0))
    assert set(audited(run.root, forged).counts) == {Code.SPOOL_CONTRADICTS}
