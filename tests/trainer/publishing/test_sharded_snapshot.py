"""Weights on several real ranks against a single process: the same states, positions, bytes and probe."""

import os
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from periplus.codec.weights.encoder import encode
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import WeightState
from tests.support.trainer.gloo import run_on_ranks
from tests.support.trainer.sharded import OddModel, changed, divided, odd_values, set_values, small_qwen, take_step
from trainer.distributed.collectives import HostCollectives
from trainer.publishing import device_snapshot
from trainer.publishing.local_rows import parameter_rows
from trainer.publishing.publish import bf16_state
from trainer.publishing.sharded_snapshot import FollowerWeights, ShardedWeights
from trainer.publishing.snapshot import HostWeights
from trainer.publishing.trained_weights import weights_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SPAN_BYTES = 1 << 10
DENSITIES = (0.0, 0.002, 0.05, 1.0, 0.01, 0.5)


def versions() -> list[dict[str, torch.Tensor]]:
    """Return the masters of each version."""
    found = [odd_values(0)]
    for number, density in enumerate(DENSITIES):
        found.append(changed(found[-1], number, density))
    return found


def payloads_on_ranks() -> list[list[bytes]] | None:
    """Publish all versions from the ranks of this process group; rank 0 returns the parts of each."""
    device_snapshot.CHUNK_SPANS = 2
    ranks, model = HostCollectives.over(dist.new_group(backend="gloo")), divided(OddModel(0))
    if ranks.rank:
        follower = FollowerWeights(model, ranks, span_bytes=SPAN_BYTES)
        follower.first()
        for values in versions()[1:]:
            set_values(model, values)
            finish = follower.take()
            set_values(model, odd_values(77))
            finish()
        follower.first()
        return None
    weights = ShardedWeights(model, ranks, span_bytes=SPAN_BYTES)
    base, found = weights.first(), []
    for values in versions()[1:]:
        set_values(model, values)
        complete = weights.take()
        set_values(model, odd_values(77))  # training goes on before the version is completed
        taken = complete(base)
        found.append(encode(base, taken.state, changes=taken.changes, span_bytes=SPAN_BYTES))
        assert taken.changes is not None
        assert any(positions is not None for positions in taken.changes) or len(found) in (4, 6)
        base = taken.state
    return [encode(None, weights.first()), *found]


@pytest.fixture(scope="module")
def alone() -> list[list[bytes]]:
    model = OddModel(0)
    weights = HostWeights(model)
    base, found = weights.first(), []
    for values in versions()[1:]:
        set_values(model, values)
        taken = weights.take()(base)
        found.append(encode(base, taken.state, span_bytes=SPAN_BYTES))
        base = taken.state
    set_values(model, odd_values(77))
    return [encode(None, bf16_state(model)), *found]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_number_of_ranks_publishes_the_bytes_of_a_single_process(size: int, alone: list[list[bytes]]) -> None:
    assert run_on_ranks(payloads_on_ranks, size)[0] == alone


# ---- while it is trained --------------------------------------------------------------------------------------------


def trained_on_ranks() -> dict[str, Any] | None:
    """Publish a model while it is trained, completing each version in a thread beside the next step."""
    ranks, model = HostCollectives.over(dist.new_group(backend="gloo")), divided(small_qwen())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weights: Any = FollowerWeights(model, ranks) if ranks.rank else weights_of(model, ranks)
    prompts = probe_prompts(0, 21)
    found: dict[str, Any] = {"states": [weights.first()], "probes": [weights.probe(prompts)], "masters": [full(model)]}
    for step in range(3):
        take_step(model, optimizer, step)
        finish = weights.take()
        found["probes"].append(weights.probe(prompts))
        found["masters"].append(full(model))
        state: list[WeightState] = []

        def complete(finish: Any = finish, state: list[Any] = state) -> None:
            state.append(finish() if ranks.rank else finish(found["states"][-1]).state)

        thread = Thread(target=complete)
        thread.start()
        take_step(model, torch.optim.SGD(model.parameters(), lr=0.0), step)  # collectives of training beside it
        thread.join()
        found["states"] += state
    return found if ranks.rank == 0 else None


def full(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: parameter.full_tensor().detach().numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("size", [2, 3])
def test_versions_and_probes_are_those_of_the_weights_that_are_trained(size: int) -> None:
    found = run_on_ranks(trained_on_ranks, size)[0]
    assert len(found["states"]) == len(found["masters"]) == 4
    model = small_qwen()
    for state, masters, probe in zip(found["states"], found["masters"], found["probes"], strict=True):
        set_values(model, {name: torch.from_numpy(values) for name, values in masters.items()})
        assert state == bf16_state(model)
        np.testing.assert_allclose(probe, HostWeights(model).probe(probe_prompts(0, 21)), atol=1e-6, rtol=0)
    # Each version and its probe differ from the one before: no stale weights were published or probed.
    for before, after in zip(found["states"], found["states"][1:], strict=False):
        assert before != after
    for before, after in zip(found["probes"], found["probes"][1:], strict=False):
        assert np.abs(before - after).max() > 1e-3


def stale_after_probe() -> float:
    """Return by how much a forward pass after a probe and a change of the shards differs from that of a fresh model."""
    model = divided(small_qwen())
    shards = [parameter.to_local() for parameter in model.parameters()]
    prompts = torch.from_numpy(probe_prompts(0, 21))
    ranks = HostCollectives.over()
    weights: Any = FollowerWeights(model, ranks) if ranks.rank else weights_of(model, ranks)
    weights.probe(prompts.numpy())
    fresh = small_qwen()
    with torch.no_grad():
        for values in (*shards, *fresh.parameters()):
            values.fill_(0.125)
        return float((model(input_ids=prompts).logits - fresh(input_ids=prompts).logits).abs().max())


def test_a_probe_leaves_no_gathered_weights_for_the_next_forward_pass() -> None:
    assert run_on_ranks(stale_after_probe, 2) == [0.0, 0.0]


def partly_gathered() -> str:
    model = divided(small_qwen())
    with torch.no_grad():
        model(input_ids=torch.from_numpy(probe_prompts(0, 21)))
    try:
        parameter_rows(model.model, HostCollectives.over().rank)  # the outermost module has gathered the embeddings
    except ValueError as error:
        return str(error)
    return ""


def test_a_parameter_that_is_gathered_is_not_taken_for_one_that_every_rank_holds() -> None:
    found = run_on_ranks(partly_gathered, 2)
    assert all("is whole, while other parameters are divided" in each for each in found), found


# ---- memory ---------------------------------------------------------------------------------------------------------

NUM_ELEMENTS = 24 << 20
"""Parameters of the model of which memory is measured: 96 MiB in float32."""


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for number in range(6):
            weight = torch.nn.Parameter(torch.zeros(NUM_ELEMENTS // 6 // 1024, 1024))
            self.register_parameter(f"layer_{number}", weight)


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def peak_on_ranks() -> int:
    """Return by how many bytes this process grew at most while a version was taken and completed.

    It is the second version: the kernel gives memory for the words of the next one when they are first written.
    """
    device_snapshot.CHUNK_SPANS = 1
    ranks, model = HostCollectives.over(), divided(Wide())
    weights: Any = FollowerWeights(model, ranks) if ranks.rank else weights_of(model, ranks)
    base = weights.first()
    finish = weights.take()
    base = finish() if ranks.rank else finish(base).state
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local()[::7, ::11] = 1.0  # 1.3 % of the elements
    (Path("/proc/self/clear_refs")).write_text("5")  # the peak is counted from here
    before = status_bytes("VmRSS")
    finish = weights.take()
    finish() if ranks.rank else finish(base)
    return status_bytes("VmHWM") - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel does not reset peaks")
def test_no_rank_gathers_the_full_masters_and_only_the_first_makes_a_state() -> None:
    first, *others = run_on_ranks(peak_on_ranks, 2)
    full_bytes, state_bytes = 4 * NUM_ELEMENTS, 2 * NUM_ELEMENTS
    # The first rank makes its copy of the new state, and a quarter of that for scratch memory and messages.
    assert first < 1.25 * state_bytes < full_bytes
    assert max(others) < 0.25 * state_bytes
