"""The process of a rank other than 0: `python -m trainer.distributed.follower`, which rank 0 starts.

It dials rank 0, reads commands from this connection and executes them one after another, together with the other ranks.
What it publishes goes to rank 0 from a thread beside them.

It leaves at once when the connection ends, in the middle of whatever it does: rank 0 has closed it, or is dead, and
keeps everything that must last. SIGINT and SIGTERM are for rank 0, which still needs this rank to save a checkpoint.

A step whose loss is not finite is refused by all ranks together, and so is a checkpoint that does not fit. Then the
process waits for the next command. Any other error ends it, after it has told rank 0 why: it may be in the middle of a
collective for which the others wait.
"""

import argparse
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection

from periplus.errors import ConfigError, NonFiniteLoss
from periplus.process import telemetry
from trainer.distributed.commands import BEAT, BEAT_S, KEY_VARIABLE, READY, BuildLearner, JoinRanks, unpacked
from trainer.distributed.failures import explained_failure
from trainer.distributed.position import RankPosition

log = logging.getLogger(__name__)

EXIT_LEFT = 0
"""Exit code of a follower whose connection ended."""

EXIT_FAILED = 1
"""Exit code of a follower that failed."""

MAX_WAITING = 8
"""Most commands that wait here, so that memory is bounded. Rank 0 takes part in each command before it sends the next
one, so one is usual. Chosen by hand."""


class _Rank0:
    """The connection to rank 0. Several threads send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def say(self, message: bytes) -> None:
        """Send a message. Raises: OSError without rank 0."""
        with self._lock:
            self._connection.send_bytes(message)

    def commands(self) -> Iterator[bytes]:
        """Yield the commands of rank 0 until the connection ends."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                yield self._connection.recv_bytes()


def main() -> None:
    """Run one follower until its connection ends. It never returns."""
    parser = argparse.ArgumentParser(description="One rank of a trainer, started by rank 0.")
    for name in ("--rank", "--size", "--local-rank", "--local-size"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--meet", required=True, help="where the ranks meet: a folder, or host:port of rank 0's store")
    parser.add_argument("--dial", required=True, help="where rank 0 listens: a Unix socket, or host:port")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", default="", help="ids of the logical CPUs to which this rank is bound")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if given.cores:
        os.sched_setaffinity(0, {int(core) for core in given.cores.split(",")})
    telemetry.configure("INFO", sys.stderr)
    position = RankPosition(**{name: getattr(given, name) for name in RankPosition.__slots__})
    rank_0 = _Rank0(_dialled(given.dial))
    rank_0.say(str(position.rank).encode())
    commands: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
    # Before anything slow, so that this process never outlives rank 0.
    threading.Thread(target=_read, args=(rank_0, commands), daemon=True).start()
    try:
        _follow(position, given.threads, commands, rank_0)
    except BaseException as error:  # the root of the process
        _fail(error, rank_0)


def _dialled(address: str) -> Connection:
    host, _, port = address.rpartition(":")
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    try:
        return Client(address if address.startswith("/") else (host, int(port)), authkey=key)
    except OSError as error:
        sys.exit(f"rank 0 of the trainer cannot be reached at {address} from this machine: {error}")


def _read(rank_0: _Rank0, commands: "queue.Queue[bytes]") -> None:
    for data in rank_0.commands():
        commands.put(data)
    os._exit(EXIT_LEFT)


def _follow(position: RankPosition, num_threads: int, commands: "queue.Queue[bytes]", rank_0: _Rank0) -> None:
    # Importing these takes seconds.
    import torch

    from periplus.job.job_file import JobFile
    from trainer.distributed.process_group import join
    from trainer.distributed.rank import TrainingRank, skeleton

    threading.Thread(target=_beat, args=(rank_0,), daemon=True).start()
    torch.set_num_threads(num_threads)
    # Rank 0 may be warming the model up for a long time.
    first = unpacked(commands.get())
    assert isinstance(first, BuildLearner), f"the learner is built first, not {first}"
    model = skeleton(first)
    rank_0.say(READY)
    # Ranks import at speeds of their own, on several machines above all.
    second = unpacked(commands.get())
    assert isinstance(second, JoinRanks), f"the ranks join next, not {second}"
    job = JobFile.from_json(first.job_json)
    here = TrainingRank(job, model, join(position, sharding=job.train.sharding))
    while True:
        command = unpacked(commands.get())
        try:
            beside = here.follow(command)
        except (NonFiniteLoss, ConfigError) as error:  # all ranks have it
            telemetry.event(
                log, logging.WARNING, "command_refused", rank=position.rank, command=type(command).__name__, why=error
            )
            continue
        if beside is not None:
            # Rank 0 takes one version after the other, so there is one thread at a time.
            threading.Thread(target=_finish, args=(beside, rank_0), daemon=True).start()


def _beat(rank_0: _Rank0) -> None:
    # Without rank 0 this process ends, by the end of its connection.
    with contextlib.suppress(OSError):
        while True:
            rank_0.say(BEAT)
            time.sleep(BEAT_S)


def _finish(finish: Callable[[], None], rank_0: _Rank0) -> None:
    try:
        finish()
    except BaseException as error:  # the root of the thread
        _fail(error, rank_0)


def _fail(error: BaseException, rank_0: _Rank0) -> None:
    """Tell rank 0 why this process ends, and end it, with all its threads and connections."""
    log.error("rank_failed", exc_info=error)
    try:
        rank_0.say(explained_failure(error).encode())
    finally:
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
