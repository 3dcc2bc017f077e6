"""A fork server: a process that has imported torch and more, and forks a process for each task.

A process of a job takes 5 CPU seconds to import its modules. A fork takes some 20 ms, and shares the memory of what was
imported. The agents of a local fleet share one fork server, so that the tasks of a job import nothing.

The server listens on a Unix socket, which only its own user can reach. A client sends one `Request` per connection,
with three file descriptors: the standard input, output and errors of the new process. The process is a Python process
as any other: it leads a Unix session of its own, has the environment of the request, and runs a module as
`python -m MODULE ARGUMENTS`. The server answers twice:

    {"pid": ID}         once the process is there; {"refused": REASON} if the server cannot start it
    {"exit_code": N}    once it has ended; minus the signal's number if one killed it

Modules read variables such as HF_HOME when they are imported. So a request whose environment differs from the server's
is refused, except for `PER_TASK`. A server that has more than one thread refuses all, because a fork copies one thread
alone, and locks that another one held would stay locked. Clients start processes in the usual way then.

The server ends when its standard input ends. A client then kills its process, whose end nobody would report.

The server must not touch a GPU, because CUDA does not work in a fork of a process that uses it.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import setproctitle

PER_TASK = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM"})
"""Variables in which a task may differ from the server. Nothing that the server imports has read them for good: threads
are set by torch.set_num_threads, and the others are read when they are needed."""

ADDRESS_VARIABLE = "PERIPLUS_FORK_SERVER"
"""Variable with the path of the socket, for the agents of a local fleet."""

MAX_REQUEST_BYTES = 128 << 10
NUM_STREAMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A process to start: a Python interpreter, a module, its arguments, its environment and its working directory.

    `prefix` are the words that run the command line elsewhere, before it; empty on this machine.
    """

    python: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    prefix: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The command line that starts such a process without a fork server."""
        return [*self.prefix, self.python, "-m", self.module, *self.arguments]

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> "Request":
        tree = json.loads(data)
        return cls(**tree | {key: tuple(tree[key]) for key in ("arguments", "prefix")})


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a task must have in common with its server."""
    return {name: text for name, text in environment.items() if name not in PER_TASK | {ADDRESS_VARIABLE}}


class ForkServer:
    """Forks processes for its clients. `listener` is a listening Unix socket of messages (SOCK_SEQPACKET).

    `environment` is what was `inherited` before any module was imported.
    """

    def __init__(self, listener: socket.socket, environment: Mapping[str, str]) -> None:
        self._listener = listener
        self._environment = environment
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()
        self._children: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a process: its id, its client

    def serve(self) -> Request | None:
        """Serve until standard input ends, and return None then. In a new process, return its request."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    if not os.read(0, 1 << 12):
                        return None
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, int):
                    self._report(key.fileobj)
                elif isinstance(key.fileobj, socket.socket) and (request := self._receive(key.fileobj)) is not None:
                    return request

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> Request | None:
        data, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, NUM_STREAMS)
        try:
            if not data:  # the client has gone
                self._drop(connection)
                return None
            request = Request.of_bytes(data)
            if reason := self._refusal(request):
                _send(connection, {"refused": reason})
                return None
            try:
                pid = os.fork()
            except OSError as error:
                _send(connection, {"refused": f"the fork server cannot fork: {error.strerror}"})
                return None
            if pid == 0:
                self._become(request, streams)
                return request
            _send(connection, {"pid": pid})
        finally:
            for stream in streams:
                os.close(stream)
        child = os.pidfd_open(pid)
        self._children[child] = pid, connection
        self._selector.register(child, selectors.EVENT_READ)
        return None

    def _refusal(self, request: Request) -> str:
        if (num_threads := len(os.listdir("/proc/self/task"))) > 1:
            return f"the fork server has {num_threads} threads"
        if request.python != sys.executable:
            return f"the fork server runs {sys.executable}, not {request.python}"
        wanted = inherited(request.environment)
        names = {name for name in {*wanted, *self._environment} if wanted.get(name) != self._environment.get(name)}
        return f"these variables differ from the fork server's: {', '.join(sorted(names))}" if names else ""

    def _become(self, request: Request, streams: Sequence[int]) -> None:
        """Turn the new process into the one that was asked for."""
        os.setsid()
        self._selector.close()
        self._listener.close()
        for connection in self._connections:
            connection.close()
        for child in self._children:
            os.close(child)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)

    def _report(self, child: int) -> None:
        pid, connection = self._children.pop(child)
        self._selector.unregister(child)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        _send(connection, {"exit_code": os.waitstatus_to_exitcode(status)})

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._connections.discard(connection)
        connection.close()


def _send(connection: socket.socket, message: Mapping[str, object]) -> None:
    try:
        connection.send(json.dumps(message).encode())
    except OSError:  # the client has gone
        return


def _run(request: Request) -> None:
    setproctitle.setproctitle(" ".join(request.words))
    sys.argv = [request.module, *request.arguments]
    sys.path[0] = request.folder
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


@click.command()
@click.option("--socket", "path", type=click.Path(path_type=Path), required=True, help="Where clients connect.")
@click.option("--room", default="", help="Ignored: it makes room for the longer command lines of tasks in `ps`.")
@click.option("--preload", multiple=True, metavar="MODULE", help="Imported before the first fork; repeatable.")
def main(path: Path, preload: Sequence[str], room: str) -> Request | None:  # its length counts
    """Serve until standard input ends. Connections are queued while modules are imported."""
    environment = inherited(os.environ)
    # A title may then be as long as this process's own command line only, but /proc/ID/environ stays readable.
    os.environ["SPT_NOENV"] = "1"
    setproctitle.getproctitle()  # it finds the place of its title by the first environment
    # Asked whether there is a GPU, torch would else start CUDA, which no fork could use any more.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bound = path.with_name(f"{path.name}~")
    listener.bind(str(bound))
    listener.listen(64)
    bound.rename(path)  # clients that see it can connect
    for module in preload:
        try:
            importlib.import_module(module)
        except Exception:  # the process of a task will say so in its own log
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # the collector would write to the memory that all processes share
    return ForkServer(listener, environment).serve()


if __name__ == "__main__":
    if (request := main(standalone_mode=False)) is not None:
        _run(request)
