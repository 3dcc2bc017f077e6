"""The optimizers that a job can name: what changes which tensor, and that their state is saved as one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.learning.muon import MuonWithAdamW
from trainer.recipe import build_learner


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(7, 4)
        self.inner = torch.nn.Linear(4, 6)
        self.lm_head = torch.nn.Linear(6, 7, bias=False)


def optimizer_of(net: Net) -> MuonWithAdamW:
    named = list(net.named_parameters())
    return MuonWithAdamW(named, lr=0.1, betas=(0.9, 0.95), momentum=0.9, weight_decay=0.01)


def stepped(net: Net, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def test_matrices_inside_layers_change_as_by_muon_and_the_rest_as_by_adamw() -> None:
    net, alone = Net(), Net()
    both = optimizer_of(net)
    muon = torch.optim.Muon(
        [alone.inner.weight], lr=0.1, momentum=0.9, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    rest = [alone.embed.weight, alone.inner.bias, alone.lm_head.weight]
    adamw = torch.optim.AdamW(rest, lr=0.1, betas=(0.9, 0.95), weight_decay=0.01)
    for seed in range(3):
        for group in both.param_groups:
            group["lr"] = 0.1 / (seed + 1)
        stepped(net, both, seed)
        muon.param_groups[0]["lr"] = adamw.param_groups[0]["lr"] = 0.1 / (seed + 1)
        stepped(alone, muon, seed)
        adamw.step()
    for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_its_state_goes_on_where_it_was_saved() -> None:
    net = Net()
    optimizer = optimizer_of(net)
    stepped(net, optimizer, 0)
    restored = Net()
    restored.load_state_dict(copy.deepcopy(net.state_dict()))
    again = optimizer_of(restored)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, one in ((net, optimizer), (restored, again)):
        stepped(each, one, 1)
    for found, expected in zip(restored.parameters(), net.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("chosen", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}, {"name": "muon"}])
def test_a_job_names_its_optimizer(chosen: dict[str, Any]) -> None:
    actor = tiny_model()
    learner = build_learner(make_job(optimizer={"lr": 1e-2, **chosen}), actor)
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    report = learner.step(sampled(actor, 0), consumer=CONSUMER, learning_rate=1e-2)
    assert report is not None
    assert any(not torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))
    again = build_learner(make_job(optimizer={"lr": 1e-2, **chosen}), copy.deepcopy(actor))
    again.load_state_dict(copy.deepcopy(learner.state_dict()))


def test_the_reference_is_the_checkpoint_that_the_job_names(tmp_path: Path) -> None:
    other = tiny_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    other.save_pretrained(tmp_path / "other")
    kl = {"kl_coefficient": 0.1}
    distances = []
    for algorithm in (kl, kl | {"kl_reference": str(tmp_path / "other")}):
        learner = build_learner(make_job(algorithm={"name": "grpo", **algorithm}), tiny_model())
        report = learner.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=0.0)
        assert report is not None
        distances.append(report.reference_kl or 0.0)
    assert distances[0] == pytest.approx(0.0, abs=1e-6)
    assert distances[1] > 1e-4
