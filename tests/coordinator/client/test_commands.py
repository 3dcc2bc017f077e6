"""The operator's command line against a coordinator on a loopback port: what it prints, and how it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from periplus.__main__ import run as periplus
from periplus.config.yaml_text import parse
from periplus.job.run_directory import start_line
from periplus.pb.v1 import common_pb2, control_pb2
from planner.files.fleet_file import fleet_of
from tests.support.coordinator.loopback import Command, FakeAgent, play_commands, step_record
from tests.support.left_run import left_run

FEW_PROBLEMS: dict[str, Any] = {"data": {"size": 128}, "eval": {"num_prompts": 16}}
JOB_YAML = (
    "name: sums\nenvironment: {name: chain_sum}\ndata: {size: 128}\neval: {num_prompts: 16}\n"
    "sampling: {prompt_tokens: 64}\nsteps: 3\n"
)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB_YAML)
    return path


def test_operators_see_jobs_regions_and_links(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str, command: Command) -> None:
        assert await command("job", "list") == 0
        assert "no jobs yet" in capsys.readouterr().err
        async with FakeAgent(address, "eu") as eu, FakeAgent(address, "us") as us, asyncio.TaskGroup() as tasks:
            told = [tasks.create_task(agent.until_desired()) for agent in (eu, us)]
            assert await command("job", "submit", str(job_file), "regions.min=2", "-o", "name") == 0
            out, err = capsys.readouterr()
            job_id = out.strip()
            assert f"periplus job watch {job_id}" in err
            await asyncio.gather(*told)
            assert await command("job", "show", "sums") == 0
            out = capsys.readouterr().out
            assert "rollout-us-0" in out
            assert "placed" not in out
            assert await command("job", "show", "sums", "-o", "json") == 0
            shown = json.loads(capsys.readouterr().out)
            assert (shown["job_id"], shown["job"]["steps"], shown["plan"]["schema"]) == (job_id, 3, "periplus.plan/1")
            assert await command("region", "list", "-o", "name") == 0
            assert capsys.readouterr().out == "eu\nus\n"
            assert await command("region", "show", "e") == 0
            assert "host-boot" in capsys.readouterr().out
            assert await command("links") == 0
            assert "100 Mbit/s" in capsys.readouterr().out
            assert await command("links", "-o", "json") == 0
            assert json.loads(capsys.readouterr().out)["links"][0]["rtt_s"] == pytest.approx(0.1)
            assert await command("region", "export") == 0
            fleet = fleet_of(parse(capsys.readouterr().out, "export"), "export")
            assert [(each.name, each.machines[0].gpu, each.num_cores) for each in fleet.regions] == [
                ("eu", "L4", 4),
                ("us", "L4", 4),
            ]
            assert {(link.src_region, link.dst_region) for link in fleet.links} == {("eu", "us"), ("us", "eu")}
            assert await command("job", "logs", job_id) == 3
            assert "host-boot" in capsys.readouterr().err
            assert await command("job", "cancel", "sums") == 0
            assert await command("job", "watch", "sums") == 1
            out, err = capsys.readouterr()
            assert "was cancelled" in err
            assert await command("job", "list") == 0
            assert "cancelled" in capsys.readouterr().out
            assert await command("job", "cancel", "nothing") == 3

    play_commands(scene)


def test_submit_and_watch_ends_with_the_job(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", str(job_file), "regions.trainer=mars", "--wait") == 4
            assert capsys.readouterr().err.count("mars") == 1, "the reason is said once"
            watching = asyncio.create_task(command("job", "submit", str(job_file), "--watch"))
            await eu.until_desired()
            job_id = next(iter(eu.desired)).split("/")[0]
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_RUNNING)
            await eu.send(step=step_record(job_id, 3))
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_SUCCEEDED)
            assert await watching == 0
            out = capsys.readouterr().out
            assert "job sums succeeded" in out
            assert "step 3/3" in out

    play_commands(scene)


def test_who_waits_for_a_job_is_told_its_notice(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            waiting = asyncio.create_task(command("job", "submit", str(job_file), "--wait"))
            await eu.until_desired()
            job_id = next(iter(eu.desired)).split("/")[0]
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_RUNNING)
            notice = step_record(job_id, 1)
            notice.kind, notice.text = "notice", "no sample has a reward"
            await eu.send(step=notice)
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_SUCCEEDED)
            assert await waiting == 0
            # When the watch prints the plan is its own to say, so everything is read at the end.
            err = capsys.readouterr().err
            assert "TASK     REGION  DEVICE " in err
            assert "no prices known: no dollars" in err
            assert "NOTICE: no sample has a reward" in err

    play_commands(scene)


def test_a_plan_made_by_hand_is_what_runs(job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    rows = "- {task: trainer, region: us, num_workers: 1}\n- {task: rollout, region: eu, num_workers: 1}\n"
    plan.write_text(f"schema: periplus.plan/1\nmethod: by hand\ntrainer_region: us\nassignments:\n{rows}")

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu, FakeAgent(address, "us") as us:
            submit = ("job", "submit", str(job_file), "regions.min=2")
            assert await command(*submit, "--plan", str(job_file)) == 2
            assert "give a plan" in capsys.readouterr().err
            assert await command(*submit, "--plan", str(plan), "--objective", "cost") == 2
            assert "--objective and --max-usd-per-hour are for a search" in capsys.readouterr().err
            assert await command(*submit, "--plan", str(plan)) == 0
            job_id = capsys.readouterr().out.strip()
            await asyncio.gather(eu.until_desired(), us.until_desired())
            assert [*us.desired] == [f"{job_id}/trainer"]
            assert await command("job", "show", job_id, "-o", "json") == 0
            shown = json.loads(capsys.readouterr().out)
            assert [(each["region"], each["state"]) for each in shown["processes"]] == [
                ("us", "planned"),
                ("eu", "planned"),
            ]
            assert shown["plan"]["method"] == "by hand"

    play_commands(scene)


def test_the_objective_and_the_limit_are_keys_of_the_job(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "submit", str(job_file), "--dry-run", "-o", "json"]
    assert periplus([*words, "plan.max_usd_per_hour=3", "--max-usd-per-hour", "2.5"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["max_usd_per_hour"] == 2.5
    assert periplus([*words, "--objective", "cost", "--max-usd-per-hour", "2.5"]) == 2
    assert "plan.max_usd_per_hour is 2.5, but plan.objective is cost" in capsys.readouterr().err


def test_a_run_is_resumed_from_its_newest_checkpoint(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = left_run(tmp_path / "sums-1", (0, 9), (1, 2), (1, 10), **FEW_PROBLEMS)
    job_file.write_text(JOB_YAML.replace("steps: 3", "steps: 20"))
    (run_dir / "checkpoints" / "1.11").mkdir()

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", str(job_file), "--resume", str(run_dir)) == 0
            assert capsys.readouterr().out == "sums-1\n"
            await eu.until(lambda: "sums-1/trainer" in eu.desired)
            task = eu.desired["sums-1/trainer"]
            assert (task.fork, task.resume_from) == (2, str(run_dir))
            assert await command("job", "submit", "--resume", str(run_dir)) == 7
            assert "cancel it before resuming it" in capsys.readouterr().err
        assert await command("job", "submit", "--resume", str(tmp_path)) == 3
        assert await command("job", "submit", "steps=30", "--resume", str(run_dir)) == 2
        assert "steps: 20 in the run, 30 now" in capsys.readouterr().err

    play_commands(scene)


def test_a_watcher_of_a_resumed_job_is_not_told_the_failure_of_its_earlier_fork(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = left_run(tmp_path / "sums-1", (0, 9), **FEW_PROBLEMS)
    files = control_pb2.RunFiles(
        run_dir=str(run_dir),
        log=str(run_dir / "logs" / "trainer.log"),
        report=str(run_dir / "report.html"),
        checkpoint=common_pb2.Policy(fork=1, version=12),
    )

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            resume = ("job", "submit", "--resume", str(run_dir), "--wait")
            waiting = asyncio.create_task(command(*resume))
            await eu.until_desired()
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_FAILED, "killed", fork=1, files=files)
            assert await waiting == 1
            first = capsys.readouterr().err
            assert "the trainer in eu failed: killed; its log is" in first
            assert first.count("killed") == 1, "the reason is said once"
            for line in (
                f"run directory: {run_dir}",
                f"report: {run_dir}/report.html",
                "checkpoint: 1.12",
                f"resume: periplus job submit --resume {run_dir}",
            ):
                assert line in first.splitlines()
            assert await command("job", "show", "sums-1") == 0
            shown = capsys.readouterr().out
            assert f"periplus job submit --resume {run_dir}" in shown
            assert f"{run_dir}/report.html" in shown

            await eu.until(lambda: not eu.desired)
            watching = asyncio.create_task(command("job", "submit", "--resume", str(run_dir), "--watch"))
            await eu.until_desired()
            assert eu.desired["sums-1/trainer"].fork == 2
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_RUNNING, fork=2, files=files)
            await eu.report("sums-1/trainer", control_pb2.TASK_STATE_SUCCEEDED, fork=2, files=files)
            assert await watching == 0
            said = "".join(capsys.readouterr())
            assert "job sums succeeded" in said
            assert f"model: {run_dir}/final" in said
            assert "failed" not in said
            assert "killed" not in said

    play_commands(scene)


def test_a_fork_that_saved_nothing_is_not_granted_again_by_a_coordinator_that_forgot_it(tmp_path: Path) -> None:
    run_dir = left_run(tmp_path / "sums-1", (0, 9), **FEW_PROBLEMS)
    (run_dir / "metrics.jsonl").write_text('{"fork": 0}\n{"fork": 3}\nno record\n{"fork": 7')

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            assert await command("job", "submit", "--resume", str(run_dir)) == 0
            await eu.until(lambda: "sums-1/trainer" in eu.desired)
            assert eu.desired["sums-1/trainer"].fork == 4

    play_commands(scene)


def test_a_run_directory_that_somebody_removed_is_said_to_be_gone_on_its_own_host_only(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "gone"
    files = control_pb2.RunFiles(run_dir=str(run_dir), log=str(run_dir / "logs" / "trainer.log"))

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu") as eu:
            waiting = asyncio.create_task(command("job", "submit", str(job_file), "--wait"))
            await eu.until_desired()
            job_id = next(iter(eu.desired)).split("/")[0]
            await eu.report(f"{job_id}/trainer", control_pb2.TASK_STATE_FAILED, "no such directory", files=files)
            assert await waiting == 1
            assert "report: none yet" in capsys.readouterr().err, "it is on another host, as far as this one knows"

            monkeypatch.setattr("socket.gethostname", lambda: "host-boot")
            assert await command("job", "show", job_id) == 0
            shown = capsys.readouterr().out
            assert f"run directory  {run_dir} is gone, with its report, logs and checkpoints" in shown
            assert "none yet" not in shown
            assert await command("job", "watch", job_id) == 1
            assert f"run directory: {run_dir} is gone" in capsys.readouterr().err
            assert await command("job", "logs", job_id) == 3
            assert f"{run_dir} was removed from this machine" in capsys.readouterr().err
            run_dir.mkdir()
            assert await command("job", "show", job_id) == 0
            assert "gone, with" not in capsys.readouterr().out

    play_commands(scene)


def test_logs_on_this_machine_are_printed(job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str, command: Command) -> None:
        assert await command("job", "submit", str(job_file), f"output.dir={tmp_path}") == 0
        job_id = capsys.readouterr().out.strip()
        logs = tmp_path / job_id / "logs"
        logs.mkdir(parents=True)
        (logs / "trainer.log").write_text("one\ntwo\n")
        (logs / "rollout-aws-us-0.log").write_text("three\ntorn")
        assert await command("job", "logs", job_id) == 0
        assert capsys.readouterr().out == "rollout-aws-us-0: three\ntrainer: one\ntrainer: two\n"
        assert await command("job", "logs", job_id, "--task", "rollout-aws:us-0") == 0
        assert capsys.readouterr().out == "three\n"
        assert await command("job", "logs", job_id, "--task", "nobody") == 3
        await command("job", "cancel", job_id)
        capsys.readouterr()
        assert await command("job", "logs", job_id, "-f", "--task", "trainer") == 0
        assert capsys.readouterr().out == "one\ntwo\n"
        with (logs / "trainer.log").open("a") as log:
            log.write(f"{start_line(0, 0)}\nkilled\n{start_line(1, 0)}\nresumed\n")
        (logs / "rollout-aws-eu-0.log").write_text(f"{start_line(0, 0)}\nof the earlier fork\n")
        assert await command("job", "logs", job_id) == 0
        said = capsys.readouterr().out
        assert "trainer: resumed" in said
        assert "rollout-aws-us-0: three" in said, "a log without forks is whole"
        assert "killed" not in said
        assert "earlier" not in said
        assert await command("job", "logs", job_id, "--all-forks") == 0
        said = capsys.readouterr().out
        assert "trainer: killed" in said
        assert "earlier" in said

    play_commands(scene)


def test_a_dry_run_needs_no_coordinator(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "submit", str(job_file), "steps=7", "--dry-run", "-o", "json", "--coordinator", "127.0.0.1:1"]
    assert periplus(words) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 7
    assert periplus(["job", "schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


def test_an_unreachable_coordinator_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "list", "--coordinator", "127.0.0.1:1"]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no coordinator answers at 127.0.0.1:1; start one with `periplus up`")
    assert err.count("\n") == 1


@pytest.fixture
def own_code(job_file: Path) -> Path:
    (job_file.parent / "my_rewards.py").write_text(
        "def score(completions):\n    return [len(c) for c in completions]\n"
    )
    job_file.write_text(JOB_YAML + 'reward: {functions: [{path: "my_rewards:score"}, {name: exact, weight: 2}]}\n')
    return job_file


def test_replicas_in_a_region_go_to_the_store_of_its_agent(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit = ("job", "submit", str(job_file), "checkpoint.every_steps=1", "-o", "name")

    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu", replica_store="s3://eu-bucket/runs"), FakeAgent(address, "us"):
            assert await command(*submit, "checkpoint.replicate=us") == 2
            assert "us, a region without a store for replicas (regions with one: eu); start" in capsys.readouterr().err
            assert await command(*submit, "checkpoint.replicate=asia") == 2
            assert "asia, no region of this fleet (regions with one: eu)" in capsys.readouterr().err
            assert await command(*submit, "checkpoint.replicate=eu") == 0
            job_id = capsys.readouterr().out.strip()
            assert await command("job", "show", job_id, "-o", "json") == 0
            assert json.loads(capsys.readouterr().out)["job"]["checkpoint"]["replicate"] == "s3://eu-bucket/runs"
            assert await command("region", "show", "eu", "-o", "json") == 0
            assert json.loads(capsys.readouterr().out)["replica_store"] == "s3://eu-bucket/runs"

    play_commands(scene)


def test_own_code_is_shown_with_its_digest_and_sent_only_if_it_was_agreed_to(
    own_code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu", allows_own_code=True):
            assert await command("job", "submit", str(own_code)) == 2
            err = capsys.readouterr().err
            assert "my_rewards.py  65 bytes  blake3 " in err
            assert "submit with --allow-code" in err
            assert await command("job", "list") == 0
            assert capsys.readouterr().out == ""
            assert await command("job", "submit", str(own_code), "--allow-code", "-o", "name") == 0
            job_id = capsys.readouterr().out.strip()
            assert await command("job", "show", job_id, "-o", "json") == 0
            shown = json.loads(capsys.readouterr().out)
            assert list(shown["job"]["reward"]["code_digests"]) == ["my_rewards.py"]
            assert shown["state"] != "failed"

    play_commands(scene)


def test_a_job_with_own_code_finds_no_region_that_refuses_it(
    own_code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene(address: str, command: Command) -> None:
        async with FakeAgent(address, "eu"):
            assert await command("job", "submit", str(own_code), "--allow-code", "--wait") == 4
            assert "by starting the agent with --allow-code" in capsys.readouterr().err

    play_commands(scene)


def test_a_dry_run_shows_what_each_function_says_of_the_first_answer(
    own_code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert periplus(["job", "submit", str(own_code), "--dry-run"]) == 0
    err = capsys.readouterr().err
    assert "rewards of the first problem's own answer:" in err
    assert "  my_rewards:score: " in err
    assert "  exact: 1, weight 2" in err
    (own_code.parent / "my_rewards.py").write_text("import no_such_library")
    assert periplus(["job", "submit", str(own_code), "--dry-run"]) == 2
    assert "No module named 'no_such_library'" in capsys.readouterr().err
