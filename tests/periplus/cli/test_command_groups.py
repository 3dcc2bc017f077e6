"""Groups with a default verb, and completion in shells, as a person at a shell meets them."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from periplus.__main__ import root
from tests.support.cases.tiers import rest_is_slow


def help_of(*words: str) -> str:
    return CliRunner().invoke(root, [*words, "--help"], prog_name="periplus").output


@pytest.mark.parametrize(
    ("group", "verb", "flags"),
    [
        ("agent", "run", ["--region", "--coordinator", "--advertise", "--wan"]),
        ("coordinator", "run", ["--listen", "--state-dir"]),
        ("plan", "make", ["--fleet", "--study", "--explain", "--budget-s"]),
    ],
)
def test_the_help_of_a_group_shows_the_options_of_its_default_verb(group: str, verb: str, flags: list[str]) -> None:
    text = help_of(group)
    assert f"Options of {verb}, the default command" in text
    assert f"or:    periplus {group} [OPTIONS]" in text
    for flag in flags:
        assert flag in text
    assert "Commands:" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jb"], "No such command 'jb'; did you mean job?"),
        (
            ["xyzzy"],
            "No such command 'xyzzy'; choose from agent, coordinator, demo, doctor, eval, events, ",
        ),
        (["job", "lsit"], "No such command 'lsit'; did you mean list?"),
        (["wan", "xyzzy"], "No such command 'xyzzy'; choose from run, set, show"),
        (["weights", "dif"], "No such command 'dif'; did you mean diff?"),
        (["fleet", "schem"], "No such command 'schem'; did you mean schema?"),
        (
            ["region", "xyzzy"],
            "No such command 'xyzzy'; choose from cordon, drain, export, list, remove, show",
        ),
        (["plan", "nope"], "No such command 'nope', and no such file; choose from calibrate, compare, diff, "),
        (["agent", "rnu"], "No such command 'rnu'; did you mean run?"),
    ],
)
def test_an_unknown_command_is_answered_with_those_that_exist(words: list[str], message: str) -> None:
    result = CliRunner().invoke(root, words, prog_name="periplus")
    assert result.exit_code == 2
    assert message in result.output


def completed(words: str) -> list[str]:
    """Return the completions that bash is offered for the last of the words."""
    environment = os.environ | {
        "_PERIPLUS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "import periplus.__main__ as it; it.main()"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    return [line.partition(",")[2] if line.startswith("plain,") else line for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    rest_is_slow(
        [
            ("periplus job sub", ["submit"]),
            ("periplus links -o js", ["json"]),
            ("periplus agent --reg", ["--region"]),
            ("periplus plan job.y", ["file,job.y"]),
            ("periplus li", ["links"]),
            ("periplus job submit --dr", ["--dry-run"]),
            ("periplus agent run --reg", ["--region"]),
            ("periplus plan job.yaml --fle", ["--fleet"]),
            ("periplus wan set a b dr", ["drop"]),
        ]
    ),
)
def test_a_shell_completes_commands_options_and_choices(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


@pytest.mark.parametrize("shell", rest_is_slow(["bash", "zsh", "fish"]))
def test_each_shell_gets_a_script(shell: str) -> None:
    command = [sys.executable, "-c", "import periplus.__main__ as it; it.main()"]
    environment = os.environ | {"_PERIPLUS_COMPLETE": f"{shell}_source"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "_PERIPLUS_COMPLETE" in ended.stdout
