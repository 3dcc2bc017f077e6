"""Learners for the trainer's tests: resolved jobs, and batches that the model itself sampled."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from periplus.config.loading import validate
from periplus.job.job_file import JobFile, resolve
from periplus.values.trajectory import PolicyRun, StopReason
from tests.support.trainer.samples import CONSUMER, sample
from trainer.learning.batch import Sample


def tiny_model() -> Any:
    """Return a Qwen3 of 20 symbols and one layer, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=20,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=8,
                initializer_range=0.2,
                tie_word_embeddings=True,
                pad_token_id=0,
            )
        ).eval()


def make_job(**changes: Any) -> JobFile:
    """Return a resolved job at bound 2, with `changes` merged into its sections."""
    sections: dict[str, Any] = {
        "name": "a",
        "environment": {"name": "chain_sum"},
        "staleness": 2,
        "optimizer": {"lr": 1e-2},
        "sampling": {"max_new_tokens": 4},
        "train": {"groups_per_step": 4},
    }
    for name, value in changes.items():
        sections[name] = {**sections.get(name, {}), **value} if isinstance(value, dict) else value
    return resolve(validate(JobFile, sections, "job"))


def sampled(
    model: Any, seed: int, *, good_ids: range = range(10), num_groups: int = 4, group_size: int = 4, width: int = 3
) -> list[Sample]:
    """Return completions that the model drew. Their reward is the share of tokens within `good_ids`.

    Lengths differ, some are cut off, and the second token of some is a tool's.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = num_groups * group_size
    ids_BS = torch.tensor([[3 + row // group_size % 16, 4] for row in range(rows)])
    logprobs = []
    with torch.no_grad():
        for _ in range(width):
            logprobs_BV = torch.log_softmax(model(ids_BS).logits[:, -1].float(), -1)
            drawn_B1 = torch.multinomial(logprobs_BV.exp(), 1, generator=generator)
            logprobs.append(logprobs_BV.gather(1, drawn_B1))
            ids_BS = torch.cat([ids_BS, drawn_B1], 1)
    logprobs_BT = torch.cat(logprobs, 1)
    samples = []
    for row in range(rows):
        length = width - row % 2
        ids, mask = ids_BS[row, 2 : 2 + length].tolist(), [1] * length
        if row % 3 == 0 and length > 2:
            mask[1] = 0
        samples.append(
            sample(
                row // group_size,
                row % group_size,
                ids_BS[row, :2].tolist(),
                ids,
                mask=mask,
                reward=sum(token in good_ids for token in ids) / length,
                logprobs=logprobs_BT[row, :length].tolist(),
                policies=(PolicyRun(CONSUMER, length),),
                stop_reason=StopReason.LENGTH if length == width else StopReason.EOS,
            )
        )
    return samples
