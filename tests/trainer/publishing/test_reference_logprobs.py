"""The probe of the trainer: of the rounded weights, with the masters as they were before."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from periplus.values.probe_prompts import NUM_LOGPROBS, PROBE_LIMITS_FLOAT32, probe_prompts
from trainer.publishing import reference_logprobs


def rounded(model: Any) -> Any:
    copied = deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
    return copied


def test_the_probe_is_of_the_weights_as_they_are_published_and_leaves_the_masters(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)
    ids = probe_prompts(0, model.config.vocab_size)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    memory = [parameter.data_ptr() for parameter in model.parameters()]
    found = reference_logprobs.logprobs(model, ids)
    assert found.dtype == np.float32
    assert found.size == NUM_LOGPROBS
    with torch.no_grad():
        logits = rounded(model)(input_ids=torch.from_numpy(ids)).logits
    expected = torch.log_softmax(logits[:, :-1], -1).gather(-1, torch.from_numpy(ids)[:, 1:, None]).squeeze(-1)
    np.testing.assert_allclose(found, expected.numpy(), atol=PROBE_LIMITS_FLOAT32.first_nats / 2)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert memory == [parameter.data_ptr() for parameter in model.parameters()]


def test_the_rounding_is_that_of_a_model_in_bfloat16_and_leaves_the_masters(model: Any) -> None:
    ids = probe_prompts(0, model.config.vocab_size)
    memory = [parameter.data_ptr() for parameter in model.parameters()]
    in_bf16 = deepcopy(model)
    for parameter in in_bf16.parameters():  # buffers, such as the rotary frequencies, stay in float32
        parameter.data = parameter.data.to(torch.bfloat16)
    with torch.no_grad():
        logits = in_bf16(input_ids=torch.from_numpy(ids)).logits.float()
    found = torch.log_softmax(logits[:, :-1], -1).gather(-1, torch.from_numpy(ids)[:, 1:, None]).squeeze(-1)
    exact = reference_logprobs.logprobs(model, ids)
    expected = np.abs(found.numpy() - exact).mean() / exact.std()
    assert reference_logprobs.relative_rounding(model, ids) == pytest.approx(expected, rel=0.01)
    assert 1e-4 < expected < 0.1
    assert memory == [parameter.data_ptr() for parameter in model.parameters()]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_masters_come_back_when_the_forward_pass_fails(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [parameter.data_ptr() for parameter in model.parameters()]
    last = list(model.modules())[-1]

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            last = module
    monkeypatch.setattr(last, "forward", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        reference_logprobs.logprobs(model, probe_prompts(0, model.config.vocab_size))
    assert before == [parameter.data_ptr() for parameter in model.parameters()]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_model_can_be_trained_after_a_probe(model: Any) -> None:
    ids = probe_prompts(0, model.config.vocab_size)
    reference_logprobs.logprobs(model, ids)
    model(input_ids=torch.from_numpy(ids), labels=torch.from_numpy(ids)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
