"""What the measuring processes share: the request, the lines of results, and how often a row is repeated."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, resolve
from periplus.job.model_section import builtin_config
from periplus.process.measuring import REPETITIONS, ProfileRequest, is_enough, repeated, spread_of, versions_of

PROGRAM = """
import os, sys
from periplus.process.measuring import measuring_command

def measure(request, say):
    print("a library says this")
    os.system("echo a child says this")
    say("num_rows", request.num_threads)
    if request.num_skipped:
        raise ValueError("no such model")

measuring_command(measure)()
"""


def text_of(**changes: Any) -> str:
    job = resolve(JobFile.model_validate({"name": "j", "environment": {"name": "chain_sum"}}))
    return json.dumps({"job_json": job.to_json(), "model_config": "", "num_threads": 2} | changes)


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "request.json").write_text(text_of())
    command = [sys.executable, "-c", PROGRAM, str(folder / "request.json"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_built_in_model_needs_no_configuration_and_any_other_does() -> None:
    assert json.loads(ProfileRequest.from_json(text_of()).model_config) == builtin_config("builtin:qwen3-tiny")
    assert ProfileRequest.from_json(text_of(model_config="{}")).model_config == "{}"
    job = json.loads(json.loads(text_of())["job_json"])
    job["model"]["path"] = "/nowhere"
    with pytest.raises(ConfigError, match="/nowhere"):
        ProfileRequest.from_json(text_of(job_json=job))


def test_a_request_that_lacks_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="lacks a key"):
        ProfileRequest.from_json(text_of(num_threads=None))


@pytest.mark.processes
def test_standard_output_has_results_alone(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"num_rows": 2}\n')
    assert sorted(done.stderr.splitlines()) == ["a child says this", "a library says this"]


@pytest.mark.processes
def test_a_failure_is_the_last_line_and_the_exit_code(tmp_path: Path) -> None:
    done = ran(tmp_path, "--skip", "1")
    assert done.returncode == 2
    assert [list(json.loads(line)) for line in done.stdout.splitlines()] == [["num_rows"], ["problem"]]
    assert "no such model" in json.loads(done.stdout.splitlines()[-1])["problem"]
    assert "Traceback" in done.stderr


def test_a_row_is_repeated_as_often_as_there_is_time() -> None:
    assert len(repeated(lambda: 0.5)) == REPETITIONS
    assert len(repeated(lambda: 5.0)) == 2
    assert len(repeated(lambda: 100.0)) == 1
    assert not is_enough([])


def test_the_spread_is_a_share_of_the_median() -> None:
    assert spread_of([2.0, 1.0, 4.0]) == 1.5
    assert spread_of([3.0]) == 0.0


def test_only_installed_packages_have_a_version() -> None:
    assert versions_of(["pytest", "no-such-package"]).keys() == {"python", "pytest"}
