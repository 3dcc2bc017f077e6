"""What a script can submit, to whom it connects, and what it is told when it cannot."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import periplus
from coordinator.client.library.client import Client, connect
from periplus.errors import ConfigError, NotFound, StateError, Unreachable
from periplus.job.job_file import JobFile
from tests.support.coordinator.loopback import JOB, play


def submitted(client: Client, job_id: str) -> dict[str, Any]:
    """Return the job file that the coordinator was sent."""
    found: dict[str, Any] = json.loads(client._coordinator.job(job_id).job_json)
    return found


def test_a_job_is_a_mapping_an_object_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))

    def script(address: str) -> None:
        with connect(address) as client:
            assert client.address == address
            forms: list[Any] = [JOB, {**JOB, "schema": "periplus.job/1"}, JobFile.model_validate(JOB), file, str(file)]
            jobs = [client.submit(job, overrides=("seed=7",)) for job in forms]
            trees = [submitted(client, job.job_id) for job in jobs]
            assert trees == [trees[0]] * len(forms), "the form makes no difference"
            assert (trees[0]["seed"], trees[0]["steps"], trees[0]["data"]["size"]) == (7, 3, 128)
            assert len({job.job_id for job in jobs}) == len(forms)
            assert [status.job_id for status in client.jobs()] == [job.job_id for job in jobs]
            assert client.job(jobs[2].job_id[:-1]).job_id == jobs[2].job_id
            with pytest.raises(NotFound, match="nothing"):
                client.job("nothing")

    play(lambda address: asyncio.to_thread(script, address))


def test_a_plan_is_a_mapping_or_a_file(tmp_path: Path) -> None:
    rows = ({"task": "trainer", "region": "us", "num_workers": 1},)
    plan = {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": "us", "assignments": rows}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    sent: list[str] = []

    class Recorder:
        def submit(self, request: Any) -> Any:
            sent.append(request.plan_json)
            return request

    client = Client(cast(Any, Recorder()))
    for form in (plan, file, str(file), None):
        with suppress(AttributeError):  # the recorder's answer has no job_id
            client.submit(JOB, plan=form)
    assert [bool(each) for each in sent] == [True, True, True, False]
    assert len(set(sent[:3])) == 1
    with pytest.raises(ConfigError, match="the plan"):
        client.submit(JOB, plan={"schema": "periplus.plan/1"})


def test_a_mapping_may_hold_paths_and_tuples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"prompt": f"{number}?", "answer": number}) for number in range(40)]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    job = {"name": "own", "data": {"path": Path("problems.jsonl")}, "eval": {"num_prompts": 4}}

    def script(address: str) -> None:
        with connect(address) as client:
            tree = submitted(client, client.submit({**job, "optimizer": {"betas": (0.9, 0.9)}}).job_id)
            assert tree["data"]["path"] == str(tmp_path / "problems.jsonl"), "as seen from the script"
            assert tree["optimizer"]["betas"] == [0.9, 0.9]

    play(lambda address: asyncio.to_thread(script, address))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({**JOB, "learning_rate": 1e-3}, "unknown key learning_rate"),
        ({**JOB, "steps": "many"}, 'steps is "many"'),
        ({**JOB, "data": {"path": "x.jsonl"}}, "exactly one of environment, data.path and data.sources"),
        ({**JOB, "environment": {"name": "no_such_task"}}, "no_such_task"),
        ({**JOB, "steps": object()}, "which a job file cannot hold"),
        ({**JOB, "schema": "periplus.job/9"}, r"schema must be periplus\.job/1"),
        ({}, "is empty"),
        ("missing.yaml", "no such file"),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_it_is_sent(job: Any, message: str) -> None:
    def script(address: str) -> None:
        with connect(address) as client:
            with pytest.raises(ConfigError, match=message):
                client.submit(job)
            assert client.jobs() == ()

    play(lambda address: asyncio.to_thread(script, address))


def test_code_of_ones_own_is_sent_only_if_it_is_agreed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def score(completions):\n    return [0.5 for _ in completions]\n")
    monkeypatch.chdir(tmp_path)
    job = {**JOB, "reward": {"functions": [{"path": "my_rewards:score"}]}}

    def script(address: str) -> None:
        with connect(address) as client:
            with pytest.raises(ConfigError, match=r"sends code of its own .*my_rewards\.py.* allow_code=True"):
                client.submit(job)
            assert client.jobs() == ()
            tree = submitted(client, client.submit(job, allow_code=True).job_id)
            assert list(tree["reward"]["code_digests"]) == ["my_rewards.py"]

    play(lambda address: asyncio.to_thread(script, address))


def test_an_environment_of_ones_own_needs_the_same_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_game.py").write_text("class Game:\n    pass\n")
    (tmp_path / "problems.jsonl").write_text('{"prompt": "1?", "answer": "1"}\n')
    monkeypatch.chdir(tmp_path)
    job = {"name": "own", "environment": {"path": "my_game:Game"}, "data": {"path": "problems.jsonl"}}

    def script(address: str) -> None:
        with connect(address) as client:
            with pytest.raises(ConfigError, match=r"sends code of its own .*my_game\.py.* allow_code=True"):
                client.submit(job)
            assert client.jobs() == ()

    play(lambda address: asyncio.to_thread(script, address))


def test_an_object_is_held_to_the_rules_between_keys() -> None:
    job = JobFile.model_validate({**JOB, "train": {"groups_per_step": 2, "minibatches": 4}})

    def script(address: str) -> None:
        with connect(address) as client, pytest.raises(ConfigError, match=r"train\.minibatches is 4"):
            client.submit(job)

    play(lambda address: asyncio.to_thread(script, address))


def test_something_that_is_no_job_is_a_mistake_of_the_script() -> None:
    def script(address: str) -> None:
        with connect(address) as client, pytest.raises(TypeError, match="not int"):
            client.submit(3)  # type: ignore[arg-type]

    play(lambda address: asyncio.to_thread(script, address))


def test_it_works_where_an_event_loop_runs() -> None:
    """As in a cell of Jupyter, whose thread runs a loop: nothing there may be awaited or started."""

    def notebook(address: str) -> None:
        async def cell() -> str:
            with connect(address) as client:
                return client.submit(JOB).status().state

        assert asyncio.run(cell()) in ("pending", "planned")

    play(lambda address: asyncio.to_thread(notebook, address))


def test_a_closed_connection_says_so() -> None:
    def script(address: str) -> None:
        with connect(address) as client:
            job = client.submit(JOB)
        for call in (job.status, job.cancel, lambda: list(job.metrics()), client.jobs):
            with pytest.raises(StateError, match="is closed; use its jobs inside"):
                call()

    play(lambda address: asyncio.to_thread(script, address))


def test_without_a_fleet_the_error_says_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PERIPLUS_COORDINATOR", raising=False)
    monkeypatch.setattr("coordinator.client.address.DEFAULT_ADDRESS", "127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"no local fleet runs on this machine.*127\.0\.0\.1:1.*`periplus up`"):
        periplus.connect()
    with pytest.raises(Unreachable, match=r"^no coordinator answers at 127\.0\.0\.1:2; .*periplus\.up\(\)"):
        periplus.connect("127.0.0.1:2")
    monkeypatch.setitem(os.environ, "PERIPLUS_COORDINATOR", "127.0.0.1:3")
    with pytest.raises(Unreachable, match=r"^no coordinator answers at 127\.0\.0\.1:3"):
        periplus.connect()


def test_a_run_without_a_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    def script(address: str) -> None:
        with connect(address) as client, pytest.raises(NotFound):
            client.resume(tmp_path / "no-run")

    play(lambda address: asyncio.to_thread(script, address))
