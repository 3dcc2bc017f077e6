"""What vLLM's workers say about themselves, and the layout of the weights that they hold together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from periplus.codec.weights.layout import StateLayout
from periplus.errors import ConfigError
from periplus.job.engine_section import unsupported_vllm
from rollout_worker.engines.vllm.shards import TensorShard, whole_layout

LOGPROBS_MODE = "processed_logprobs"
"""The setting of vLLM with which it reports log-probabilities of the distribution that a token was drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """One rank: the shards that it holds, its processes, and settings of vLLM. `problem` is empty if all is well.

    `breaks_on_parts` says whether this vLLM may compute a prompt in parts where it ends when it does so.
    """

    problem: str
    version: str
    processes: tuple[int, ...]
    shards: tuple[TensorShard, ...]
    logprobs_mode: str
    max_tokens: int
    dtype: str
    breaks_on_parts: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "WorkerDescription":
        """Return the description that `WorkerExtension.periplus_describe` sent."""
        return cls(
            problem=str(value["problem"]),
            version=str(value.get("version", "of an extension of another Periplus")),
            processes=tuple(value["processes"]),
            shards=tuple(TensorShard.from_json(shard) for shard in value["shards"]),
            logprobs_mode=str(value["logprobs_mode"]),
            max_tokens=int(value["max_tokens"]),
            dtype=str(value["dtype"]),
            breaks_on_parts=bool(value["breaks_on_parts"]),
        )


def layout_of_workers(workers: Sequence[WorkerDescription]) -> StateLayout:
    """Return the layout of what all ranks hold. Raises: ConfigError if they cannot serve, and why."""
    for worker in workers:
        if worker.problem:
            raise ConfigError(worker.problem)
        if why := unsupported_vllm(worker.version):
            raise ConfigError(f"vLLM cannot be used: {why}; install another one where it runs")
        if worker.logprobs_mode != LOGPROBS_MODE:
            raise ConfigError(
                f"vLLM reports {worker.logprobs_mode}, which are not those of the distribution that tokens are drawn "
                f"from; start it with --logprobs-mode {LOGPROBS_MODE}"
            )
        if worker.breaks_on_parts:
            raise ConfigError(
                "vLLM on a CPU ends when it computes a part of a prompt whose request has a seed, as all requests of a "
                "worker have; start it with --no-enable-chunked-prefill"
            )
    return whole_layout([worker.shards for worker in workers])
