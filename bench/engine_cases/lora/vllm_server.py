"""vLLM's own OpenAI server with adapters, and the requests by which TRL gives it adapters and samples with them.

TRL's client needs a package that its own environment here lacks, so the requests are made by urllib, with the same
paths and fields: `/v1/load_lora_adapter` with a name, a directory and `load_inplace` false, and the adapter's name as
the model of a completion.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

READY_S = 240.0
"""Seconds that a server gets to start. It took 35 s on two idle cores."""
STOP_S = 30.0
"""Seconds that a server gets to stop before it is killed."""
REQUEST_S = 120.0
"""Seconds that one request may take."""

MAX_LORAS = 6
"""Slots for adapters: what TRL asks for at its default bound of 4 versions."""


class Server:
    """A running server. `url` is its address."""

    def __init__(self, url: str) -> None:
        self._url = url

    def load(self, name: str, folder: Path) -> tuple[int, str]:
        """Give the server an adapter, and return the status and text of its answer. TRL goes on if it is 200."""
        return self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder), "load_inplace": False})

    def unload(self, name: str) -> None:
        """Take an adapter from the server."""
        self._post("/v1/unload_lora_adapter", {"lora_name": name})

    def logprobs(self, name: str, prompts: npt.NDArray[np.int64]) -> list[float] | None:
        """Return the log-probability of each token of the prompts but the first, in nats, under an adapter.

        None if the server answers a request with an error.
        """
        found: list[float] = []
        for ids in prompts.tolist():
            body = {"model": name, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "return_token_ids": True}
            status, text = self._post("/v1/completions", body)
            if status != 200:
                return None
            tokens = json.loads(text)["choices"][0]["prompt_logprobs"][1:]
            found += [tokens[i][str(token)]["logprob"] for i, token in enumerate(ids[1:])]
        return found

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def serving(python: Path, model: Path, rank: int, log: Path) -> Iterator[Server]:
    """Run a server of a model until the body ends. Raises: RuntimeError if it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(MAX_LORAS), "--max-model-len", "64"]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output)
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"vLLM was not ready: {log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.5)


def same(one: Sequence[float], other: Sequence[float], limit_nats: float = 1e-4) -> bool:
    """Return whether two lists of log-probabilities agree, as far as the same server repeats them."""
    return all(abs(a - b) <= limit_nats for a, b in zip(one, other, strict=True))
