"""kill -9 of workers and of gateways, the trainer's too, at several stages of a version and over slow links: in the end
every digest that anybody proved is the one that was published, in the first fork and in the next."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.demo import TINY, assert_all_gone
from tests.support.processes.runtime import Job, Runtime, count, log_lines

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

HOME, FAR, FARTHER = REGIONS = ("aws:us-east-1", "azure:westeurope", "gcp:asia-northeast1-a")
SPELLING = Path(__file__).parents[2] / "examples" / "spelling.yaml"

SLOWDOWN = 140.0
"""At which a step of the job takes half a second, most of it asleep."""

SLOW_BITS_PER_S = 1.5e6
"""A version of this model takes about as long over such a link as until the next one, so that kills hit transfers."""

CHAIN_VERSIONS = 24
"""Versions that a gateway keeps: more than are trained while a gateway starts again, which then catches up by those
that it lacks."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("runtime")
    with Runtime(folder, REGIONS, SLOWDOWN) as runtime:
        yield runtime
    assert_all_gone(folder)


@pytest.fixture(scope="module")
def job(runtime: Runtime) -> Job:
    """Return a job whose processes were killed at every stage, and which was resumed in a new fork and succeeded."""
    job = Job(
        runtime,
        SPELLING,
        *TINY,
        "steps=4000",
        "staleness=2",
        f"regions.trainer={HOME}",
        "regions.min=3",
        "plan.workers_per_region=1",
        f"network.chain_versions={CHAIN_VERSIONS}",
        "network.check_engine_every_versions=3",
        "failure.max_worker_restarts=20",
        "failure.max_trainer_restarts=0",
        "checkpoint.every_steps=20",
    )
    for region in (FAR, FARTHER):
        job.until_logged(job.worker_log(region), "weights_proven", after=0)
        runtime.set_rate(HOME, region, SLOW_BITS_PER_S)
    _kill_workers(job)
    _kill_gateways(job)
    _kill_home(job)
    job.resume(f"steps={job.version() + 12}")
    job.until_state("succeeded")
    return job


def _kill_workers(job: Job) -> None:
    """Kill a worker before its first weights, with its first weights, and in the middle of a later version."""
    log = job.worker_log(FAR)
    job.until_next_version()  # from here on, who starts has to catch up
    for stage in ("bundle_loaded", "weights_proven"):
        before = count(log, stage)
        job.runtime.kill_worker(FAR)
        job.until_logged(log, stage, after=before)
    job.until_next_version()
    job.runtime.kill_worker(FAR)
    job.until_logged(log, "weights_proven", after=count(log, "weights_proven") + 2)


def _kill_gateways(job: Job) -> None:
    """Kill a gateway before it has a copy, with one, after it has advanced, and in the middle of a later version."""
    runtime, log, worker = job.runtime, job.runtime.agent_log(FARTHER), job.worker_log(FARTHER)
    for stage in ("gateway_listening", "copy_advanced", "copy_advanced"):
        before = count(log, stage)
        runtime.kill_agent(FARTHER)
        runtime.start_agent(FARTHER)
        job.until_logged(log, stage, after=before)
    job.until_next_version()
    runtime.kill_agent(FARTHER)
    runtime.start_agent(FARTHER)
    job.until_logged(worker, "weights_proven", after=count(worker, "weights_proven") + 1)


def _kill_home(job: Job) -> None:
    """Kill the trainer's gateway while it passes a version on; the trainer ends with it."""
    job.until_next_version()
    job.runtime.kill_agent(HOME)
    job.runtime.until_trainer_is_gone(HOME)
    job.runtime.start_agent(HOME)
    job.until_state("failed")


def test_every_digest_that_was_proven_is_the_one_that_was_published(job: Job) -> None:
    published = job.published()

    for region in REGIONS:
        proven = job.proven(region)
        assert [(policy, digest) for policy, digest in proven if published.get(policy) != digest] == []
        assert {policy.partition(".")[0] for policy, _ in proven} == {"0", "1"}, "both forks reached every region"


def test_nothing_differed_and_nothing_was_refused(job: Job) -> None:
    logs = [*job.run.logs.glob("*.log"), *job.runtime.folder.glob("*.log")]
    lines = [(log.name, line) for log in logs for line in log_lines(log)]
    bad = {"weights_differ", "engine_differs", "engine_repaired", "copy_refused", "publication_refused"}

    assert len(logs) == 9
    assert [(name, line) for name, line in lines if line.event in bad] == []
    assert {line.event for _, line in lines if line.level == "ERROR"} <= {"gateway_given_up", "task_ended"}
    assert json.loads(job.run.summary.read_text())["weight_digest_mismatches"] == 0


def test_each_fork_has_a_key_of_its_own_that_the_coordinator_certified_once(job: Job) -> None:
    lines = log_lines(job.runtime.agent_log("coordinator"))
    certified = [line.fields for line in lines if line.event == "trainer_certified"]

    assert [(each["fork"], each["region"]) for each in certified] == [("0", HOME), ("1", HOME)]
    assert len({each["public_key"] for each in certified}) == 2
    assert not [line for line in lines if line.event == "certificate_refused"]


def test_who_came_late_got_the_copy_of_its_own_gateway(job: Job) -> None:
    """A worker that starts again has nothing: its gateway makes it a full state, and asks nobody for one.

    Who starts soon after another one may get the same state.
    """
    lines = log_lines(job.runtime.agent_log(FAR))
    made = [line.fields for line in lines if line.event == "weights_derived" and line.fields["job"] == job.job_id]

    assert [each for each in made if each["kind"] == "anchor"]
    assert not [line for line in lines if line.event == "anchor_requested"]


def test_the_audit_of_both_forks_is_clean(job: Job) -> None:
    found = json.loads(job.runtime.periplus("job", "audit", str(job.run.root), "-o", "json"))

    assert found["findings"] == []
