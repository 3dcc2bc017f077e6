"""The command around samples: how a run is named, and what goes where."""

import json
from pathlib import Path

import pytest

from coordinator.client.job_group import ALONE
from coordinator.client.job_group import job as lazy_group
from coordinator.client.samples import samples_command
from periplus.__main__ import run as periplus
from periplus.errors import EXIT_USAGE
from tests.support.trainer.kept_samples import written_run

NOBODY = ("--coordinator", "127.0.0.1:1")
EXIT_NOT_FOUND, EXIT_CONFLICT = 3, 7


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("sums-1", "sums-12", "other-7"):
        written_run(folder / name)
    return folder


@pytest.mark.parametrize("named", ["sums-1", "sums-12", "oth"])
def test_a_run_is_named_by_its_jobs_id_or_by_the_beginning_of_it(
    runs: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert periplus(["job", "samples", named, "--runs-dir", str(runs), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert Path(json.loads(out)["run"]).name.startswith(named)
    assert err == ""


def test_a_run_is_named_by_its_directory(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "samples", str(runs / "sums-1"), "--worst", "--size", "1"]) == 0
    assert "step 1  group 10  sample 0  eu-west  reward 0.1  advantage +0.5" in capsys.readouterr().out


def test_a_page_of_html_is_a_document(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "samples", str(runs / "sums-1"), "-o", "html"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("<!doctype html>")
    assert out.endswith("</html>\n")


def test_a_beginning_of_several_and_a_run_that_is_not_here_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert periplus(["job", "samples", "sum", "--runs-dir", str(runs), *NOBODY]) == EXIT_CONFLICT
    assert "could be any of sums-1, sums-12" in capsys.readouterr().err
    assert periplus(["job", "samples", "nothing", "--runs-dir", str(runs), *NOBODY]) == EXIT_NOT_FOUND
    assert "no run 'nothing' on this machine" in capsys.readouterr().err


def test_worst_and_best_at_once_are_refused(runs: Path) -> None:
    assert periplus(["job", "samples", str(runs / "sums-1"), "--worst", "--best"]) == EXIT_USAGE


def test_the_group_loads_each_command_from_where_it_is() -> None:
    context = lazy_group.make_context("job", ["list"], resilient_parsing=True)
    names = lazy_group.list_commands(context)
    assert {"submit", "watch", *ALONE} <= set(names)
    assert lazy_group.get_command(context, "samples") is samples_command
    assert all(lazy_group.get_command(context, name) is not None for name in names)
    assert lazy_group.get_command(context, "no-such-command") is None
