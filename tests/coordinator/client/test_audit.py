"""The command around the audit: what goes where, and with which code it ends."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.client.audit import progress_on
from coordinator.store import open_store
from periplus.__main__ import run as periplus
from periplus.cli.progress_line import ProgressLine
from periplus.config.yaml_text import parse
from periplus.publication import JobAuthority
from tests.support.audit.files import gateway_spool
from tests.support.audit.history import honest_run
from tests.support.keys import AUTHORITY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "sums-1"
    honest_run(root)
    return root


def test_a_clean_run_ends_with_0_and_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "audit", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("clean: every check passed\n")
    # Columns are as wide as their numbers.
    assert ["SURVIVING", "FORK", "0", "FORK", "1", "OF", "0.2", "FORK", "2", "OF", "1.4"] in map(
        str.split, out.splitlines()
    )
    assert err == ""


def test_programs_get_the_same_report_in_json_and_yaml(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "audit", str(run), "-o", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["schema"], tree["clean"], tree["findings"]) == ("periplus.audit-report/1", True, [])
    assert tree["surviving"]["violations"]["tokens"] == tree["surviving"]["unaccounted"] == 0
    assert periplus(["job", "audit", str(run), "-o", "yaml"]) == 0
    assert parse(capsys.readouterr().out, "test") == tree


def test_a_run_that_is_not_clean_ends_with_1_and_says_where(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit.jsonl").write_bytes((run / "audit.jsonl").read_bytes())
    assert periplus(["job", "audit", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "NOT CLEAN" in out
    assert "frame_missing  audit.jsonl:" in out
    assert "more" in out


def test_gateways_spools_are_compared_when_they_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = gateway_spool(run, tmp_path / "spool")
    assert periplus(["job", "audit", str(run), "--spool", str(spool)]) == 0
    assert "committed, 1 not (" in capsys.readouterr().out


def test_signatures_are_verified_with_the_key_that_the_coordinator_prints(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(tmp_path)) as store:
        store.write([("INSERT INTO authority VALUES (?)", (AUTHORITY.private_bytes.hex(),))], (), 0.0)
        assert periplus(["coordinator", "authority", "--state-dir", str(tmp_path)]) == 0
    key = capsys.readouterr().out
    public = tmp_path / "authority.pub"
    public.write_text(key)
    for value in (key.strip(), str(public)):
        assert periplus(["job", "audit", str(run), "--authority", value]) == 0
        assert "present, certified by the authority given: lines 1 to " in capsys.readouterr().out
    assert periplus(["job", "audit", str(run)]) == 0
    assert "present, not verified against an authority: lines 1 to " in capsys.readouterr().out


def test_a_run_of_another_authority_ends_with_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = JobAuthority.generate().public_key.hex()
    assert periplus(["job", "audit", str(run), "--authority", other]) == 1
    assert "seal_wrong  audit.jsonl:" in capsys.readouterr().out
    assert periplus(["job", "audit", str(run), "--authority", other, "--authority", AUTHORITY.public_key.hex()]) == 0


def test_a_private_key_in_place_of_the_public_one_is_told_from_a_forgery(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert periplus(["job", "audit", str(run), "--authority", AUTHORITY.private_bytes.hex()]) == 1
    assert "give what `periplus coordinator authority` prints" in capsys.readouterr().out
    other = JobAuthority.generate()
    for key in (other.public_key, other.private_bytes):
        assert periplus(["job", "audit", str(run), "--authority", key.hex()]) == 1
        assert "private key" not in capsys.readouterr().out


@pytest.mark.parametrize("key", ["absent", "ab" * 31, "ab" * 33, "zz" * 32, ""])
def test_what_is_no_key_ends_with_2(run: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert periplus(["job", "audit", str(run), "--authority", key]) == 2
    assert "key" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["run", "journal", "spool"])
def test_what_is_not_there_ends_with_3(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    arguments = {
        "run": [str(tmp_path / "absent")],
        "journal": [str(tmp_path)],
        "spool": [str(run), "--spool", str(tmp_path / "absent")],
    }[missing]
    assert periplus(["job", "audit", *arguments]) == 3
    assert "error: " in capsys.readouterr().err


def test_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["job", "audit"]) == 2
    assert periplus(["job", "audit", "x", "-o", "name"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("can_redraw", [True, False])
def test_progress_shows_only_when_an_audit_takes_long_and_is_gone_at_the_end(can_redraw: bool) -> None:
    written, now_s = list[str](), [0.0]
    line = ProgressLine.of_files(written.append, can_redraw=can_redraw, began_s=0.0)
    show = progress_on(line, lambda: now_s[0])
    show("journal", 10, 100)
    assert written == []
    now_s[0] = 11.0
    show("journal", 50, 100)
    show("journal", 51, 100)
    line.clear()
    if can_redraw:
        assert written == ["\rauditing journal: 50 %", "\r" + " " * 22 + "\r"]
    else:
        assert written == ["auditing journal: 50 %\n"]
