"""What an engine holds, and what it computes with: against real deltas of a real model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.codec.weights.staged import Staged, Update
from periplus.errors import CorruptFrame, WrongBase
from periplus.values.digest import state_digest
from periplus.values.probe_prompts import PROBE_TOLERANCE_NATS
from periplus.values.weight_state import WeightState
from rollout_worker.weights.engine_writer import EngineWeights
from tests.support.tiny_engine import SEED, model_states, prober, tiny_engine, tiny_model

STATES = model_states(3)
DIGESTS = [state_digest(state) for state in STATES]
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def probe() -> Callable[[WeightState], tuple[float, ...]]:
    return prober()


@pytest.fixture
def model() -> Any:
    return tiny_model()


@pytest.fixture
def weights(model: Any) -> EngineWeights:
    """At version 0."""
    weights = EngineWeights(tiny_engine(model), SEED)
    weights.check_fits(layout_of(STATES[0]))
    weights.write_all(STATES[0])
    return weights


def staged(base: int | None, new: int) -> Staged:
    base_state = None if base is None else STATES[base]
    parts = list(encode(base_state, STATES[new]))
    decoder = Decoder(base_state, max_content_bytes=1 << 24, max_parts=len(parts))
    for part in parts:
        decoder.feed(part)
    return decoder.staged()


def updates(base: int | None, new: int) -> list[Update]:
    return [update for span in staged(base, new).spans for update in span.updates()]


def flip(tensor: torch.Tensor, bit: int, element: int = 5) -> None:
    tensor.view(torch.int32).view(-1)[element] ^= 1 << bit


def test_deltas_lead_to_the_digest_that_was_published_and_to_exactly_these_values(
    weights: EngineWeights, model: Any
) -> None:
    for version in (1, 2):
        weights.write(updates(version - 1, version))
        assert weights.check(DIGESTS[version], ()).is_sound
    assert weights.read() == STATES[2]
    for name, parameter in model.named_parameters():
        bits = torch.from_numpy(STATES[2][name].data.copy()).view(torch.bfloat16).view(parameter.shape)
        assert torch.equal(parameter, bits.float())


@pytest.mark.parametrize("base", [0, None])
def test_writing_twice_changes_nothing(weights: EngineWeights, base: int | None) -> None:
    for _ in range(2):
        weights.write(updates(base, 1))
        assert weights.check(DIGESTS[1], ()).digest == DIGESTS[1]


def test_what_was_written_in_part_is_written_again_in_full(weights: EngineWeights) -> None:
    """As after a death between two tensors, or when versions that the engine has are written again on its way."""
    every = [*updates(0, 1), *updates(1, 2)]
    for done in range(0, len(every), 7):
        weights.write(every[:done])
        weights.write(every)
        assert weights.check(DIGESTS[2], ()).is_sound


@pytest.mark.parametrize("bit", [0, 15, 16, 23, 31])
def test_one_flipped_bit_of_one_weight_is_found(weights: EngineWeights, model: Any, bit: int) -> None:
    flip(model.get_parameter(NAME), bit)
    finding = weights.check(DIGESTS[0], ())
    assert not finding.is_sound
    assert NAME in finding.why or DIGESTS[0].hex() in finding.why
    weights.write_all(STATES[0])
    assert weights.check(DIGESTS[0], ()).is_sound


def test_a_flip_below_what_bfloat16_can_hold_names_its_tensor(weights: EngineWeights, model: Any) -> None:
    flip(model.get_parameter(NAME), 3)
    with pytest.raises(CorruptFrame, match=r"up_proj"):
        state_digest(weights.read())


def test_a_sound_engine_answers_the_probe_as_the_trainer_does(
    weights: EngineWeights, probe: Callable[[WeightState], tuple[float, ...]]
) -> None:
    finding = weights.check(DIGESTS[0], probe(STATES[0]))
    assert finding.is_sound
    assert finding.max_difference is not None
    assert finding.max_difference < PROBE_TOLERANCE_NATS / 10


def test_a_layer_that_computes_with_another_tensor_is_right_to_the_hash_and_wrong_to_the_probe(
    weights: EngineWeights, model: Any, probe: Callable[[WeightState], tuple[float, ...]]
) -> None:
    layer = model.model.layers[1].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    weights.write(updates(0, 1))
    finding = weights.check(DIGESTS[1], probe(STATES[1]))
    assert finding.digest == DIGESTS[1]
    assert not finding.is_sound
    assert "computes with others" in finding.why


@pytest.mark.parametrize("factor", [1.01, 0.0, float("nan")])
def test_a_scale_that_reading_back_does_not_see_is_found_by_the_probe(
    weights: EngineWeights, model: Any, probe: Callable[[WeightState], tuple[float, ...]], factor: float
) -> None:
    model.model.layers[0].self_attn.v_proj.register_forward_hook(lambda module, inputs, output: output * factor)
    finding = weights.check(DIGESTS[0], probe(STATES[0]))
    assert finding.digest == DIGESTS[0]
    assert not finding.is_sound


def test_two_tensors_that_were_swapped_are_found(
    weights: EngineWeights, model: Any, probe: Callable[[WeightState], tuple[float, ...]]
) -> None:
    first, second = model.model.layers[0].mlp, model.model.layers[1].mlp
    first.up_proj, second.up_proj = second.up_proj, first.up_proj
    assert not weights.check(DIGESTS[0], probe(STATES[0])).is_sound


def test_without_a_reference_the_probe_is_not_run(weights: EngineWeights) -> None:
    assert weights.check(DIGESTS[0], ()).max_difference is None


@pytest.mark.parametrize("change", ["shape", "dtype", "missing", "more"])
def test_a_state_that_is_not_of_the_engines_model_is_refused(weights: EngineWeights, change: str) -> None:
    state = dict(STATES[0])
    norm = state["model.norm.weight"]
    match change:
        case "shape":
            state["model.norm.weight"] = replace(norm, shape=(1, *norm.shape))
        case "dtype":
            state["model.norm.weight"] = replace(norm, dtype="F16")
        case "missing":
            del state["model.norm.weight"]
        case "more":
            state["model.other.weight"] = norm
    with pytest.raises(WrongBase, match=r"model\.(norm|other)\.weight"):
        weights.check_fits(layout_of(state))


def test_an_engine_in_bfloat16_is_written_and_read_without_a_detour_and_may_round_as_it_does(
    probe: Callable[[WeightState], tuple[float, ...]],
) -> None:
    model = tiny_model()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    weights = EngineWeights(tiny_engine(model), SEED)
    weights.check_fits(layout_of(STATES[0]))
    weights.write(updates(None, 0))
    assert weights.check(DIGESTS[0], ()).is_sound
    weights.write_all(STATES[0])
    weights.write(updates(0, 1))
    finding = weights.check(DIGESTS[1], probe(STATES[1]))
    assert finding.is_sound
    assert finding.max_difference is not None
    assert finding.max_difference > PROBE_TOLERANCE_NATS
    assert weights.read() == STATES[1]


def test_an_engine_of_another_precision_is_refused() -> None:
    weights = EngineWeights(tiny_engine(tiny_model().to(torch.float16)), SEED)
    with pytest.raises(ValueError, match="float16"):
        weights.write_all(STATES[0])
