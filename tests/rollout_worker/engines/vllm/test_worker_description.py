"""Which vLLM is refused for what its workers say of themselves."""

from typing import Any

import pytest

from periplus.errors import ConfigError
from rollout_worker.engines.vllm.worker_description import WorkerDescription, layout_of_workers


def described(**changes: Any) -> WorkerDescription:
    value: dict[str, Any] = {
        "problem": "",
        "processes": [7, 6],
        "shards": [["a.weight", [4, 2], 0, 4, 0, 2]],
        "logprobs_mode": "processed_logprobs",
        "max_tokens": 64,
        "dtype": "bfloat16",
        "breaks_on_parts": False,
        "version": "0.32.0",
    }
    return WorkerDescription.from_json(value | changes)


def test_the_layout_is_that_of_the_shards() -> None:
    (line,) = layout_of_workers([described()]).lines
    assert (line.name, line.shape) == ("a.weight", (4, 2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem": "weights are quantised"}, "weights are quantised"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"breaks_on_parts": True}, "--no-enable-chunked-prefill"),
        ({"version": "0.28.1"}, "vLLM 0.28.1, and only versions from 0.32 to before 0.34"),
    ],
)
def test_a_vllm_that_cannot_serve_is_refused_with_how_to_start_it(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        layout_of_workers([described(), described(**changes)])
