import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from periplus import __main__
from periplus.config import yaml_text
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, read_safetensors
from periplus.weights.commands import weights
from tests.support.checkpoints import model, next_model, write_checkpoint


@pytest.fixture(autouse=True)
def mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("weights", "periplus.weights.commands:weights", __main__.ENTRY_POINT_GROUP)
    monkeypatch.setattr(__main__.MountedGroup, "_entry_points", lambda self: {"weights": point})


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """Return the paths of OLD, NEW, NEWEST, and of the deltas between them."""
    states: list[dict[str, Tensor]] = [model(1)]
    states += [next_model(states[0], 10)]
    states += [next_model(states[1], 20)]
    paths = [str(write_checkpoint(tmp_path / f"v{v}", state, 1 + v)) for v, state in enumerate(states)]
    for before in (0, 1):
        delta = str(tmp_path / f"d{before}")
        assert run("diff", paths[before], paths[before + 1], "-o", delta) == 0
        paths.append(delta)
    return paths


def run(*arguments: str) -> int:
    return __main__.run(["weights", *arguments])


def test_the_commands_do_what_they_say(places: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new, newest, first, second = places
    capfd.readouterr()
    assert run("diff", old, new, "-o", first, "--force") == 0
    assert " elements changed (" in capfd.readouterr().err
    assert run("apply", old, first, "-o", f"{tmp_path}/made") == 0
    digest = state_digest(read_safetensors(Path(new))).hex()
    assert capfd.readouterr() == ("", f"{tmp_path}/made: state digest {digest}, as promised\n")
    assert run("verify", f"{tmp_path}/made", first) == 0
    assert "matches     yes" in capfd.readouterr().out
    assert run("fold", old, first, second, "-o", f"{tmp_path}/folded") == 0
    assert run("apply", old, f"{tmp_path}/folded", "-o", f"{tmp_path}/made", "--force") == 0
    assert read_safetensors(tmp_path / "made") == read_safetensors(Path(newest))


def test_inspect_says_the_figures_in_each_form(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first = places[3]
    capsys.readouterr()
    assert run("inspect", first, "-o", "json") == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "periplus.weights-delta/1"
    assert 0 < tree["density"] < 1
    assert tree["bits_per_change"] == 8 * tree["payload_bytes"] / tree["num_changed"]
    assert tree["ratio_to_bf16"] == 2 * tree["num_elements"] / tree["payload_bytes"]
    assert tree["iid_floor_bits"] > tree["conditional_floor_bits"] > 0
    assert tree["file_bytes"] == os.path.getsize(first)
    assert tree["dtypes"] == {"BF16": 2, "F16": 1, "F32": 2, "I8": 1}
    assert run("inspect", first, "-o", "yaml") == 0
    assert yaml_text.parse(capsys.readouterr().out, "x") == tree
    assert run("inspect", first) == 0
    assert f"to                   {tree['result_digest']}" in capsys.readouterr().out


def test_what_cannot_be_said_is_null(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", places[0], places[0], "-o", f"{tmp_path}/same") == 0
    assert run("diff", places[0], places[1], "-o", f"{tmp_path}/plain", "--no-floors") == 0
    assert "0 of" in capsys.readouterr().err
    assert run("inspect", f"{tmp_path}/same", "-o", "json") == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["num_changed"], tree["density"], tree["bits_per_change"], tree["iid_floor_bits"]) == (
        0,
        0.0,
        None,
        None,
    )
    assert run("inspect", f"{tmp_path}/plain", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["conditional_floor_bits"] is None
    assert run("inspect", f"{tmp_path}/plain") == 0
    assert "floor, i.i.d.      -" in capsys.readouterr().out


def test_verify_exits_with_1_on_a_mismatch_and_says_why(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", places[0], places[3], "-o", "json") == 1
    tree = json.loads(capsys.readouterr().out)
    assert tree["matches"] is False
    assert "not yet applied" in tree["reason"]
    assert run("verify", places[2], places[3]) == 1
    assert "matches     no: " in capsys.readouterr().out


def test_exit_codes_tell_what_went_wrong(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, _, first, second = places
    (tmp_path / "cut").write_bytes(Path(first).read_bytes()[:-5])
    assert run("diff", old, new, "-o", first) == 7
    assert run("diff", old, f"{tmp_path}/none", "-o", f"{tmp_path}/x") == 3
    assert run("inspect", f"{tmp_path}/none") == 3
    assert run("apply", old, second, "-o", f"{tmp_path}/x") == 1
    assert run("apply", old, f"{tmp_path}/cut", "-o", f"{tmp_path}/x") == 1
    assert run("inspect", f"{tmp_path}/cut") == 1
    assert run("verify", new, f"{tmp_path}/cut") == 1
    assert run("fold", old, second, first, "-o", f"{tmp_path}/x") == 1
    assert run("fold", old, "-o", f"{tmp_path}/x") == 2
    assert run("diff", old, new) == 2
    assert run("inspect", first, "-o", "xml") == 2
    assert not (tmp_path / "x").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_help_imports_no_numba_and_no_command_line_library_of_others() -> None:
    script = "import sys, periplus.weights.commands as c; sys.exit(any(m in sys.modules for m in ('numba', 'rich')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    inspecting = "import sys, periplus.weights.reading, periplus.weights.report; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", inspecting], check=False).returncode == 0
    assert sorted(weights.commands) == ["apply", "diff", "fold", "inspect", "verify"]
