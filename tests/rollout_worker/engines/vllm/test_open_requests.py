from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.environment.completions import CompletionDecoder
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import CompletionEnd, SampleRequest
from rollout_worker.engines.stop_strings import StopStrings
from rollout_worker.engines.vllm.backend import LabelSpan, TokenChunk
from rollout_worker.engines.vllm.open_requests import LabelHistory, OpenRequest, only_label


def history(*states: tuple[int, bool]) -> LabelHistory:
    """A history of (version, whether keys were kept)."""
    found = LabelHistory()
    for version, keeps_kv in states:
        found.add(found.next(Policy(0, version), keeps_kv=keeps_kv))
    return found


def spans(*parts: tuple[int, int, int]) -> tuple[LabelSpan, ...]:
    """Spans from (version, number of the label, tokens)."""
    return tuple(LabelSpan(label=f"0.{version}#{number}", num_tokens=tokens) for version, number, tokens in parts)


def test_runs_keep_keys_where_a_swap_between_them_kept_them() -> None:
    found = history((0, False), (1, True), (2, False), (3, True)).runs(
        [spans((0, 0, 4), (1, 1, 2), (2, 2, 1), (3, 3, 5))]
    )
    assert found == (
        PolicyRun(Policy(0, 0), 4),
        PolicyRun(Policy(0, 1), 2, kept_kv=True),
        PolicyRun(Policy(0, 2), 1),
        PolicyRun(Policy(0, 3), 5, kept_kv=True),
    )


def test_a_leg_that_began_after_a_swap_keeps_no_older_keys() -> None:
    labels = history((0, False), (1, True))
    assert labels.runs([spans((1, 1, 3))]) == (PolicyRun(Policy(0, 1), 3),)
    assert labels.runs([spans((0, 0, 2)), spans((1, 1, 3))]) == (PolicyRun(Policy(0, 0), 2), PolicyRun(Policy(0, 1), 3))


def test_a_repair_of_one_policy_makes_no_second_run_of_it_and_shares_no_key() -> None:
    labels = history((0, False), (0, True))
    assert labels.runs([spans((0, 0, 2), (0, 1, 3))]) == (PolicyRun(Policy(0, 0), 5),)
    newest = labels.newest
    assert newest is not None
    assert newest.text == "0.0#1"


@pytest.mark.parametrize("label", ["default", "0.1#7", "0.1#x", "0.1#0", "0.0#00", ""])
def test_tokens_of_weights_that_this_worker_has_not_written_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="has not written"):
        history((0, False)).runs([(LabelSpan(label=label, num_tokens=1),)])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=8))
def test_runs_cover_all_tokens_and_their_policies_rise(parts: Sequence[tuple[int, int]]) -> None:
    labels, found, version = LabelHistory(), [], 0
    for tokens, step in parts:
        version += step
        labels.add(labels.next(Policy(0, version), keeps_kv=bool(step % 2)))
        newest = labels.newest
        assert newest is not None
        found.append(LabelSpan(label=newest.text, num_tokens=tokens))
    runs = labels.runs([found])
    assert sum(run.num_tokens for run in runs) == sum(tokens for tokens, _ in parts)
    assert all(one.policy < other.policy for one, other in pairwise(runs))
    assert not runs[0].kept_kv


def open_request() -> OpenRequest:
    request = SampleRequest(
        request_id="a",
        prompt_ids=(1,),
        seed=0,
        group=0,
        sample=0,
        temperature=1.0,
        max_new_tokens=9,
        greedy=False,
    )
    return OpenRequest(request)


def chunk(*token_ids: int) -> TokenChunk:
    return TokenChunk(token_ids=token_ids, logprobs=tuple(-1.0 for _ in token_ids), end=None, spans=None)


def test_a_completion_has_the_tokens_of_all_its_legs_and_its_longest_gap() -> None:
    labels, state = history((0, False), (1, False)), open_request()
    assert state.begin_leg() == "a~0"
    state.take(chunk(4, 5), 10.0)
    state.take(chunk(6), 10.5)
    state.end_leg(spans((0, 0, 3)))
    assert state.begin_leg() == "a~1"
    assert state.num_tokens_left == 6
    state.take(chunk(), 11.0)
    state.take(chunk(7), 12.5)
    state.end_leg(spans((1, 1, 1)))
    found = state.completion(CompletionEnd.EOS, labels)
    assert (found.token_ids, found.longest_gap_s) == ((4, 5, 6, 7), 2.0)
    assert found.runs == (PolicyRun(Policy(0, 0), 3), PolicyRun(Policy(0, 1), 1))


def test_labels_that_do_not_cover_the_tokens_are_refused() -> None:
    state = open_request()
    state.begin_leg()
    state.take(chunk(4, 5), 10.0)
    state.end_leg(spans((0, 0, 1)))
    with pytest.raises(ValueError, match="of 1 tokens"):
        state.completion(CompletionEnd.EOS, history((0, False)))


def test_a_leg_without_tokens_has_no_span() -> None:
    newest = history((0, False)).newest
    assert newest is not None
    assert only_label(newest, 0) == ()
    assert only_label(newest, 2) == spans((0, 0, 2))


class Digits:
    """Decodes tokens to their digits."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens  # end tokens and padding are left out before
        return "".join(map(str, ids))


def test_what_vllm_samples_after_a_stop_string_is_dropped_with_its_labels() -> None:
    labels = history((0, False), (1, True), (2, True))
    state = OpenRequest(
        replace(open_request().request, stop=StopStrings(CompletionDecoder(tokenizer=Digits()), ["67"]))
    )
    state.begin_leg()
    state.take(chunk(4, 5), 10.0)
    state.end_leg(spans((0, 0, 2)))
    state.begin_leg()
    state.take(chunk(6), 10.5)
    assert not state.is_stopped
    state.take(chunk(7, 8, 9), 11.0)
    assert state.is_stopped
    state.take(chunk(3), 99.0)
    state.end_leg(spans((1, 1, 1), (2, 2, 4)))
    found = state.completion(CompletionEnd.STOP, labels)
    assert (found.token_ids, len(found.logprobs), found.longest_gap_s) == ((4, 5, 6, 7), 4, 0.5)
    assert [each.num_tokens for each in found.runs] == [2, 1, 1]
