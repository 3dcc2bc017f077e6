"""The coordinator's database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.events import FleetEvent, FleetEventKind, JobCancelled, JobSubmitted, StepRecorded
from coordinator.state import State
from coordinator.store import (
    DATABASE,
    KEPT_EVENTS_S,
    MIGRATIONS,
    Store,
    authority_key,
    back_up,
    changes_between,
    open_store,
    restore,
)
from periplus.errors import ConfigError, Conflict, NotFound, StorageError
from periplus.values.policy import Policy
from periplus.values.task import RunFiles, TaskState
from tests.support.coordinator.machine_run import AUTHORITY_KEY, SETTINGS, Run, record, request

EMPTY = State(settings=SETTINGS, authority_key=AUTHORITY_KEY)


def stored(store: Store, run: Run) -> None:
    store.write(changes_between(EMPTY, run.state), (), run.now_s)


def test_jobs_and_regions_are_found_again_and_no_region_is_connected(run: Run, tmp_path: Path) -> None:
    files = RunFiles(run_dir="/runs/j", log="/runs/j/log", checkpoint=Policy(0, 2))
    run.says("eu", "j/trainer", TaskState.RUNNING, files=files)
    run.asks("eu")
    with closing(open_store(tmp_path)) as store:
        stored(store, run)
    with closing(open_store(tmp_path)) as store:
        found = store.load(EMPTY, now_s=5000.0)
    assert found.jobs == run.state.jobs
    assert found.requests == {"r": "j"}
    assert {name: (each.epoch, each.connected, each.last_seen_s) for name, each in found.regions.items()} == {
        "eu": (1, False, 5000.0),
        "us": (1, False, 5000.0),
    }
    assert found.regions["eu"].hello == run.state.regions["eu"].hello
    assert not found.links


def test_what_agents_report_again_and_again_is_not_written(run: Run) -> None:
    before = run.state
    run.do(StepRecorded(run.stamp("eu"), "j", record(1)))
    assert changes_between(before, run.state), "the first step after the start decides how a failure is answered"
    before = run.state
    run.do(StepRecorded(run.stamp("eu"), "j", record(2)))
    run.join("ap")
    changes = changes_between(before, run.state)
    assert [parameters[0] for _, parameters in changes] == ["ap"]


def test_a_forgotten_job_takes_its_requests_along(run: Run) -> None:
    store = open_store(None)
    stored(store, run)
    without = State(settings=SETTINGS, authority_key=AUTHORITY_KEY, regions=run.state.regions)
    store.write(changes_between(run.state, without), (), run.now_s)
    found = store.load(EMPTY, 0.0)
    assert (found.jobs, found.requests, sorted(found.regions)) == ({}, {}, ["eu", "us"])


def test_jobs_keep_the_order_of_their_submissions(tmp_path: Path) -> None:
    run = Run()
    for name in ("b", "a", "c"):
        run.now_s += 1
        run.do(JobSubmitted(f"r-{name}", name, request()))
    store = open_store(tmp_path)
    stored(store, run)
    run.now_s += 1
    before = run.state
    run.do(JobCancelled("b"))
    run.do(JobSubmitted("again", "x", request(resume_from="/runs/b", resume_policy=Policy(0, 1), resume_job_id="b")))
    store.write(changes_between(before, run.state), (), run.now_s)
    assert list(store.load(EMPTY, 0.0).jobs) == list(run.state.jobs) == ["a", "c", "b"]


def test_the_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with closing(open_store(directory)) as store:
        made = store.authority().public_key
        assert store.authority().public_key == made
        assert authority_key(directory) == made.hex()
        with pytest.raises(Conflict, match="another coordinator uses"):
            open_store(directory)
    with closing(open_store(directory)) as store:
        assert store.authority().public_key == made
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
    assert open_store(None).authority().public_key != made


def test_a_database_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / DATABASE).chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640.*chmod 600"):
        open_store(tmp_path)
    (tmp_path / DATABASE).chmod(0o600)
    open_store(tmp_path).close()


def test_a_backup_of_a_running_coordinator_is_restored_in_another_place(run: Run, tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "backup"
    with pytest.raises(NotFound):
        back_up(here, file)
    with closing(open_store(here)) as store:
        stored(store, run)
        key = store.authority().public_key
        back_up(here, file)
        run.do(JobCancelled("j"))  # after the backup
        stored(store, run)
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(Conflict, match="exists already"):
        back_up(here, file)
    with pytest.raises(Conflict, match="exists already"):
        restore(file, here)
    restore(file, there)
    with closing(open_store(there)) as store:
        assert store.authority().public_key == key
        assert not store.load(EMPTY, 0.0).jobs["j"].cancelling


def test_what_is_no_backup_makes_no_state_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no database" * 100)
    with pytest.raises(StorageError, match="cannot be used"):
        restore(file, tmp_path / "state")
    assert not (tmp_path / "state" / DATABASE).exists()
    with pytest.raises(NotFound):
        restore(tmp_path / "missing", tmp_path / "state")


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(ConfigError, match="newer Periplus"):
        open_store(tmp_path)


def test_a_job_that_cannot_be_read_is_named(run: Run, tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        stored(store, run)
        store.write([("UPDATE jobs SET body = '{}'", ())], (), 0.0)
        with pytest.raises(ConfigError, match="cannot read"):
            store.load(EMPTY, 0.0)


def test_a_step_is_stored_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        broken = [*changes_between(EMPTY, run.state), ("INSERT INTO nowhere VALUES (1)", ())]
        with pytest.raises(StorageError, match="nowhere"):
            store.write(broken, [FleetEvent(FleetEventKind.JOB_CHANGED, "text")], 0.0)
        assert not store.load(EMPTY, 0.0).jobs
        assert not store.events(0, 10)


def test_events_are_found_by_job_and_region_and_leave_by_age() -> None:
    store = open_store(None)
    told = [
        FleetEvent(FleetEventKind.REGION_JOINED, "joined", region="eu"),
        FleetEvent(FleetEventKind.JOB_SUBMITTED, "submitted", job_id="j", actor="operator at 127.0.0.1"),
        FleetEvent(FleetEventKind.TASK_FAILED, "died", job_id="j", region="eu"),
    ]
    store.write((), told, 1.0)
    assert [each.event for each in store.events(0, 10)] == told
    assert [each.number for each in store.events(0, 10)] == [1, 2, 3]
    assert [each.event.text for each in store.events(0, 10, job_id="j")] == ["submitted", "died"]
    assert [each.event.text for each in store.events(0, 10, job_id="j", region="eu")] == ["died"]
    assert [each.number for each in store.events(1, 1)] == [2]
    assert store.events((1 << 64) - 1, 10) == ()
    store.write((), [told[0]], 2.0 + KEPT_EVENTS_S)
    assert [each.number for each in store.events(0, 10)] == [4]
