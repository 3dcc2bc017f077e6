"""Processes that a real fork server starts, and what happens where there is none."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from periplus.process.fork_server import Request
from region_agent.launchers.child import NOT_STARTED, Child

PROGRAM = """
import json, os, signal, sys
import preloaded
found = {
    "arguments": sys.argv[1:],
    "name": __name__,
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "mark": os.environ.get("MARK"),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "folder": os.getcwd(),
    "preloaded_by": preloaded.process,
    "parent": os.getppid(),
    "descriptors": sorted(int(each) for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")),
    "title": open("/proc/self/cmdline").read().rstrip("\\0 ").replace("\\0", " "),
    "interrupt_is_default": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}
print(json.dumps(found), flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
sys.exit(7)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "preloaded.py").write_text("import os\nprocess = os.getpid()\n")
    threaded = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    (folder / "threaded.py").write_text(threaded)
    return folder


Server = subprocess.Popen[bytes]


@pytest.fixture
def start_server(folder: Path) -> Iterator[Callable[..., tuple[Server, Path]]]:
    started = []
    with tempfile.TemporaryDirectory(prefix="fork-") as short:

        def start(*modules: str) -> tuple[Server, Path]:
            path = Path(short) / "socket"
            words = [word for module in modules for word in ("--preload", module)]
            process = subprocess.Popen(
                [sys.executable, "-m", "periplus.process.fork_server", "--socket", str(path), *words],
                stdin=subprocess.PIPE,
                env=variables(folder) | {"OMP_NUM_THREADS": "1"},
                cwd=folder,
            )
            started.append(process)
            until(path.exists)
            return process, path

        yield start
        for process in started:
            process.kill()
            process.communicate()


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{folder}", "MARK": "1"}


def request(folder: Path, *arguments: str) -> Request:
    environment = variables(folder) | {"OMP_NUM_THREADS": "3"}
    return Request(
        python=sys.executable, module="program", arguments=arguments, environment=environment, folder=str(folder)
    )


def started(what: Request, output: Path, fork_server: Path | None) -> Child:
    with output.open("wb", buffering=0) as log:
        return Child(what, log, fork_server)


def until(true: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + 60
    while not (value := true()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return value


def ended(child: Child) -> int:
    until(lambda: child.poll() is not None)
    code = child.poll()
    child.close()
    assert code is not None
    return code


def said(output: Path, child: Child | None = None) -> dict[str, Any]:
    def text() -> str:
        if child is not None:
            child.poll()
        return output.read_text()

    until(text)
    found: dict[str, Any] = json.loads(text())
    return found


def test_a_forked_process_is_as_one_that_was_started_afresh(
    folder: Path, tmp_path: Path, start_server: Callable[..., tuple[Server, Path]]
) -> None:
    server, path = start_server("preloaded")
    outputs = []
    for number, fork_server in enumerate((path, None)):
        output = tmp_path / f"log-{number}"
        assert ended(started(request(folder, "--task-file", "x"), output, fork_server)) == 7
        outputs.append(said(output))
    forked, afresh = outputs
    assert forked.pop("preloaded_by") == forked.pop("parent") == server.pid
    assert afresh.pop("preloaded_by") != server.pid
    assert afresh.pop("parent") == os.getpid()
    assert forked == afresh
    assert afresh["leads"]
    assert (afresh["threads"], afresh["mark"], afresh["folder"]) == ("3", "1", str(folder))


def test_a_forked_process_leaves_when_its_agent_closes_its_input(
    folder: Path, tmp_path: Path, start_server: Callable[..., tuple[Server, Path]]
) -> None:
    _, path = start_server()
    child = started(request(folder, "wait"), tmp_path / "log", path)
    said(tmp_path / "log", child)
    assert child.poll() is None
    assert child._stdin is not None
    child._stdin.close()
    assert ended(child) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("is_early", [True, False])
def test_signals_reach_a_forked_process(
    number: signal.Signals,
    is_early: bool,
    folder: Path,
    tmp_path: Path,
    start_server: Callable[..., tuple[Server, Path]],
) -> None:
    _, path = start_server()
    child = started(request(folder, "wait"), tmp_path / "log", path)
    if not is_early:
        said(tmp_path / "log", child)
    child.send_signal(number)
    assert ended(child) == -number


@pytest.mark.parametrize("end", [Server.kill, Server.communicate])
def test_a_process_whose_server_ends_is_killed_since_nobody_learns_how_it_ends(
    end: Callable[[Server], object],
    folder: Path,
    tmp_path: Path,
    start_server: Callable[..., tuple[Server, Path]],
) -> None:
    server, path = start_server()
    child = started(request(folder, "wait"), tmp_path / "log", path)
    said(tmp_path / "log", child)
    until(lambda: child.poll() is not None or child._pid)
    end(server)
    assert ended(child) == -signal.SIGKILL
    assert child._pid is not None
    pid = child._pid
    until(lambda: not Path(f"/proc/{pid}/exe").exists())


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no server", "fork_server_unreachable"),
        ("a dead server", "fork_server_unreachable"),
        ("a variable that modules read", "these variables differ from the fork server's: HF_HOME"),
        ("another interpreter", "the fork server runs"),
        ("a server with two threads", "the fork server has 2 threads"),
    ],
)
def test_where_no_process_can_be_forked_one_is_started_afresh(
    case: str,
    why: str,
    folder: Path,
    tmp_path: Path,
    start_server: Callable[..., tuple[Server, Path]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    what, path = request(folder), tmp_path / "none"
    if case != "no server":
        server, path = start_server(*(["threaded"] if case == "a server with two threads" else []))
        if case == "a dead server":
            server.kill()
            server.wait()
    if case == "a variable that modules read":
        what = replace(what, environment={**what.environment, "HF_HOME": "/elsewhere"})
    if case == "another interpreter":
        other = tmp_path / "python"
        other.symlink_to(sys.executable)
        what = replace(what, python=str(other))
    assert ended(started(what, tmp_path / "log", path)) in ((1, 7) if case == "another interpreter" else (7,))
    (said_so,) = caplog.records
    assert why in f"{said_so.getMessage()} {said_so.__dict__['fields']}"


def test_a_process_that_cannot_be_started_at_all_has_ended(
    folder: Path, tmp_path: Path, start_server: Callable[..., tuple[Server, Path]]
) -> None:
    _, path = start_server()
    what = replace(request(folder), python=str(tmp_path / "python"))
    assert ended(started(what, tmp_path / "log", path)) == NOT_STARTED
    with pytest.raises(FileNotFoundError):
        started(what, tmp_path / "log", None)
