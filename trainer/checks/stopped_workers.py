"""Workers that are stopped since their rewards are wrong, whether in samples to train on or in those of an evaluation.

Nobody knows since when a worker's rewards are wrong, so that all that it ever sampled is in doubt.
"""

from collections.abc import Callable, Sequence

from periplus.audit import records as audit
from periplus.errors import WrongRewards
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from trainer.checks.reward_checks import RewardChecks
from trainer.intake.committed import KeptTrajectory
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.messages import JobFinished
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.reporting.run_recorder import RunRecorder


class StoppedWorkers:
    """The stopped workers of one job. `send` passes a message to the gateway."""

    def __init__(
        self,
        checks: RewardChecks,
        driver: LedgerDriver,
        journal: WriteAheadJournal,
        recorder: RunRecorder,
        send: Callable[[JobFinished], None],
    ) -> None:
        self._checks, self._driver, self._journal, self._recorder, self._send = checks, driver, journal, recorder, send
        self._reasons: dict[str, str] = {}
        self._is_obstacle_told = False

    async def wrong_groups(self, kept: Sequence[KeptTrajectory]) -> frozenset[int]:
        """Compute some rewards again, and stop workers that gave wrong ones.

        Return the groups with a wrong reward or a sample of a stopped worker. Raises: WrongRewards if no other worker
        is left.
        """
        found = await self._checks.check([each.trajectory for each in kept])
        for each in found:
            self._recorder.reward_differs(each.worker_id, each.why, is_stopped=each.stops)
            if each.stops:
                self._reasons[each.worker_id] = each.why
                since, policy = Policy(0, 0), self._driver.policy
                self._journal.write(
                    audit.DoubtEntry(worker_id=each.worker_id, since=since, policy=policy, why=each.why)
                )
                self.joined(each.worker_id)
        if self._checks.obstacle and not self._is_obstacle_told:
            self._recorder.record(RecordKind.NOTICE, f"rewards are not computed again: {self._checks.obstacle}")
            self._is_obstacle_told = True
        if found and self._reasons.keys() >= self._driver.regions.keys():
            raise WrongRewards(
                f"the rewards of every worker differ from the trainer's; of {found[-1].worker_id}: {found[-1].why}; "
                "see that all regions have the same versions of environment and libraries, or set "
                "reward.recheck_share: 0 if rewards of the job depend on more than problem and completion"
            )
        of_stopped = {each.trajectory.group for each in kept if each.trajectory.worker_id in self._reasons}
        return frozenset(of_stopped | {each.group for each in found})

    def joined(self, worker_id: str) -> None:
        """Tell a worker to end if it is stopped."""
        if (why := self._reasons.get(worker_id)) is not None:
            self._send(JobFinished(worker_id, f"stopped, because its rewards are wrong: {why}"))
