"""Compiled layers: the same results up to rounding, one compilation for all lengths, an error without a compiler."""

import copy
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch

from periplus.errors import ConfigError
from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER
from tests.support.trainer.small_models import PACKED, PADDED, random_model
from trainer.learning.batch import Batch, collate
from trainer.learning.forward.attention import use_packed_attention
from trainer.learning.forward.compiled import CACHE_VARIABLE, compile_layers, is_compiled, keep_compiled_code
from trainer.learning.forward.recomputation import recompute_layers
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.publishing import reference_logprobs
from trainer.recipe import build_learner, policy_scorer

# torch's tracer hides the first with a filter of its own, which does not hold below pytest's; its modules and some
# models cause the second.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MODELS = PACKED | PADDED


def pass_of(model: Any, batch: Batch, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return log-probabilities and gradients."""
    model.zero_grad()
    logprobs_BT = completion_logprobs(PolicyScorer(model, compute_dtype=dtype), batch, 1.0) * batch.mask_BT
    logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]
    return [logprobs_BT.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.fixture
def few_compilations() -> Any:
    """A check that fails if a function is compiled more than four times."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_traced_layers_of_each_family_compute_the_same(name: str, few_compilations: None) -> None:
    model = random_model(MODELS[name])
    use_packed_attention(model)
    batches = [collate(sampled(model, seed, num_groups=groups, width=12)) for seed, groups in ((0, 2), (1, 3), (2, 4))]
    plain = [pass_of(model, batch, None) for batch in batches]
    assert not is_compiled(model)
    assert compile_layers(model, backend="aot_eager") == 2
    assert is_compiled(model)
    for batch, expected in zip(batches, plain, strict=True):
        found = pass_of(model, batch, None)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="compiling needs a C++ compiler, and this machine has no g++")
def test_compiled_steps_are_those_of_plain_layers_up_to_rounding(
    model: Any, tmp_path: Path, few_compilations: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "")  # so that what is set here ends with the test
    keep_compiled_code(tmp_path / "compiled")
    twin = copy.deepcopy(model)
    jobs = {each: make_job(train={"compile": each, "dtype": "float32"}) for each in (False, True)}
    plain, compiled = build_learner(jobs[False], model), build_learner(jobs[True], twin)
    assert is_compiled(twin)
    assert not is_compiled(model)
    for seed in range(3):
        samples = sampled(model, seed, num_groups=2 + seed, width=12)
        reports = [each.step(samples, consumer=CONSUMER, learning_rate=1e-3) for each in (plain, compiled)]
        assert reports[0] is not None
        assert reports[1] is not None
        assert reports[1].grad_norm == pytest.approx(reports[0].grad_norm, rel=1e-3)
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-4)
    assert any((tmp_path / "compiled").iterdir())


def test_a_copy_computes_with_its_own_weights(model: Any) -> None:
    compile_layers(model, backend="eager")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    gradients = pass_of(twin, collate(sampled(twin, 0)), None)[1:]
    assert is_compiled(twin)
    assert any(bool(gradient.any()) for gradient in gradients)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_recomputed_layers_may_be_compiled(model: Any) -> None:
    batch = collate(sampled(model, 0))
    plain = pass_of(model, batch, torch.bfloat16)
    compile_layers(model, backend="eager")
    recompute_layers(model)
    assert is_compiled(model)
    assert all(map(torch.equal, pass_of(model, batch, torch.bfloat16), plain))


def test_the_probe_is_that_of_plain_layers() -> None:
    model = random_model(PACKED["qwen3 untied"])
    use_packed_attention(model)
    prompts = np.arange(2 * 6).reshape(2, 6)
    plain = reference_logprobs.logprobs(model, prompts)
    compile_layers(model, backend="eager")
    # The hooks by which the probe rounds weights would not be called by what is compiled here.
    with torch.no_grad():
        model(input_ids=torch.from_numpy(prompts))
    assert np.array_equal(reference_logprobs.logprobs(model, prompts), plain)


def test_a_machine_without_a_compiler_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler no-such-compiler; install one"):
        policy_scorer(make_job(train={"compile": True}), model)
