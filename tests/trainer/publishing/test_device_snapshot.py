"""The device path against the host's own: the same states, the same positions, the same bytes.

Here torch's CPU device stands for the accelerator: the same operations, in another memory. What a real one does, and
how fast, has not been tried; the test at the end does as soon as there is one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.codec.weights.part import elements, words
from periplus.codec.weights.sparse import span as sparse
from periplus.values.weight_state import WeightState
from trainer.publishing import device_snapshot
from trainer.publishing.device_snapshot import DeviceCopy, patched
from trainer.publishing.publish import bf16_state
from trainer.publishing.snapshot import DeviceWeights, HostWeights
from trainer.publishing.trained_weights import weights_of

SPAN_BYTES = 1 << 10
SHAPES = {"a.0": (7,), "a.1": (300, 5), "a.10": (2, 3, 11), "b": (), "c": (0, 4), "d": (1024,), "e": (513,)}


class Model:
    """Named parameters with the bits of any number, but no NaN: torch rounds those by their place in a vector."""

    def __init__(self, generator: np.random.Generator, device: str = "cpu") -> None:
        self._parameters = {
            name: torch.from_numpy(_any_bits(generator, shape)).to(device) for name, shape in SHAPES.items()
        }

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._parameters.items()

    def parameters(self) -> Iterator[torch.Tensor]:
        yield from self._parameters.values()

    def modules(self) -> Iterator[torch.nn.Module]:
        yield from ()

    def change(self, generator: np.random.Generator, density: float) -> None:
        for name, tensor in self._parameters.items():
            chosen = torch.from_numpy(np.asarray(generator.random(SHAPES[name]) < density)).to(tensor.device)
            other = torch.from_numpy(_any_bits(generator, SHAPES[name])).to(tensor.device)
            tensor.copy_(torch.where(chosen, other, tensor))


def _any_bits(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    bits = generator.integers(0, 1 << 32, shape, dtype=np.uint32)
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1], np.uint32)
    chosen = np.where(generator.random(shape) < 0.3, special[generator.integers(0, len(special), shape)], bits)
    values = np.asarray(chosen, np.uint32).view(np.float32)
    return np.asarray(np.where(np.isnan(values), np.float32(-0.0), values))


def host_positions(base: WeightState, new: WeightState, span_bytes: int) -> list[list[int]]:
    layout = layout_of(new)
    return [
        sparse.find_changes(
            sparse.base_span(span, words(span, elements(layout, span, base))),
            words(span, elements(layout, span, new)),
        ).positions.tolist()
        for span in layout.spans(span_bytes)
    ]


@pytest.fixture
def few_spans_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_snapshot, "CHUNK_SPANS", 2)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), densities=st.lists(st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]), max_size=4))
def test_versions_taken_on_the_device_equal_those_of_the_host(
    few_spans_at_a_time: None, seed: int, densities: list[float]
) -> None:
    generator = np.random.default_rng(seed)
    model = Model(generator)
    copy = DeviceCopy(dict(model.named_parameters()), span_bytes=SPAN_BYTES)
    state = copy.state()
    assert state == bf16_state(model)
    for density in densities:
        model.change(generator, density)
        new, changes = bf16_state(model), copy.take()()
        found = patched(state, copy, changes)
        assert found == new
        for change, expected in zip(changes, host_positions(state, new, SPAN_BYTES), strict=True):
            assert change.positions is None or change.positions.tolist() == expected
        if density <= 0.05:
            assert all(change.positions is not None for change in changes)
        state = found
    assert copy.state() == state


@pytest.mark.parametrize("density", [0.0, 0.01, 0.9])
def test_what_is_encoded_with_known_changes_is_the_same_to_the_byte(model: Any, density: float) -> None:
    device, host = DeviceWeights(model), HostWeights(model)
    base = device.first()
    assert base == host.first()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            chosen = torch.rand(parameter.shape, generator=generator) < density
            parameter.mul_(torch.where(chosen, 1.01, 1.0))
    taken, expected = device.take()(base), host.take()(base)
    assert taken.state == expected.state
    assert taken.changes is not None
    assert encode(base, taken.state, changes=taken.changes) == encode(base, expected.state)


def test_a_version_that_was_taken_does_not_change_when_training_goes_on(model: Any) -> None:
    weights = DeviceWeights(model)
    base = weights.first()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    expected, finish = bf16_state(model), weights.take()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert finish(base).state == expected


def test_weights_in_the_hosts_memory_are_compared_there(model: Any) -> None:
    assert isinstance(weights_of(model), HostWeights)


@pytest.mark.cuda
def test_an_accelerator_takes_the_same_versions() -> None:
    generator = np.random.default_rng(0)
    model = Model(generator, "cuda")
    weights = weights_of(model)
    assert isinstance(weights, DeviceWeights)
    base = weights.first()
    assert base == bf16_state(model)
    for density in (0.001, 0.05, 0.9):
        model.change(generator, density)
        new, taken = bf16_state(model), weights.take()(base)
        assert taken.state == new
        assert encode(base, taken.state, changes=taken.changes) == encode(base, new)
        base = new
