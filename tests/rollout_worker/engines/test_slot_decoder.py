"""The slots of the torch engine, without its thread: what a request's tokens depend on, and what a swap changes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.errors import ConfigError
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, RequestFailed, SampleRequest
from rollout_worker.engines.layer_masks import check_architecture
from rollout_worker.engines.slot_decoder import PREFILL_ROWS, SlotDecoder
from rollout_worker.engines.tensor_memory import TensorMemory
from tests.support.cases.examples import examples
from tests.support.engines.models import (
    EOS,
    MOST_NEW,
    PAD,
    VOCAB,
    WIDTH,
    decoder,
    gpt2,
    llama,
    qwen3,
    request,
    state_of,
)

MODELS = {"qwen3": qwen3, "llama": llama, "gpt2": gpt2}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The promise is for one thread: several split the work by shape."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    return qwen3()


def run(slots: SlotDecoder, arrivals: Sequence[Sequence[SampleRequest]]) -> dict[str, Completion]:
    """Submit the requests of each step before it, and go on until all have ended."""
    found: dict[str, Completion] = {}
    for number in range(10_000):
        if number < len(arrivals):
            for one in arrivals[number]:
                slots.submit(one)
        elif slots.is_idle:
            return found
        for ended in slots.step(may_begin=True):
            assert isinstance(ended.result, Completion), ended.result
            found[ended.request.request_id] = ended.result
    raise AssertionError("the decoder never became idle")


def tokens(completion: Completion) -> tuple[Any, ...]:
    """What the promise is about: tokens, log-probabilities bit for bit, policies and end."""
    return completion.token_ids, completion.logprobs, completion.runs, completion.end


KEYS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), unique=True, min_size=1, max_size=24)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def typed_model(request: pytest.FixtureRequest) -> Any:
    return qwen3().to(getattr(torch, request.param))


@settings(max_examples=examples(30))
@given(KEYS, st.data())
def test_a_completion_is_bitwise_the_same_whoever_decodes_beside_it_and_whenever_it_came(
    typed_model: Any, keys: list[tuple[int, int]], data: st.DataObject
) -> None:
    model = typed_model
    requests = [request(group, sample, max_new_tokens=3 + group % 9) for group, sample in keys]
    # Each request comes before some step, in an order of its own, to decoders with different numbers of waiting ones.
    steps = [data.draw(st.integers(0, 8)) for _ in requests]
    arrivals = [[one for one, step in zip(requests, steps, strict=True) if step == number] for number in range(9)]
    together = run(decoder(model), arrivals)
    backwards = run(decoder(model), [requests[::-1]])
    chosen = data.draw(st.sampled_from(requests))
    alone = run(decoder(model), [[chosen]])
    assert {name: tokens(each) for name, each in together.items()} == {n: tokens(e) for n, e in backwards.items()}
    assert tokens(alone[chosen.request_id]) == tokens(together[chosen.request_id])


def test_the_model_of_these_tests_is_not_saturated(model: Any) -> None:
    """Log-probabilities that are all 0 would agree whatever the kernels do: the test above would be empty."""
    completions = run(decoder(model), [[request(group) for group in range(40)]])
    logprobs = [logprob for completion in completions.values() for logprob in completion.logprobs]
    assert len(set(logprobs)) > 0.95 * len(logprobs)
    assert max(logprobs) < 0


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_the_generate_of_transformers_token_for_token(name: str) -> None:
    model = MODELS[name]()
    asked = [request(group, greedy=True, max_new_tokens=MOST_NEW) for group in range(20)]
    ours = run(decoder(model), [asked])
    for one in asked:
        theirs = model.generate(
            torch.tensor([one.prompt_ids]),
            attention_mask=torch.ones(1, len(one.prompt_ids)),
            do_sample=False,
            max_new_tokens=one.max_new_tokens,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
        assert ours[one.request_id].token_ids == tuple(theirs[0, len(one.prompt_ids) :].tolist())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_tempered_model(name: str, temperature: float) -> None:
    model = MODELS[name]()
    asked = [request(group, temperature=temperature) for group in range(8)]
    for one, completion in zip(asked, in_order(asked, run(decoder(model), [asked])), strict=True):
        expected_T = scored(model, one, completion.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected_T, atol=1e-4, rtol=1e-4)


def in_order(asked: Sequence[SampleRequest], found: dict[str, Completion]) -> list[Completion]:
    return [found[one.request_id] for one in asked]


def scored(model: Any, one: SampleRequest, token_ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of a completion by one plain pass over prompt and completion."""
    ids = torch.tensor([(*one.prompt_ids, *token_ids)])
    with torch.no_grad():
        logits_TV = model(ids).logits[0, len(one.prompt_ids) - 1 : -1] / temperature
    return torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(token_ids)[:, None])[:, 0]


def test_a_completion_ends_with_its_end_token_or_at_its_length(model: Any) -> None:
    completions = run(decoder(model), [[request(g, s) for g in range(20) for s in range(8)]]).values()
    assert {completion.end for completion in completions} == {CompletionEnd.EOS, CompletionEnd.LENGTH}
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs) == sum(run.num_tokens for run in completion.runs)
        assert EOS not in completion.token_ids[:-1]
        assert (completion.token_ids[-1] == EOS) == (completion.end is CompletionEnd.EOS)
        assert completion.end is CompletionEnd.EOS or len(completion.token_ids) == 6


def test_seed_version_and_sample_each_give_other_tokens(model: Any) -> None:
    def sampled(seed: int, version: int) -> list[tuple[int, ...]]:
        asked = [request(4, sample, temperature=2.0, seed=seed) for sample in range(12)]
        found = run(decoder(model, policy=Policy(0, version)), [asked])
        return [completion.token_ids for completion in in_order(asked, found)]

    runs = [sampled(0, 0), sampled(0, 1), sampled(1, 0)]
    assert all(one != other for one, other in pairwise([*runs, runs[0]]))
    assert len(set(runs[0])) > 6


def test_a_groups_prompt_is_prefilled_once(model: Any) -> None:
    passes: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: passes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        # Two samples fit beside each other, so most of the group begins after the first of it have ended.
        run(decoder(model, num_slots=4), [[request(3, sample, max_new_tokens=2) for sample in range(12)]])
    finally:
        hook.remove()
    assert sum(shape[1] > 1 for shape in passes) == 1


def test_prompts_of_waiting_requests_fill_the_rows_of_a_prefill_that_would_be_idle(model: Any) -> None:
    passes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        # Each pass has the two prompts that are needed, and the two of the four requests that wait next.
        asked = [request(group, sample, max_new_tokens=1) for group in range(16) for sample in range(2)]
        assert len({one.prompt_ids for one in asked}) == 16
        run(decoder(model, num_slots=4), [asked])
    finally:
        hook.remove()
    assert sum(width > 1 for width in passes) == 4


def test_a_slot_is_given_to_the_next_request_while_the_others_go_on(model: Any) -> None:
    slots = decoder(model, num_slots=4)
    for sample, length in enumerate((2, 12, 12, 12, 12)):
        slots.submit(request(7, sample, max_new_tokens=length, temperature=1e-3))
    ended = [each.request.sample for each in slots.step(may_begin=True)]
    assert ended == [0]
    slots.step(may_begin=True)
    assert slots.num_running == 4


def test_while_nothing_may_begin_slots_run_empty(model: Any) -> None:
    slots = decoder(model)
    slots.submit(request(1))
    assert slots.step(may_begin=False) == []
    assert slots.num_running == 0
    assert not slots.is_idle


# ---- new weights between two tokens --------------------------------------------------------------------------------


def swapped_run(prefill_again: bool, after: int = 3) -> tuple[SampleRequest, Completion, Any, Any]:
    """Return a request whose weights changed after some tokens, its completion, and both models."""
    old, new = qwen3(0), qwen3(1)
    served = qwen3(0)
    slots = decoder(served, policy=Policy(0, 4))
    one = request(5, max_new_tokens=MOST_NEW, temperature=0.8)
    # Beside others, in whatever slot.
    for sample in range(1, 4):
        slots.submit(request(8, sample, max_new_tokens=MOST_NEW))
    slots.submit(one)
    found: dict[str, Completion] = {}
    for number in range(3 * MOST_NEW):
        if number == after:
            write(served, new)
            slots.weights_changed(Policy(0, 5), prefill_again=prefill_again)
        found |= {
            e.request.request_id: e.result for e in slots.step(may_begin=True) if isinstance(e.result, Completion)
        }
    return one, found[one.request_id], old, new


def write(model: Any, source: Any) -> None:
    TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()}).write_all(state_of(source))


def test_after_a_prefill_again_each_run_is_that_of_its_own_weights() -> None:
    one, completion, old, new = swapped_run(prefill_again=True)
    first, second = completion.runs
    assert (first.policy, second.policy) == (Policy(0, 4), Policy(0, 5))
    assert not first.kept_kv
    assert not second.kept_kv
    cut, found = first.num_tokens, torch.tensor(completion.logprobs)
    torch.testing.assert_close(found[:cut], scored(old, one, completion.token_ids, 0.8)[:cut], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[cut:], scored(new, one, completion.token_ids, 0.8)[cut:], atol=1e-4, rtol=1e-4)


def test_with_kept_keys_and_values_the_new_weights_attend_to_the_old_ones() -> None:
    one, completion, old, new = swapped_run(prefill_again=False)
    first, second = completion.runs
    assert second == PolicyRun(Policy(0, 5), second.num_tokens, kept_kv=True)
    assert not first.kept_kv
    # The reference: a cache of transformers, filled by the old weights, and read by the new ones.
    cut, found = first.num_tokens, torch.tensor(completion.logprobs)
    ids = torch.tensor([(*one.prompt_ids, *completion.token_ids)])
    length = len(one.prompt_ids)
    with torch.no_grad():
        # What was fed before the swap: the prompt, and all tokens but the newest.
        fed = length + cut - 1
        cache = old(ids[:, :fed], use_cache=True).past_key_values
        logits_TV = new(ids[:, fed:-1], past_key_values=cache, use_cache=True).logits[0] / 0.8
    expected_T = torch.log_softmax(logits_TV, -1).gather(1, ids[0, fed + 1 :, None])[:, 0]
    torch.testing.assert_close(found[cut:], expected_T, atol=1e-4, rtol=1e-4)
    # It is not what the new weights alone would say: the runs are marked for a reason.
    assert (found[cut:] - scored(new, one, completion.token_ids, 0.8)[cut:]).abs().max() > 1e-3


def test_a_request_that_begins_after_a_swap_is_one_run_of_the_new_weights() -> None:
    model = qwen3(0)
    slots = decoder(model, policy=Policy(0, 0))
    run(slots, [[request(5)]])  # its prompt is prefilled with the old weights
    write(model, qwen3(1))
    slots.weights_changed(Policy(0, 1), prefill_again=False)
    found = run(slots, [[request(5, 1)]])["5/1"]
    fresh = run(decoder(qwen3(1), policy=Policy(0, 1)), [[request(5, 1)]])["5/1"]
    assert tokens(found) == tokens(fresh)
    assert [part.kept_kv for part in found.runs] == [False]


@settings(max_examples=examples(20))
@given(st.booleans(), st.integers(1, 6), st.permutations(range(1, 9)), st.permutations(range(6)))
def test_a_swap_leaves_a_completion_bitwise_independent_of_those_beside_it(
    prefill_again: bool, after: int, others: list[int], places: list[int]
) -> None:
    def swapped(asked: Sequence[SampleRequest]) -> Completion:
        served = qwen3(0)
        slots = decoder(served)
        for each in asked:
            slots.submit(each)
        found: dict[str, Completion] = {}
        for number in range(3 * MOST_NEW):
            if number == after:
                write(served, new)
                slots.weights_changed(Policy(0, 1), prefill_again=prefill_again)
            found |= {
                e.request.request_id: e.result for e in slots.step(may_begin=True) if isinstance(e.result, Completion)
            }
        return found[one.request_id]

    # All begin at the first step, so the swap comes at the same token of it, whatever its slot.
    new, one = qwen3(1), request(20, max_new_tokens=MOST_NEW)
    beside = [request(group, max_new_tokens=2 + group) for group in others]
    together = swapped([*beside[: places[0]], one, *beside[places[0] :]])
    assert tokens(together) == tokens(swapped([one]))


# ---- failures cost one request -------------------------------------------------------------------------------------


class Refusing(torch.nn.Module):
    """A model that cannot compute with one token id."""

    _supports_attention_backend = True  # as transformers says of the model inside

    def __init__(self, model: Any, token: int) -> None:
        super().__init__()
        self.inner, self.config, self._token = model, model.config, token

    def forward(self, **arguments: Any) -> Any:
        if (arguments["input_ids"] == self._token).any():
            raise RuntimeError("a kernel failed")
        return self.inner(**arguments)


@pytest.mark.parametrize("failing_group", [0, 7])
def test_a_request_that_cannot_be_computed_fails_alone(model: Any, failing_group: int) -> None:
    requests = [request(group, sample, length=2) for group in range(9) for sample in range(2)]
    bad = request(failing_group, length=2).prompt_ids[1]
    at_fault = {one.request_id for one in requests if bad in one.prompt_ids}
    slots = decoder(Refusing(model, bad))
    ended: dict[str, Completion | RequestFailed] = {}
    for one in requests:
        slots.submit(one)
    while not slots.is_idle:
        ended |= {each.request.request_id: each.result for each in slots.step(may_begin=True)}
    failed = {name for name, result in ended.items() if isinstance(result, RequestFailed)}
    # A completion that draws the token later fails, too, as it does alone.
    expected = run(decoder(model), [requests])
    drawn = {name for name, completion in expected.items() if bad in completion.token_ids[:-1]}
    assert failed == at_fault | drawn
    assert 0 < len(failed) < len(requests)
    for name in expected.keys() - failed:
        result = ended[name]
        assert isinstance(result, Completion)
        assert tokens(result) == tokens(expected[name])


def test_requests_that_cannot_be_prefilled_again_begin_again_with_the_new_weights() -> None:
    served, new = qwen3(0), qwen3(1)
    several = [request(group, length=2, max_new_tokens=MOST_NEW) for group in range(30)]
    first = run(decoder(qwen3(0)), [several])
    asked = [one for one in several if len(first[one.request_id].token_ids) > 6][:4]
    prompts = {token for one in asked for token in one.prompt_ids}
    # A token that no prompt has, and that one of the requests samples before the swap.
    bad = next(t for one in asked for t in first[one.request_id].token_ids[:3] if t not in prompts | {PAD})

    class RefusingToPrefill(Refusing):
        def forward(self, **arguments: Any) -> Any:
            whole = arguments["input_ids"].shape[1] > 1
            return super().forward(**arguments) if whole else self.inner(**arguments)

    slots = decoder(RefusingToPrefill(served, bad))
    for one in asked:
        slots.submit(one)
    for _ in range(3):
        assert slots.step(may_begin=True) == []
    write(served, new)
    slots.weights_changed(Policy(0, 1), prefill_again=True)
    # They begin again from their prompts, with the new weights from the first token on: nothing is mixed.
    found: dict[str, Completion | RequestFailed] = {}
    while not slots.is_idle:
        found |= {each.request.request_id: each.result for each in slots.step(may_begin=True)}
    fresh = run(decoder(qwen3(1), policy=Policy(0, 1)), [asked])
    for name, expected in fresh.items():
        result = found[name]
        assert isinstance(result, Completion)
        assert tokens(result) == tokens(expected)


def test_prefilled_prompts_that_are_kept_are_bounded_and_copies(model: Any) -> None:
    slots = decoder(model)
    requests = [request(group, length=4, max_new_tokens=1) for group in range(40)]
    assert len({one.prompt_ids for one in requests}) > 30
    together = run(slots, [requests])
    kept = list(slots._prompts.values())
    assert len(kept) == PREFILL_ROWS
    # Keeping a prompt keeps the memory of no other one.
    assert {part.untyped_storage().nbytes() for each in kept for part in each.cache.layers[0]} == {4 * 4 * 8 * WIDTH}
    again = run(slots, [[replace(requests[0], sample=1)]])
    alone = run(decoder(model), [[replace(requests[0], sample=1)]])
    assert [tokens(each) for each in again.values()] == [tokens(each) for each in alone.values()]
    assert together.keys() == {one.request_id for one in requests}


def test_aborted_requests_keep_their_tokens_and_free_their_slots(model: Any) -> None:
    requests = [request(3, sample, max_new_tokens=MOST_NEW) for sample in range(12)]
    whole = run(decoder(model), [requests])
    long = [one for one in requests if len(whole[one.request_id].token_ids) > 4][:6]
    assert len(long) == 6
    slots = decoder(model, num_slots=4)
    for one in long:
        slots.submit(one)
    for _ in range(2):
        slots.step(may_begin=True)
    chosen, unstarted = long[1].request_id, long[5].request_id
    ended = {each.request.request_id: each.result for each in slots.abort({chosen, unstarted, "no such"})}
    assert ended.keys() == {chosen, unstarted}
    running, waiting = ended[chosen], ended[unstarted]
    assert isinstance(running, Completion)
    assert isinstance(waiting, Completion)
    assert running.end is waiting.end is CompletionEnd.ABORTED
    assert running.token_ids == whole[chosen].token_ids[:3]
    assert waiting.token_ids == ()
    assert slots.num_running == 3


@pytest.mark.parametrize(
    "changes",
    [{"layer_types": ["full_attention", "linear_attention"]}, {"use_bidirectional_attention": True}],
)
def test_layers_of_another_kind_are_refused(changes: dict[str, Any]) -> None:
    config = qwen3().config
    for key, value in changes.items():
        setattr(config, key, value)
    with pytest.raises(ConfigError, match="only causal attention with or without a sliding window"):
        check_architecture(config)


def test_too_few_slots_for_stable_kernels_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="num_slots"):
        decoder(model, num_slots=3)


def test_the_vocabulary_of_the_tests_is_the_models(model: Any) -> None:
    assert model.config.vocab_size == VOCAB
