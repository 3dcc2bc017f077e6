"""`periplus up` and `import periplus` as a user has them: real fleets, scripts and signals."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.processes.demo import assert_all_gone, pids_of, processes_of, read_until
from tests.support.processes.local_fleet import (
    DEADLINE_S,
    SMALL_JOB,
    first_line,
    local_fleet,
    run_here,
    started_script,
    starting_fleet,
    work_dir,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "from_python.py"

HURRY_S = 20.0
"""Seconds for a fleet to be gone that was told to hurry: half the time that its services have otherwise."""

TRACEBACK = "Traceback (most recent call last):"
FOLLOW = (
    SMALL_JOB
    + """
with periplus.connect() as client:
    job = client.submit(JOB)
    for step in job.metrics(follow=True):
        print(job.job_id, flush=True)
"""
)


def fleets_of(home: Path) -> list[Path]:
    return list((home / "state" / "periplus" / "fleets").glob("*"))


def left_by(home: Path) -> set[str]:
    """Return what lies in the directory of the fleet, and what is left of it in its user's state."""
    return {path.name for path in work_dir(home).iterdir()} | {path.name for path in fleets_of(home)}


def test_the_example_of_the_readme_trains_a_model_and_leaves_its_run_alone(tmp_path: Path) -> None:
    done = run_here(tmp_path, str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    *steps, last = done.stdout.splitlines()
    assert [line.split()[0] for line in steps] == ["1", "2", "3", "4", "5"]
    assert all(0 <= float(line.split()[1]) <= 1 for line in steps)
    state, run_dir = last.split()
    assert (state, Path(run_dir).parent) == ("succeeded", work_dir(tmp_path) / "runs")
    records = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    trained = [f"{each['version']} {each['reward_mean']}" for each in records if each["kind"] == "step"]
    assert steps == trained, "the script saw what the run recorded"
    assert_all_gone(tmp_path)
    assert left_by(tmp_path) == {"runs"}


def test_commands_and_scripts_find_the_fleet_and_ctrl_c_leaves_a_checkpoint(tmp_path: Path) -> None:
    work = work_dir(tmp_path)
    with local_fleet(tmp_path, "--regions", "2") as (up, said):
        assert (said["regions"], said["directory"]) == (["local-1", "local-2"], str(work))
        listed = run_here(tmp_path, "-m", "periplus", "region", "list", "-o", "name")
        assert (listed.returncode, listed.stdout) == (0, "local-1\nlocal-2\n"), listed.stderr
        second = run_here(tmp_path, "-m", "periplus", "up")
        assert (second.returncode, second.stdout) == (7, "")
        assert f"a local fleet runs in {work} already" in second.stderr

        # Ctrl-C in a script that follows ends the script alone, and it claims nothing about the job.
        with started_script(tmp_path, FOLLOW) as script:
            job_id = first_line(script)
            script.send_signal(signal.SIGINT)
            _, error = script.communicate(timeout=DEADLINE_S)
        assert script.returncode == -signal.SIGINT
        assert (error.splitlines()[0], error.splitlines()[-1]) == (TRACEBACK, "KeyboardInterrupt")
        shown = run_here(tmp_path, "-m", "periplus", "job", "show", job_id, "-o", "json")
        assert json.loads(shown.stdout)["state"] == "running", shown.stderr

        up.send_signal(signal.SIGINT)
        _, told = up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 130
    run = work / "runs" / job_id
    assert f"{job_id} was stopped; checkpoint 0." in told
    assert f"periplus job submit --resume {run}" in told
    assert_all_gone(tmp_path)
    assert left_by(tmp_path) - {".periplus"} == {"runs"}
    assert not (work / ".periplus" / "_up").exists()

    # What it said is true: a script goes on with the run.
    again = f"""
import periplus
with periplus.up() as client:
    job = client.resume({str(run)!r}, overrides=["steps=4001"])
    steps = job.metrics(follow=True)
    assert next(steps)["fork"] == 1
    next(steps)  # the samples of a step are written after its record
    newest, worst = job.samples(size=4), job.samples(order="worst", size=1)
    assert len(newest) == 4 and newest[0]["completion"][0]["text"]
    assert worst[0]["reward"] <= min(sample["reward"] for sample in newest)
    job.cancel()
    print(job.wait().state)
"""
    resumed = run_here(tmp_path, "-c", again)
    assert (resumed.returncode, resumed.stdout) == (0, "cancelled\n"), resumed.stderr
    assert_all_gone(tmp_path)


def test_a_killed_fleet_leaves_no_process_and_the_next_one_starts_in_its_place(tmp_path: Path) -> None:
    with local_fleet(tmp_path) as (up, _), started_script(tmp_path, FOLLOW) as script:
        first_line(script)
        assert any("rollout_worker" in words for words in processes_of(tmp_path))
        up.kill()
        _, error = script.communicate(timeout=DEADLINE_S)
    assert "Unreachable" in error.splitlines()[-1]
    assert_all_gone(tmp_path)
    lost = run_here(tmp_path, "-c", "import periplus; periplus.connect('127.0.0.1:1')")
    assert "periplus up" in lost.stderr.splitlines()[-1]
    with local_fleet(tmp_path) as (up, said):
        found = run_here(tmp_path, "-c", "import periplus; print(periplus.connect().address)")
        assert found.stdout.strip() == said["coordinator"], found.stderr
        up.terminate()
        up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 0
    assert_all_gone(tmp_path)
    assert fleets_of(tmp_path) == []


def test_a_killed_script_takes_its_fleet_along(tmp_path: Path) -> None:
    text = SMALL_JOB + "with periplus.up() as client:\n    print(client.address, flush=True)\n    input()"
    with started_script(tmp_path, text) as script:
        first_line(script)
        refused = run_here(tmp_path, "-c", "import periplus\nwith periplus.up():\n    pass")
        assert refused.stderr.splitlines()[-1].startswith("periplus.errors.Conflict: a local fleet runs in")
        script.kill()
    assert_all_gone(tmp_path)
    assert fleets_of(tmp_path) == []


def test_a_fleet_whose_service_dies_ends_with_its_log(tmp_path: Path) -> None:
    with local_fleet(tmp_path) as (up, _):
        (agent,) = [process_id for process_id, words in pids_of(tmp_path) if " agent run " in words]
        os.kill(agent, signal.SIGKILL)
        _, told = up.communicate(timeout=DEADLINE_S)
    assert up.returncode == 1
    assert "agent-local ended unexpectedly; its log ends with:" in told
    assert_all_gone(tmp_path)
    assert (work_dir(tmp_path) / ".periplus" / "_up" / "agent-local.log").exists(), "the logs stay after a failure"


@pytest.mark.parametrize("step", ["starting 3 agents", "link 1 of 6"])
def test_a_fleet_that_is_interrupted_while_it_starts_leaves_nothing(tmp_path: Path, step: str) -> None:
    with starting_fleet(tmp_path, "--grid", "intercontinental") as up:
        read_until(up, step)
        up.send_signal(signal.SIGINT)
        out, told = up.communicate(timeout=DEADLINE_S)
    assert (up.returncode, out) == (130, ""), told
    assert "error" not in told
    assert_all_gone(tmp_path)
    assert left_by(tmp_path) == set()


def test_a_second_interrupt_kills_what_still_runs(tmp_path: Path) -> None:
    with local_fleet(tmp_path) as (up, _), started_script(tmp_path, FOLLOW) as script:
        job_id = first_line(script)
        (agent,) = [process_id for process_id, words in pids_of(tmp_path) if " agent run " in words]
        os.kill(agent, signal.SIGSTOP)  # it cannot stop by itself
        up.send_signal(signal.SIGINT)
        said = read_until(up, f"stopping: {job_id}")
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=HURRY_S)
    assert "Ctrl-C once more" in said
    assert up.returncode == 130
    assert_all_gone(tmp_path)
