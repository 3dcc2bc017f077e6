import pytest

from coordinator.events import JobSubmitted
from coordinator.state import JobState
from periplus.values.task import TaskState
from tests.support.coordinator.machine_run import Run, request


@pytest.fixture
def run() -> Run:
    """Return a machine with two measured regions and a running job: trainer in eu, a worker in each."""
    run = Run()
    run.join("eu", "us")
    run.measure_all()
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.place("j", "eu", "eu", "us")
    run.says("eu", "j/trainer", TaskState.RUNNING)
    assert run.job().state is JobState.RUNNING
    return run
