"""From the `environment` section of a job to what opens its episodes."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from periplus.environment.environment import Environment
from periplus.environment.problem_sets import ProblemSets
from periplus.environment.turns.protocol import TurnEnvironment, TurnTasks
from periplus.job.data_section import EnvironmentSection
from rollout_worker.environments.pool import EnvironmentPool, EnvironmentProgram


class EpisodeSource(Protocol):
    """Opens episodes. Many are open at the same time."""

    def open(self) -> AbstractAsyncContextManager[TurnEnvironment]:
        """Return an environment for one episode, which may wait until there is room for it."""
        ...


@dataclass(frozen=True, slots=True)
class InProcessSource:
    """Opens episodes of the runtime's own environments, which run in the worker: their turns take microseconds."""

    tasks: TurnTasks

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TurnEnvironment]:
        """Return a new episode."""
        yield self.tasks.episode()


def build_source(
    section: EnvironmentSection | None, environment: Environment, code_folder: Path, *, may_stay: bool
) -> InProcessSource | EnvironmentPool | None:
    """Return what opens the episodes of a job; None if its episodes have one turn.

    `environment` has the job's problems, and `code_folder` the user's own modules. `may_stay` is as for
    EnvironmentProgram.
    """
    if section is None or not section.has_turns:
        return None
    if section.path is None:
        main = environment.main if isinstance(environment, ProblemSets) else environment
        tasks: TurnTasks = main  # type: ignore[assignment]  # job_environment.py makes such tasks for the name
        return InProcessSource(tasks)
    program = EnvironmentProgram(path=section.path, config=section.config, folder=code_folder, may_stay=may_stay)
    return EnvironmentPool(program, max_processes=section.processes, timeout_s=section.timeout_s)
