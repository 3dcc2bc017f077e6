"""Programs that attack the sandbox. Each is run as a reward process runs it, by the test's own user."""

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from periplus import clock
from rollout_worker.rewards.sandbox import kernel
from rollout_worker.rewards.sandbox.run import RunLimits, RunResult, SandboxRefused, run_program
from tests.support.processes.fake_engine import is_alive, wait_for

ROOT = Path(__file__).parents[4]
LIMITS = RunLimits(time_s=10, memory_bytes=256 << 20)
SHORT = RunLimits(time_s=0.5, memory_bytes=256 << 20)


def can_isolate() -> bool:
    try:
        return run_program("", b"", LIMITS).exit_code == 0
    except SandboxRefused:
        return False


pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
    pytest.mark.skipif(sys.platform == "linux" and not can_isolate(), reason="this kernel refuses user namespaces"),
]


def run(source: str, limits: RunLimits = LIMITS, stdin: bytes = b"") -> RunResult:
    return run_program(source, stdin, limits)


def said(source: str, limits: RunLimits = LIMITS) -> str:
    found = run(source, limits)
    assert found.exit_code == 0, found
    return found.output.decode().strip()


def attempts(*statements: str) -> list[str]:
    """Return for each statement of a program the class of the error that it ends with in the sandbox, or `done`."""
    lines = "\n".join(
        f"try:\n    {statement}\n    print('done')\nexcept BaseException as error:\n    print(type(error).__name__)"
        for statement in statements
    )
    return said(f"import ctypes, glob, os, resource, shutil, signal, socket, subprocess\n{lines}").split()


def attempt(statement: str) -> str:
    return attempts(statement)[0]


def test_a_program_reads_its_input_and_is_heard() -> None:
    assert run("print(input()[::-1])", stdin=b"abc\n") == RunResult(output=b"cba\n", exit_code=0)
    assert run("raise SystemExit(3)").exit_code == 3
    assert run("import os; os._exit(97)").exit_code == 97


def test_nothing_of_the_host_but_its_libraries_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    monkeypatch.setenv("SECRET_TOKEN", "12345")
    paths = (secret, Path.home() / ".ssh", Path(__file__), Path("/etc/passwd"), Path("/proc/self/environ"))
    for path, error in zip(paths, attempts(*(f"open({str(path)!r}).read()" for path in paths)), strict=True):
        assert error in ("FileNotFoundError", "PermissionError"), path
    assert "SECRET" not in said("import os; print(os.environ)")
    assert attempt("os.listdir('/proc')") == "FileNotFoundError"
    assert attempt("[os.fstat(number) for number in range(3, 64)]") == "OSError"


def test_nothing_can_be_written_but_the_programs_own_folder() -> None:
    assert attempt("open('mine', 'w').write('x')") == "done"
    paths = ("/usr/x", "/x", "/bin/x", "/lib/x", sys.base_prefix + "/x", "/etc/x", "/dev/x")
    for path, error in zip(paths, attempts(*(f"open({path!r}, 'w')" for path in paths)), strict=True):
        assert error in ("PermissionError", "OSError"), path
    assert attempt("os.remove(os.path.realpath(os.__file__))") == "OSError"
    assert attempt("os.mkdir('/home')") in ("PermissionError", "OSError")


def test_a_file_of_the_program_does_not_outlive_it() -> None:
    assert said("open('left', 'w').write('x')") == ""
    assert attempt("open('left')") == "FileNotFoundError"


def test_there_is_no_network_not_even_the_hosts_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert attempt(f"socket.create_connection(('127.0.0.1', {port}), 2)") == "OSError"
    assert attempt("socket.create_connection(('192.0.2.1', 80), 2)") == "OSError"
    abstract = socket.socket(socket.AF_UNIX)
    try:
        abstract.bind("\0periplus-test-of-a-sandbox")
        abstract.listen()
        connect = "socket.socket(socket.AF_UNIX).connect('\\0periplus-test-of-a-sandbox')"
        assert attempt(connect) == "ConnectionRefusedError"
    finally:
        abstract.close()


def test_a_loop_and_a_sleep_end_with_their_time() -> None:
    for source in ("while True: pass", "import time; time.sleep(60)", "import os; os.close(1)\nwhile True: pass"):
        began_s = clock.monotonic_s()
        assert run(source, SHORT).exit_code is None
        assert clock.monotonic_s() - began_s < 30


def test_signals_that_a_program_ignores_do_not_save_it() -> None:
    ignore = (
        "import signal\nfor number in range(1, 64):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
    )
    assert run(ignore + "while True: pass", SHORT).exit_code is None


def test_memory_is_bounded() -> None:
    assert attempt("bytearray(1 << 30)") == "MemoryError"


def test_files_are_bounded_one_by_one_and_together() -> None:
    one = "with open('big', 'wb') as f:\n    for _ in range(64): f.write(bytes(1 << 20))"
    assert run(one).exit_code != 0
    many = "for n in range(64):\n    with open(str(n), 'wb') as f: f.write(bytes(4 << 20))"
    assert run(many).exit_code == 1
    assert run("for n in range(4096): open(str(n), 'w').close()").exit_code == 1


def test_output_is_bounded() -> None:
    found = run("while True: print('x' * 10_000)")
    assert found.exit_code is None
    assert len(found.output) == LIMITS.output_bytes


def test_a_fork_bomb_stays_small_and_leaves_nothing() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    before = set(os.listdir("/proc"))
    assert run(bomb, SHORT).exit_code is None
    wait_for(lambda: not any(_is_ours(pid) for pid in set(os.listdir("/proc")) - before), "the end of the bomb")
    count = "import os\nfor number in range(50):\n    if not os.fork():\n        import time; time.sleep(9)"
    assert run(count).exit_code == 1


def _is_ours(pid: str) -> bool:
    try:
        return pid.isdigit() and b"program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_what_a_program_leaves_running_ends_with_it() -> None:
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('gone')"
    before = set(os.listdir("/proc"))
    assert said(source) == "gone"
    wait_for(lambda: not any(_is_ours(pid) for pid in set(os.listdir("/proc")) - before), "the end of what it left")


def test_a_program_cannot_signal_those_outside() -> None:
    assert attempt(f"os.kill({os.getpid()}, signal.SIGKILL)") == "ProcessLookupError"
    # It may end itself with all that it has started, and nobody else.
    assert run("import os; os.kill(-1, 9)").exit_code != 97
    assert run("import os, signal; os.kill(os.getppid(), signal.SIGKILL); print('there')").output == b"there\n"


def test_a_program_gains_no_rights() -> None:
    assert attempt("os.setuid(0)") == "PermissionError"
    unshared = "ctypes.CDLL(None, use_errno=True).unshare({}) and exec('raise OSError(ctypes.get_errno())')"
    for flag in (kernel.CLONE_NEWUSER, kernel.CLONE_NEWNS, kernel.CLONE_NEWNET):
        assert attempt(unshared.format(flag)) == "OSError"
    assert attempt("os.chroot('/')") == "PermissionError"
    assert attempt("resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))") == "ValueError"


KILLED = """
from rollout_worker.rewards.sandbox.run import RunLimits, run_program
print("ready", flush=True)
run_program("import time; time.sleep(600)", b"", RunLimits(time_s=600, memory_bytes=1 << 28))
"""


def test_a_program_dies_with_the_process_that_runs_it() -> None:
    before = set(os.listdir("/proc"))
    with subprocess.Popen([sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        runner.stdout.readline()

        def programs() -> list[str]:
            return [pid for pid in set(os.listdir("/proc")) - before if _is_ours(pid)]

        wait_for(lambda: bool(programs()), "the start of the program")
        (pid,) = programs()
        os.kill(runner.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(int(pid)), "the end of the program")


def test_calls_that_reach_beyond_the_sandbox_or_its_limits_are_refused() -> None:
    sockets = ("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG")
    assert attempts(*(f"socket.socket(socket.{name}, socket.SOCK_DGRAM)" for name in sockets)) == ["OSError"] * 4
    assert attempts("socket.socket(socket.AF_INET)", "socket.socketpair()") == ["done", "done"]
    assert attempt("os.memfd_create('x')") == "PermissionError"
    refused = said(
        "import ctypes, platform\n"
        f"numbers = {[dict(each) for each in kernel.REFUSED.values()]!r}\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print([(libc.syscall(each[platform.machine()], 0, 0, 0), ctypes.get_errno()) for each in numbers])"
    )
    assert refused == str([(-1, 1)] * len(kernel.REFUSED))


def test_threads_and_processes_run_under_the_filter_of_calls() -> None:
    program = (
        "import subprocess, threading\n"
        "thread = threading.Thread(target=print, args=('thread',))\nthread.start()\nthread.join()\n"
        "print(subprocess.run(['/bin/echo', 'process'], capture_output=True).stdout.decode())"
    )
    assert said(program) == "thread\nprocess"


def test_an_architecture_without_a_list_of_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxRefused, match="no list of system calls for riscv64"):
        run("print('fine')")


def test_runs_beside_each_other_do_not_meet() -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda n=n: found.append(run(f"open('x', 'w').write('{n}'); print(open('x').read())").output)
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [b"0\n", b"1\n", b"2\n", b"3\n"]


def test_without_isolation_a_program_is_still_limited() -> None:
    def plain(source: str, limits: RunLimits = LIMITS) -> RunResult:
        return run_program(source, b"", limits, isolated=False)

    assert plain("print('fine')").output == b"fine\n"
    assert plain("while True: pass", SHORT).exit_code is None
    assert plain("bytearray(1 << 30)").exit_code == 1
    assert plain("import os; print('SECRET_TOKEN' in os.environ)").output == b"False\n"
    assert plain("import os; print(os.listdir())").output == b"['program.py']\n"


@pytest.mark.parametrize(("rest", "is_in_time"), [("", True), ("import time; time.sleep(60)", False)])
def test_without_isolation_nothing_of_a_program_gets_away_either(tmp_path: Path, rest: str, is_in_time: bool) -> None:
    source = (
        "import subprocess\n"
        "child = subprocess.Popen(['/bin/sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n{rest}"
    )
    found = run_program(source, b"", RunLimits(time_s=2, memory_bytes=256 << 20), isolated=False)
    assert (found.exit_code is not None) == is_in_time
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_kernel_that_refuses_is_told_from_a_program_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: int) -> None:
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(kernel, "unshare", refuse)
    with pytest.raises(SandboxRefused, match="unshare: Operation not permitted"):
        run("print('fine')")
