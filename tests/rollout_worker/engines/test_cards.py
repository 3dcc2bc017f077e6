"""Whether an engine fits into the memory of its GPUs. The cards are values: no GPU is needed."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from periplus.errors import ConfigError
from rollout_worker.engines.cards import (
    GIB,
    Card,
    cards_of_new_process,
    check_torch_fits,
    check_vllm_dtype,
    check_vllm_fits,
    torch_dtype,
    weight_bytes,
)
from tests.support.trainer.small_models import random_model


def card(free_gib: float, total_gib: float = 80, index: int = 0, capability: tuple[int, int] = (9, 0)) -> Card:
    free_bytes, total_bytes = int(free_gib * GIB), int(total_gib * GIB)
    return Card(index=index, name="NVIDIA A", capability=capability, free_bytes=free_bytes, total_bytes=total_bytes)


def test_a_share_that_is_free_fits() -> None:
    check_vllm_fits([card(72.1), card(79)], share=0.9, cache_bytes=None, weight_bytes=90 * GIB)


def test_a_share_that_other_processes_hold_is_refused_with_device_sizes_and_key() -> None:
    words = r"0\.9 of the memory of GPU 1 \(NVIDIA A, 40\.0 of 80\.0 GiB free\), 72\.0 GiB, .*gpu_share below 0\.50"
    with pytest.raises(ConfigError, match=words):
        check_vllm_fits([card(79), card(40, index=1)], share=0.9, cache_bytes=None, weight_bytes=0)


def test_with_a_size_of_the_cache_weights_and_cache_must_fit() -> None:
    check_vllm_fits([card(30)], share=0.9, cache_bytes=20 * GIB, weight_bytes=9 * GIB)
    words = r"31\.0 GiB of GPU 0 .*30\.0 of 80\.0 GiB free\): 9\.0 for weights and 22\.0 .* lower engine\.kv_cache_gib"
    with pytest.raises(ConfigError, match=words):
        check_vllm_fits([card(30)], share=0.9, cache_bytes=22 * GIB, weight_bytes=9 * GIB)


def test_the_bytes_of_weights_are_those_of_the_model() -> None:
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, head_dim=8
    )
    numbers = sum(each.numel() for each in random_model(lambda: config).parameters())
    assert weight_bytes(config, torch.bfloat16) == 2 * numbers


@pytest.mark.parametrize(
    ("choice", "capability", "expected"),
    [
        ("auto", None, "float32"),
        ("auto", (7, 5), "float32"),
        ("auto", (8, 0), "bfloat16"),
        ("auto", (12, 0), "bfloat16"),
        ("bfloat16", (7, 5), "bfloat16"),
        ("float32", (9, 0), "float32"),
    ],
)
def test_the_torch_engine_computes_in_bfloat16_where_the_card_has_it(
    choice: str, capability: tuple[int, int] | None, expected: str
) -> None:
    assert torch_dtype(choice, None if capability is None else card(1, capability=capability)) == expected


def test_vllm_is_refused_on_a_card_without_bfloat16() -> None:
    check_vllm_dtype([card(1)], "bfloat16")
    check_vllm_dtype([card(1, capability=(7, 0))], "float32")
    words = r"GPU 1 \(NVIDIA A, .*compute capability is 7\.5, .* set engine\.name=torch and engine\.dtype=float32"
    with pytest.raises(ConfigError, match=words):
        check_vllm_dtype([card(1), card(1, index=1, capability=(7, 5))], "bfloat16")


def test_keys_and_values_of_the_torch_engine_must_fit_beside_its_weights() -> None:
    config = Qwen3Config(num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    # 2048 tokens are 2048 * 32 * 8 * 128 * 2 * 2 bytes, a quarter of a GiB.
    sizes: dict[str, Any] = {"num_columns": 2048, "dtype": torch.bfloat16}
    check_torch_fits(card(17), config, num_slots=64, **sizes)
    with pytest.raises(
        ConfigError, match=r"needs 16\.0 GiB .*9\.0 of 80\.0 GiB free.* engine\.max_requests=32 or lower"
    ):
        check_torch_fits(card(9), config, num_slots=64, **sizes)
    with pytest.raises(ConfigError, match=r"set engine\.name=vllm, or lower sampling\.max_new_tokens"):
        check_torch_fits(card(1.5), config, num_slots=4, **sizes)


@pytest.mark.processes
def test_a_process_of_its_own_names_the_visible_gpus() -> None:
    assert len(cards_of_new_process()) == torch.cuda.device_count()
