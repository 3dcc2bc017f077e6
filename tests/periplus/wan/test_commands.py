"""The command line: human units, and the emulator as a process: ready file, set, show, and how it stops."""

import io
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner

from periplus import errors
from periplus.__main__ import run
from periplus.config.yaml_text import parse
from periplus.net.tokens import make_token
from periplus.view.terminal.listing import Output
from periplus.wan.commands import DEFAULT_CONTROL, parse_value, wan
from periplus.wan.shaping import LinkProperty


@pytest.mark.parametrize(
    ("property_", "text", "value"),
    [
        (LinkProperty.RATE, "100mbit", 100e6),
        (LinkProperty.RATE, "1.5 Gbit/s", 1.5e9),
        (LinkProperty.RATE, "64kbit", 64e3),
        (LinkProperty.RATE, "9bit", 9.0),
        (LinkProperty.RATE, "unlimited", math.inf),
        (LinkProperty.RTT, "80ms", 0.08),
        (LinkProperty.RTT, "500us", 0.0005),
        (LinkProperty.RTT, "0s", 0.0),
        (LinkProperty.DROP, "on", 1.0),
        (LinkProperty.DROP, "OFF", 0.0),
    ],
)
def test_human_values_are_read(property_: LinkProperty, text: str, value: float) -> None:
    assert parse_value(property_, text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("property_", "text"),
    [
        (LinkProperty.RATE, "100"),
        (LinkProperty.RATE, "100mbps"),
        (LinkProperty.RATE, "0mbit"),
        (LinkProperty.RATE, "-1mbit"),
        (LinkProperty.RATE, "80ms"),
        (LinkProperty.RTT, "80"),
        (LinkProperty.RTT, "unlimited"),
        (LinkProperty.DROP, "1"),
        (LinkProperty.DROP, ""),
    ],
)
def test_what_is_no_value_is_refused_with_an_example(property_: LinkProperty, text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_value(property_, text)


def test_a_bad_value_is_a_usage_error() -> None:
    result = CliRunner().invoke(wan, ["set", "a", "b", "rate", "fast", "--control", "127.0.0.1:1"])
    assert result.exit_code == errors.EXIT_USAGE
    assert "100mbit" in result.output


@contextmanager
def process(ready_file: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "periplus", "wan", "run", "--ready-file", str(ready_file)]
    command += ["--control", "127.0.0.1:0", *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stderr is not None
        try:
            lines = [child.stderr.readline()]
            while "control" not in lines[-1] and lines[-1]:
                lines.append(child.stderr.readline())
            assert lines[-1], f"the emulator ended: {lines}"
            yield child, "".join(lines)
        finally:
            child.kill()


def test_a_ready_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    done = periplus("run", "--grid", "off", "--ready-file", str(tmp_path / "no" / "wan.json"))
    assert done.returncode == errors.EXIT_USAGE
    assert "writable folder" in done.stderr


def periplus(*arguments: str, control: str = "127.0.0.1:1") -> subprocess.CompletedProcess[str]:
    """Call the command in this process, as the program would."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERIPLUS_WAN", control)
        code = run(["wan", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_who_is_told_nothing_finds_the_emulator_that_was_told_nothing() -> None:
    found = {
        verb: next(param.default for param in wan.commands[verb].params if param.name == "control")
        for verb in ("run", "set", "show")
    }
    assert found == dict.fromkeys(found, DEFAULT_CONTROL)


@pytest.mark.processes
def test_an_emulator_with_a_token_answers_only_who_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, ready = tmp_path / "token", tmp_path / "wan.json"
    make_token(token)
    with process(ready, "--grid", "intercontinental", "--token-file", str(token)):
        control = json.loads(ready.read_text())["control"]
        refused = [
            periplus("set", "us-east", "eu-west", "drop", "on", control=control),
            periplus("show", control=control),
        ]
        assert {done.returncode for done in refused} == {errors.MEANING[errors.Denied].exit_code}
        assert "this emulator answers only those who can read" in refused[0].stderr
        monkeypatch.setenv("PERIPLUS_TOKEN_FILE", str(token))
        assert periplus("show", control=control).returncode == errors.EXIT_OK


@pytest.mark.processes
def test_an_emulator_that_is_not_there_is_unreachable_and_the_message_says_how_to_name_it() -> None:
    done = periplus("set", "a", "b", "rate", "10mbit")
    assert done.returncode == errors.MEANING[errors.Unreachable].exit_code
    for word in ("127.0.0.1:1", "periplus wan run", "--control", "PERIPLUS_WAN"):
        assert word in done.stderr


@pytest.mark.processes
def test_the_links_are_shown_in_every_form_of_a_listing(tmp_path: Path) -> None:
    ready_file = tmp_path / "wan.json"
    with process(ready_file, "--grid", "off", "--regions", "a,b"):
        control = json.loads(ready_file.read_text())["control"]
        shown = {form: periplus("show", "-o", form.value, control=control) for form in Output}
    assert {form: (done.returncode, done.stderr) for form, done in shown.items()} == dict.fromkeys(Output, (0, ""))
    tree = json.loads(shown[Output.JSON].stdout)
    assert (tree["schema"], tree["scale"], len(tree["links"])) == ("periplus.wan/1", 1.0, 2)
    assert parse(shown[Output.YAML].stdout, "test") == tree
    assert shown[Output.NAME].stdout == "a b\nb a\n"
    assert shown[Output.TABLE].stdout.splitlines()[1].split() == [
        "a",
        "b",
        "unlimited",
        "0.0",
        "ms",
        "0.000",
        "MB",
        "0.000",
        "MB",
        "up",
    ]
    assert "BYTES" in shown[Output.WIDE].stdout


@pytest.mark.processes
def test_the_process_is_controlled_from_a_shell_and_ends_with_its_parents_pipe(tmp_path: Path) -> None:
    ready_file = tmp_path / "wan.json"
    with process(ready_file, "--grid", "intercontinental", "--stop-on-stdin-eof") as (child, said):
        assert "rates scaled by 0.01" in said
        control = json.loads(ready_file.read_text())["control"]
        regions = ("aws:us-east-1", "azure:westeurope")
        done = periplus("set", *regions, "rate", "12mbit", "--control", control)
        assert (done.returncode, done.stdout) == (0, "")
        shown = periplus("show", "--control", control, "-o", "json")
        links = {(link["src_region"], link["dst_region"]): link for link in json.loads(shown.stdout)["links"]}
        assert links[regions]["rate_bits_per_s"] == 12e6
        assert links[regions]["rtt_s"] == pytest.approx(0.080432)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(timeout=10) == errors.EXIT_OK
    assert [path.name for path in tmp_path.iterdir()] == ["wan.json"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, errors.EXIT_OK), (signal.SIGINT, errors.EXIT_INTERRUPTED)]
)
def test_the_process_stops_at_a_signal(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    with process(tmp_path / "wan.json", "--grid", "off", "--regions", "a,b") as (child, _):
        child.send_signal(number)
        assert child.wait(timeout=10) == exit_code
