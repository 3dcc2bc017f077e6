"""What an engine holds is what is proven: against real publications of a real model after a real change."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus.digest import state_digest
from periplus.errors import CorruptFrame, WrongBase
from periplus.policy import Policy
from periplus.publication import Publication
from periplus.state import Tensor
from rollout_worker.weights import EngineWeights
from trainer import publish
from trainer.model import load_model, resolve_model_dir
from trainer.publish import Published

MAX_BYTES = 1 << 30


class Trained:
    """A trainer's end: a model, and the publications of its versions."""

    def __init__(self, cache: Path) -> None:
        self.model: Any = load_model(resolve_model_dir("builtin:qwen3-tiny", cache, 0))[0]
        state = publish.bf16_state(self.model)
        self.published = Published(policy=Policy(0, 0), state=state, digest=state_digest(state))
        self.versions = [publish.anchor("j", self.published)]

    def step(self, element: int = 0) -> Publication:
        """Change one element of each tensor by more than its rounding."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(-1)[element] += 0.5
        policy, state = self.published.policy.next(), publish.bf16_state(self.model)
        self.published, publication = publish.next_version("j", self.published, policy, state)
        self.versions.append(publication)
        return publication


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trained = Trained(tmp_path_factory.mktemp("models"))
    trained.step(0)
    trained.step(1)
    return trained


@pytest.fixture
def tensors(trained: Trained) -> dict[str, torch.Tensor]:
    """A random engine's, which an anchor must overwrite."""
    return {name: torch.randn_like(parameter) for name, parameter in trained.model.named_parameters()}


@pytest.fixture
def engine(tensors: dict[str, torch.Tensor], trained: Trained) -> EngineWeights:
    weights = EngineWeights(tensors)
    weights.apply(trained.versions[0], MAX_BYTES)
    assert weights.policy == Policy(0, 0)
    return weights


def flip(tensor: torch.Tensor, bit: int, element: int = 5) -> None:
    bits = tensor.view(torch.int32).view(-1)
    bits[element] ^= 1 << bit


def test_anchor_and_deltas_lead_to_the_digest_that_the_trainer_published(
    engine: EngineWeights, trained: Trained
) -> None:
    for version in trained.versions[1:]:
        assert engine.apply(version, MAX_BYTES) == version.closing.state_digest
        assert engine.policy == version.opening.policy
    assert engine.read() == trained.published.state


@pytest.mark.parametrize("bit", [16, 22, 23, 30, 31])
def test_one_flipped_element_makes_the_next_proof_fail_and_an_anchor_heals_it(
    engine: EngineWeights, tensors: dict[str, torch.Tensor], trained: Trained, bit: int
) -> None:
    flip(tensors["model.layers.1.mlp.up_proj.weight"], bit)
    assert engine.apply(trained.versions[1], MAX_BYTES) != trained.versions[1].closing.state_digest
    assert engine.policy is None
    engine.apply(trained.versions[0], MAX_BYTES)
    engine.apply(trained.versions[1], MAX_BYTES)
    assert engine.policy == Policy(0, 1)


@pytest.mark.parametrize("bit", [0, 15])
def test_a_flip_below_what_bfloat16_can_hold_is_found_too(
    engine: EngineWeights, tensors: dict[str, torch.Tensor], trained: Trained, bit: int
) -> None:
    flip(tensors["model.norm.weight"], bit)
    with pytest.raises(CorruptFrame, match=r"model\.norm\.weight"):
        engine.apply(trained.versions[1], MAX_BYTES)
    assert engine.policy is None
    engine.apply(trained.versions[0], MAX_BYTES)
    assert engine.policy == Policy(0, 0)


def test_a_delta_applied_twice_is_refused_and_writes_nothing(engine: EngineWeights, trained: Trained) -> None:
    engine.apply(trained.versions[1], MAX_BYTES)
    before = engine.read()
    with pytest.raises(WrongBase):
        engine.apply(trained.versions[1], MAX_BYTES)
    assert engine.read() == before
    assert engine.policy is None, "what is not proven must not serve"


def test_a_delta_from_another_version_is_refused(engine: EngineWeights, trained: Trained) -> None:
    with pytest.raises(WrongBase, match="anchor"):
        engine.apply(trained.versions[2], MAX_BYTES)


def test_a_payload_that_is_not_what_the_closing_promises_is_not_proven(engine: EngineWeights, trained: Trained) -> None:
    version = trained.versions[1]
    engine.apply(replace(version, closing=replace(version.closing, state_digest=b"\0" * 32)), MAX_BYTES)
    assert engine.policy is None


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_a_state_that_does_not_fit_the_engine_is_refused_before_anything_is_written(
    engine: EngineWeights, trained: Trained, change: str
) -> None:
    before, state = engine.read(), dict(trained.published.state)
    norm = state["model.norm.weight"]
    dtype, shape = ("F16", norm.shape) if change == "dtype" else (norm.dtype, (1, *norm.shape))
    state["model.norm.weight"] = Tensor(dtype, shape, norm.data)
    with pytest.raises(WrongBase, match=r"model\.norm\.weight"):
        engine.write(state)
    assert engine.read() == before


def test_the_engine_computes_with_exactly_the_published_values(
    engine: EngineWeights, tensors: dict[str, torch.Tensor], trained: Trained
) -> None:
    for version in trained.versions[1:]:
        engine.apply(version, MAX_BYTES)
    for name, parameter in trained.model.named_parameters():
        assert torch.equal(tensors[name], parameter.detach().bfloat16().float())
