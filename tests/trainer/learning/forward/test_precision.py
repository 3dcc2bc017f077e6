"""Passes in bfloat16 over float32 masters, and the choice of the dtype."""

from typing import Any

import pytest
import torch

from periplus.errors import ConfigError
from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER
from tests.support.trainer.small_models import PACKED, random_model
from trainer.learning.batch import collate
from trainer.learning.forward.attention import use_packed_attention
from trainer.learning.forward.precision import BFLOAT16_PARAMETERS, call_rounded, compute_dtype, has_bfloat16_units
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.recipe import build_learner

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "device", "num_parameters", "units", "expected"),
    [
        ("float32", CUDA, 10**12, True, torch.float32),
        ("bfloat16", CPU, 1, False, torch.bfloat16),
        ("auto", CUDA, 1, True, torch.bfloat16),
        ("auto", CUDA, 10**12, False, torch.float32),
        ("auto", CPU, BFLOAT16_PARAMETERS, True, torch.bfloat16),
        ("auto", CPU, BFLOAT16_PARAMETERS - 1, True, torch.float32),
        ("auto", CPU, BFLOAT16_PARAMETERS, False, torch.float32),
    ],
)
def test_the_dtype_follows_device_and_size_unless_the_job_says(
    choice: str, device: torch.device, num_parameters: int, units: bool, expected: torch.dtype
) -> None:
    got = compute_dtype(choice, device=device, num_parameters=num_parameters, has_bfloat16_units=units)
    assert got == expected


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((10, 3), True)]
)
def test_a_gpu_has_bfloat16_from_ampere_on(
    capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bfloat16_units(CUDA) is expected


def test_another_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.dtype is 'float16'; choose auto, float32 or bfloat16"):
        compute_dtype("float16", device=CPU, num_parameters=1, has_bfloat16_units=True)


@pytest.mark.parametrize("name", PACKED)
def test_a_rounded_pass_is_that_of_a_rounded_model_and_its_gradient_reaches_the_masters(name: str) -> None:
    model, rounded = random_model(PACKED[name]), random_model(PACKED[name])
    for each in (model, rounded):
        use_packed_attention(each)
    batch = collate(sampled(model, 0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    got_BT = completion_logprobs(PolicyScorer(model, compute_dtype=torch.bfloat16), batch, 1.0)
    # The same arithmetic, but for the output projection, which stays in float32 with the masters. Buffers, such as the
    # frequencies of rotary embeddings, stay as they are.
    for parameter in rounded.base_model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    rounded.get_output_embeddings().weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
    expected_BT = completion_logprobs(PolicyScorer(rounded), batch, 1.0)
    assert torch.equal(got_BT, expected_BT)
    assert got_BT.dtype == torch.float32
    (got_BT * batch.mask_BT).sum().backward()  # type: ignore[no-untyped-call]
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.detach(), old)
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype == torch.float32


def test_gradients_in_bfloat16_are_near_those_in_float32(model: Any) -> None:
    use_packed_attention(model)
    batch, found = collate(sampled(model, 0)), []
    for dtype in (None, torch.bfloat16):
        model.zero_grad()
        logprobs_BT = completion_logprobs(PolicyScorer(model, compute_dtype=dtype), batch, 1.0)
        (logprobs_BT * batch.mask_BT).sum().backward()  # type: ignore[no-untyped-call]
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert 0 < float((found[1] - found[0]).norm() / found[0].norm()) < 0.03


def test_a_step_in_bfloat16_keeps_masters_and_optimizer_in_float32(model: Any) -> None:
    learner = build_learner(
        make_job(algorithm={"name": "ppo", "kl_coefficient": 0.1}, train={"dtype": "bfloat16"}), model
    )
    report = learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=1e-3)
    assert report is not None
    # Small changes are kept, which bfloat16 would lose.
    assert 0 < report.mismatch.current.mean < 0.02
    state = learner.state_dict()
    for optimizer in (state["optimizer"], state["critic_optimizer"]):
        for entry in optimizer["state"].values():
            assert {entry["exp_avg"].dtype, entry["exp_avg_sq"].dtype} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weights_that_have_the_dtype_are_not_copied() -> None:
    linear = torch.nn.Linear(2, 2)
    seen = []
    linear.register_forward_hook(lambda module, *_: seen.append(module.weight))
    for dtype in (None, torch.float32, torch.bfloat16):
        call_rounded(linear, dtype, {"input": torch.ones(1, 2, dtype=dtype or torch.float32)})
    assert [weight is linear.weight for weight in seen] == [True, True, False]
