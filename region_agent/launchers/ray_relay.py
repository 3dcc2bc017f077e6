"""Stands for a process on a node of a Ray cluster: passes on its output, and to it what this process is asked.

    python -m region_agent.launchers.ray_relay --connection NUMBER --node NODE

`ray_step.py` becomes this program once the actor on the node has dialled it, so that a process that runs takes no
driver of Ray on the agent's machine. NUMBER is the descriptor of the connection. The actor sends `OUTPUT` with a part
of the output, and at last `EXIT` with the exit code. SIGTERM and SIGINT, and the end of standard input, go to it as
orders (node_process.py). If the connection ends without an exit code, or nobody answers at its other end, the node is
lost: this process says so and exits with `NODE_LOST`. If this process ends, the process on the node is killed.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from region_agent.launchers.node_process import ASK, END, NODE_LOST

OUTPUT, EXIT = b"o", b"x"

STOPPING = {signal.SIGTERM, signal.SIGINT}
"""Signals that ask the process to stop. They are blocked before this program begins."""

PART_BYTES = 1 << 16


def main() -> int:
    """Pass everything on until the process has ended, and return its exit code: minus the signal's number if one killed
    it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--node", required=True)
    options = parser.parse_args()
    connection, lock = Connection(options.connection), threading.Lock()

    def order(which: bytes) -> None:
        with lock, contextlib.suppress(OSError):  # the main thread sees it too
            connection.send_bytes(which)

    for work in (_watch_signals, _watch_input):
        threading.Thread(target=work, args=(order,), daemon=True).start()
    try:
        while (message := connection.recv_bytes())[:1] == OUTPUT:
            with contextlib.suppress(OSError):  # a full disk must not keep the process from running
                os.write(sys.stdout.fileno(), message[1:])
    except (EOFError, OSError) as error:
        why = str(error) or "its connection has ended"
        sys.stderr.write(f"node {options.node} of the Ray cluster is lost, or its actor: {why}\n")
        return NODE_LOST
    return int(message[1:])


def _watch_signals(order: Callable[[bytes], None]) -> None:
    while True:
        signal.sigwait(STOPPING)
        order(ASK)


def _watch_input(order: Callable[[bytes], None]) -> None:
    while os.read(0, PART_BYTES):
        pass
    order(END)


def _end_as(code: int) -> None:
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        # To this thread, since another one waits for signals of the process.
        signal.pthread_kill(threading.get_ident(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _end_as(main())
