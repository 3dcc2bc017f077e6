"""Runs a command on a node of a cluster as a process that leads a session, as an agent does on its own machine.

    python -m region_agent.launchers.node_process [--set NAME=VALUE]... -- WORDS
    python -m region_agent.launchers.node_process --step NODE -- SRUN... the words above

On a node it stands between the cluster's own process (a step of Slurm, an actor of Ray) and a task. If that process
dies, the kernel kills the task, whose guard ends all else (periplus/process/guard.py). Orders come by standard input,
since Slurm sends signals to all processes of a step: `ASK` asks the task to stop, `END` ends its standard input, and
the end of the orders kills it.

With `--step` it stands on the agent's machine before `srun`, for which SIGTERM means to kill the step. It turns SIGTERM
and the end of its own standard input into orders, and if it dies, srun ends the step. Slurm may take minutes to see
that a node is gone. So the process on the node dials this one, and sends a byte when it ends. If the connection ends
without it, and srun goes on, the node is lost: this process says so, kills srun and exits with `NODE_LOST`, and the
process on the node, should there be one, kills the task. A node that cannot dial is not watched.
"""

import argparse
import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

ASK, END = b"a", b"e"

NODE_LOST = 113
"""Exit code of what runs a process on a node, if the node was lost: EHOSTUNREACH of Linux."""

DIAL_VARIABLE = "PERIPLUS_STEP_AT"
"""Variable with host:port at which a process on a node finds the one before `srun`, and with its secret."""

LOST_S = 3.0
"""Seconds in which srun must end after the connection from the node. Chosen by hand."""

DIAL_S = 5.0
"""Seconds in which the process on a node must reach the one before `srun`. Chosen by hand."""

KEEPALIVE = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 2}
"""Seconds of silence, seconds between two questions of the kernel, and unanswered ones that end a connection. Chosen by
hand: a machine that is gone is found out within 10 s."""

STEP_END_S, LOOK_S = 20.0, 0.1
"""Seconds in which a step whose srun was killed must end, and between two looks. Chosen by hand: Slurm waits 10 s by
default until it kills."""

_PR_SET_PDEATHSIG = 1
_SIGNAL_BASE = 128
_MODULE = "region_agent.launchers.node_process"


def node_words(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that run the command line after them on a node, with these variables."""
    pairs = [word for name, text in settings.items() for word in ("--set", f"{name}={text}")]
    return (sys.executable, "-m", _MODULE, *pairs, "--")


def step_words(node: str) -> tuple[str, ...]:
    """Return the words that run the `srun` after them, whose step is on a node."""
    return (sys.executable, "-m", _MODULE, "--step", node, "--")


def main() -> int:
    """Run the command, and return its exit code; a signal that ended it ends this process too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", metavar="NODE", default="")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # an actor of Ray has some blocked
    if not options.step:  # whose parent is the agent, which another one may follow
        _die_with_parent(signal.SIGKILL)
    environment = {**os.environ, **dict(each.split("=", 1) for each in options.settings)}
    kept = _listening(environment) if options.step else _dialled(environment.pop(DIAL_VARIABLE, ""))
    orphan = signal.SIGTERM if options.step else signal.SIGKILL
    child = subprocess.Popen(
        options.words,
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: _die_with_parent(orphan),
        bufsize=0,
    )
    if options.step:
        _give_orders(child)
        assert kept is not None
        lost = threading.Event()
        threading.Thread(target=_watch, args=(kept, environment[DIAL_VARIABLE], child, lost), daemon=True).start()
    else:
        _follow_orders(child)
        if kept is not None:
            threading.Thread(target=_end_with, args=(kept, child), daemon=True).start()
    code = child.wait()
    is_lost = bool(options.step) and lost.is_set()
    if kept is not None and not options.step:
        with contextlib.suppress(OSError):
            kept.sendall(b".")
    # A process of srun's own ends the step after srun was killed, so it has some time.
    with contextlib.suppress(ProcessLookupError):  # it has left nobody
        for _ in range(round(STEP_END_S / LOOK_S) if options.step else 0):
            os.killpg(child.pid, 0)
            time.sleep(LOOK_S)
        os.killpg(child.pid, signal.SIGKILL)
    if is_lost:
        sys.stderr.write(f"node {options.step} of the Slurm allocation is lost\n")
        return NODE_LOST
    number = -code if code < 0 else code - _SIGNAL_BASE
    if number in set(signal.Signals):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code


def _listening(environment: dict[str, str]) -> socket.socket:
    """Return a listening socket, and put into the environment where it is and its secret."""
    listening = socket.create_server(("", 0))
    port = listening.getsockname()[1]
    environment[DIAL_VARIABLE] = f"{socket.gethostname()}:{port}:{secrets.token_hex(16)}"
    return listening


def _dialled(there: str) -> socket.socket | None:
    host, _, rest = there.partition(":")
    port, _, secret = rest.partition(":")
    if not there:
        return None
    try:
        connection = socket.create_connection((host, int(port)), DIAL_S)
        ask_when_silent(connection)
        connection.sendall(secret.encode())
    except OSError as error:
        sys.stderr.write(f"{host}:{port} cannot be reached from this node, whose loss is seen late: {error}\n")
        return None
    return connection


def ask_when_silent(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other machine is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, number)


def _end_with(connection: socket.socket, child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)
    child.kill()


def _watch(listening: socket.socket, there: str, child: "subprocess.Popen[bytes]", lost: threading.Event) -> None:
    secret = there.rpartition(":")[2].encode()
    while True:
        connection, _ = listening.accept()
        connection.settimeout(DIAL_S)
        with contextlib.suppress(OSError):
            if connection.recv(len(secret), socket.MSG_WAITALL) == secret:
                break
        connection.close()
    ask_when_silent(connection)
    with contextlib.suppress(OSError):
        if connection.recv(1):
            return
    time.sleep(LOST_S)
    if child.poll() is not None:
        return
    lost.set()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _give_orders(child: "subprocess.Popen[bytes]") -> None:
    def order(which: bytes) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            child.stdin.write(which)

    signal.signal(signal.SIGTERM, lambda *_: order(ASK))
    _at_each_byte(lambda _: None, lambda: order(END))


def _follow_orders(child: "subprocess.Popen[bytes]") -> None:
    def follow(which: bytes) -> None:
        if which == ASK:
            child.send_signal(signal.SIGTERM)
        elif which == END and child.stdin is not None:
            child.stdin.close()

    # Slurm sends it to all processes of a step before it kills them. The task gets it too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _at_each_byte(follow, child.kill)


def _at_each_byte(do: Callable[[bytes], None], at_end: Callable[[], None]) -> None:
    """Read standard input in a thread. At its end this process may have ended already."""

    def read() -> None:
        while each := os.read(0, 1):
            do(each)
        at_end()

    threading.Thread(target=read, daemon=True).start()


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


if __name__ == "__main__":
    sys.exit(main())
