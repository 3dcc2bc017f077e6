from typing import Any

import torch

from trainer.batch import Sample, collate
from trainer.scoring import completion_logprobs


def sample(group: int, prompt: tuple[int, ...], completion: tuple[int, ...]) -> Sample:
    return Sample(
        group=group, sample=0, prompt_ids=prompt, completion_ids=completion,
        behaviour_logprobs=(0.0,) * len(completion), mask=(1,) * len(completion), reward=0.0,
    )  # fmt: skip


def test_padding_does_not_change_what_a_completion_is_worth(model: Any) -> None:
    samples = [sample(0, (3, 4, 5), (6, 7)), sample(1, (8,), (9, 10, 11, 2))]
    together = completion_logprobs(model, collate(samples, 0), 0.7)
    for row, one in enumerate(samples):
        ids = torch.tensor([one.prompt_ids + one.completion_ids])
        logits_TV = model(ids).logits[0, len(one.prompt_ids) - 1 : -1] / 0.7
        expected_T = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(one.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(together[row, : len(expected_T)], expected_T, atol=1e-5, rtol=1e-5)
