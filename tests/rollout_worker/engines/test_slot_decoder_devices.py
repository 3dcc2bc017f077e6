"""The slots of the torch engine on a device that is not the CPU: nothing is left on the host, and nobody waits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from rollout_worker.engines.engine import Completion, SampleRequest
from rollout_worker.engines.slot_decoder import SlotDecoder
from rollout_worker.engines.tensor_memory import TensorMemory
from tests.support.cases.tiers import rest_is_slow
from tests.support.engines.models import EOS, MOST_NEW, PAD, WIDTH, decoder, gpt2, llama, qwen3, request, state_of
from tests.support.engines.other_device import OTHER, OtherDevice, OtherEvent, OtherTensor, on_other, other_device

MODELS = {"qwen3": qwen3, "llama": llama, "gpt2": gpt2}

ASKED = [request(g, s, max_new_tokens=MOST_NEW, greedy=g % 3 == 0) for g in range(5) for s in range(2)]


def slots_there(model: Any) -> SlotDecoder:
    slots = SlotDecoder(
        model=model,
        end_ids=(EOS,),
        pad_id=PAD,
        num_slots=6,
        prompt_tokens=WIDTH,
        max_new_tokens=MOST_NEW,
        device=OTHER,
        now_s=lambda: 0.0,
    )
    slots.policy = Policy(0, 0)
    return slots


def run(slots: SlotDecoder, asked: Sequence[SampleRequest]) -> tuple[dict[str, Completion], int]:
    """Return the completions by request, and the number of steps."""
    found, num_steps = {}, 0
    for one in asked:
        slots.submit(one)
    while not slots.is_idle:
        num_steps += 1
        for each in slots.step(may_begin=True):
            assert isinstance(each.result, Completion), each.result
            found[each.request.request_id] = each.result
    return found, num_steps


def assert_near(found: dict[str, Completion], expected: dict[str, Completion]) -> None:
    assert found.keys() == expected.keys()
    for name, completion in expected.items():
        assert found[name].token_ids == completion.token_ids
        # Not bitwise: the cache has one column more on an accelerator.
        np.testing.assert_allclose(found[name].logprobs, completion.logprobs, atol=1e-5)
        assert found[name].end is completion.end


@pytest.mark.parametrize("name", rest_is_slow(MODELS))
def test_no_tensor_is_left_on_the_host_and_the_host_waits_once_a_step_for_the_step_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = run(decoder(MODELS[name]()), ASKED)
    model = on_other(MODELS[name]())
    with other_device(monkeypatch) as device:
        found, num_steps = run(slots_there(model), ASKED)
    assert_near(found, expected)
    assert {kind for kind in device.counts if "not waiting" not in kind} == set()
    # Each step reads the tokens of one forward pass and of the prompts that began, if any did.
    assert num_steps <= OtherEvent.waits <= 2 * num_steps
    # Tokens and their log-probabilities. Those of the last pass are nobody's: its requests had ended before.
    assert device.counts["from device, not waiting"] in (2 * OtherEvent.waits, 2 * OtherEvent.waits + 2)


@pytest.mark.parametrize("prefill_again", [False, True])
def test_weights_are_written_and_hashed_where_they_lie(prefill_again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(slots: SlotDecoder, served: Any) -> dict[str, Completion]:
        """Run all requests, and give the model other weights after three steps."""
        memory = TensorMemory({name: parameter.detach() for name, parameter in served.named_parameters()})
        found: dict[str, Completion] = {}
        for one in ASKED:
            slots.submit(one)
        number = -1
        while not slots.is_idle:
            number += 1
            ended = slots.before_change() if number == 3 else []
            if number == 3:
                memory.write_all(after)
                slots.weights_changed(Policy(0, 1), prefill_again=prefill_again)
            ended += slots.step(may_begin=True)
            found |= {e.request.request_id: e.result for e in ended if isinstance(e.result, Completion)}
        assert memory.digest() == state_digest(after)
        return found

    after = state_of(qwen3(1))
    # On the CPU, tokens are read in the step that samples them: one step earlier than there. The slots are refilled
    # at other steps, and so the swap comes at another token.
    monkeypatch.setattr("rollout_worker.engines.slot_decoder.LAG", 0)
    here = qwen3()
    expected = swapped(decoder(here), here)
    model = on_other(qwen3())
    with other_device(monkeypatch):
        found = swapped(slots_there(model), model)
    assert_near(found, expected)
    assert {name: each.runs for name, each in found.items()} == {name: each.runs for name, each in expected.items()}
    assert any(len(each.runs) == 2 for each in found.values())


def test_the_device_of_these_tests_refuses_to_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the check: what the tests above rule out is found."""
    with other_device(monkeypatch) as device, torch.inference_mode():
        there = torch.ones(3, device=OTHER)
        assert isinstance(there, OtherTensor)
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(3)
        assert _waits(device) == 0
        float(there.sum())
        bool((there > 0).all())
        there.cpu()
        assert _waits(device) == 3


def _waits(device: OtherDevice) -> int:
    return sum(count for kind, count in device.counts.items() if "not waiting" not in kind)
