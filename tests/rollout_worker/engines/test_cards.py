"""Whether an engine fits into the memory of its GPUs. The cards are values: no GPU is needed."""

import pytest
import torch
from transformers import Qwen3Config

from periplus.errors import ConfigError
from rollout_worker.engines.cards import GIB, Card, cards_of_new_process, check_vllm_fits, weight_bytes
from tests.support.trainer.small_models import random_model


def card(free_gib: float, total_gib: float = 80, index: int = 0) -> Card:
    return Card(index=index, name="NVIDIA A", free_bytes=int(free_gib * GIB), total_bytes=int(total_gib * GIB))


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


@pytest.mark.processes
def test_a_process_of_its_own_names_the_visible_gpus() -> None:
    assert len(cards_of_new_process()) == torch.cuda.device_count()
