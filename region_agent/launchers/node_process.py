"""Runs a command on a node of a cluster as a process that leads a session, as an agent does on its own machine.

    python -m region_agent.launchers.node_process [--set NAME=VALUE]... -- WORDS
    python -m region_agent.launchers.node_process --step -- SRUN... python -m region_agent.launchers.node_process ...

On a node it stands between the cluster's own process (a step of Slurm, an actor of Ray) and a task. If that process
dies, the kernel kills the task, whose guard ends all else (periplus/process/guard.py). Orders come by standard input,
since Slurm sends signals to all processes of a step: `ASK` asks the task to stop, `END` ends its standard input, and
the end of the orders kills it.

With `--step` it stands on the agent's machine before `srun`, for which SIGTERM means to kill the step. It turns SIGTERM
and the end of its own standard input into orders, and if it dies, srun ends the step.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

ASK, END = b"a", b"e"

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


def step_words() -> tuple[str, ...]:
    """Return the words that run the `srun` after them."""
    return (sys.executable, "-m", _MODULE, "--step", "--")


def main() -> int:
    """Run the command, and return its exit code; a signal that ended it ends this process too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # an actor of Ray has some blocked
    if not options.step:  # whose parent is the agent, which another one may follow
        _die_with_parent(signal.SIGKILL)
    orphan = signal.SIGTERM if options.step else signal.SIGKILL
    child = subprocess.Popen(
        options.words,
        env={**os.environ, **dict(each.split("=", 1) for each in options.settings)},
        stdin=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: _die_with_parent(orphan),
        bufsize=0,
    )
    if options.step:
        _give_orders(child)
    else:
        _follow_orders(child)
    code = child.wait()
    # A process of srun's own ends the step after srun was killed, so it has some time.
    with contextlib.suppress(ProcessLookupError):  # it has left nobody
        for _ in range(round(STEP_END_S / LOOK_S) if options.step else 0):
            os.killpg(child.pid, 0)
            time.sleep(LOOK_S)
        os.killpg(child.pid, signal.SIGKILL)
    number = -code if code < 0 else code - _SIGNAL_BASE
    if number in set(signal.Signals):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code


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
