from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from periplus.values.keyed_draws import row_keys, uniforms
from rollout_worker.engines.sampling import Nucleus, choose, drawable

# Computed with Python integers, by the published finaliser of SplitMix64.
GOLDEN = ["0x1.57e3a0bf64000p-1", "0x1.53a513f784000p-2", "0x1.1d224a54d0000p-3"]

WORDS = st.integers(0, 2**63 - 1)


def test_the_stream_of_a_key_never_changes() -> None:
    """Golden values: a change here makes every recorded run unrepeatable."""
    numbers = uniforms(row_keys(7, 3, [0, 0, 5], [0, 1, 2]), 4)
    assert [float(x).hex() for x in numbers] == GOLDEN


@given(WORDS, WORDS, st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=9), st.integers(0, 4096), st.randoms())
def test_a_number_depends_on_its_key_alone_and_not_on_the_row(
    seed: int, version: int, rows: list[tuple[int, int]], position: int, random: Random
) -> None:
    groups, samples = zip(*rows, strict=True)
    together = uniforms(row_keys(seed, version, groups, samples), position)
    for row in random.sample(range(len(rows)), min(3, len(rows))):
        alone = uniforms(row_keys(seed, version, [groups[row]], [samples[row]]), position)
        assert alone[0] == together[row]
    assert (together >= 0).all()
    assert (together < 1).all()


def test_each_word_of_the_key_changes_the_number() -> None:
    base = uniforms(row_keys(1, 2, [3], [4]), 5)[0]
    others = [
        uniforms(row_keys(9, 2, [3], [4]), 5)[0],
        uniforms(row_keys(1, 9, [3], [4]), 5)[0],
        uniforms(row_keys(1, 2, [9], [4]), 5)[0],
        uniforms(row_keys(1, 2, [3], [9]), 5)[0],
        uniforms(row_keys(1, 2, [4], [3]), 5)[0],
        uniforms(row_keys(1, 2, [3], [4]), 9)[0],
    ]
    assert len({base, *others}) == 7


def test_numbers_are_uniform_and_uncorrelated_between_neighbours() -> None:
    groups, samples = np.repeat(np.arange(100), 100), np.tile(np.arange(100), 100)
    numbers = uniforms(row_keys(0, 0, groups, samples), 0)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert abs(numbers.mean() - 0.5) < 0.01
    assert counts.min() > 400
    assert counts.max() < 600
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_tokens_follow_the_tempered_distribution_and_report_its_logprobs() -> None:
    logits_V, num_rows = torch.tensor([1.0, 0.0, -1.0, 0.5]), 40_000
    uniform_R = torch.from_numpy(uniforms(row_keys(0, 0, range(num_rows), [0] * num_rows), 0))
    tokens_R, logprobs_R = choose(
        logits_V.expand(num_rows, 4), torch.full((num_rows,), 0.5), torch.zeros(num_rows, dtype=torch.bool), uniform_R
    )
    expected_V = torch.softmax(logits_V / 0.5, 0)
    torch.testing.assert_close(torch.bincount(tokens_R) / num_rows, expected_V, atol=0.01, rtol=0)
    torch.testing.assert_close(logprobs_R, expected_V.log()[tokens_R])


def test_greedy_takes_the_largest_logit_with_its_logprob_at_temperature_one() -> None:
    logits_RV = torch.tensor([[0.0, 2.0, 1.0]])
    token_R, logprob_R = choose(
        logits_RV, torch.tensor([0.1]), torch.tensor([True]), torch.tensor([0.999], dtype=torch.float64)
    )
    assert token_R.tolist() == [1]
    torch.testing.assert_close(logprob_R, torch.log_softmax(logits_RV, -1)[:, 1])


def test_a_token_of_probability_zero_is_never_drawn_at_either_end_of_the_range() -> None:
    logits_RV = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).repeat(2, 1)
    uniform_R = torch.tensor([0.0, 1 - 2.0**-40], dtype=torch.float64)
    tokens_R, logprobs_R = choose(logits_RV, torch.ones(2), torch.zeros(2, dtype=torch.bool), uniform_R)
    assert tokens_R.tolist() == [1, 1]
    assert logprobs_R.tolist() == [0.0, 0.0]


def nucleus(top_k: int, top_p: float, num_rows: int = 1) -> Nucleus:
    return Nucleus(top_k_R=torch.full((num_rows,), top_k), top_p_R=torch.full((num_rows,), top_p, dtype=torch.float64))


def by_hand(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """The tokens that may be drawn, from the definition, one token after the other."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        ranked = [token for token in ranked if logits[token] >= logits[ranked[min(top_k, len(ranked)) - 1]]]
    weights = {token: np.exp(np.float64(logits[token]) - max(logits)) for token in ranked}
    kept: set[int] = set()
    mass = 0.0
    for token in ranked:
        if kept and top_p < 1 and mass >= top_p * sum(weights.values()):
            break
        kept.add(token)
        mass += weights[token]
    return kept


# Multiples of 1/4, so that equal logits are common, as they are in bfloat16.
LOGITS = st.lists(st.integers(-12, 12).map(lambda quarters: quarters / 4), min_size=1, max_size=20)


@given(LOGITS, st.integers(0, 22), st.one_of(st.just(1.0), st.floats(0.01, 0.99)))
def test_top_k_and_top_p_keep_the_tokens_of_their_definition(logits: list[float], top_k: int, top_p: float) -> None:
    found = drawable(torch.tensor([logits]), nucleus(top_k, top_p))
    assert set(found[0].nonzero()[:, 0].tolist()) == by_hand(logits, top_k, top_p)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.9), (0, 0.3), (7, 0.6), (1, 1.0), (0, 0.001), (500, 0.7)])
def test_top_k_and_top_p_keep_what_those_of_transformers_keep(top_k: int, top_p: float) -> None:
    logits_RV = torch.randn(64, 300, generator=torch.Generator().manual_seed(top_k)) * 3
    expected_RV = logits_RV
    if top_k:
        expected_RV = TopKLogitsWarper(top_k)(None, expected_RV)
    if top_p < 1:
        expected_RV = TopPLogitsWarper(top_p)(None, expected_RV)
    assert torch.equal(drawable(logits_RV, nucleus(top_k, top_p, 64)), expected_RV > -torch.inf)


def test_samples_of_a_nucleus_follow_its_own_distribution_and_rows_beside_them_are_unchanged() -> None:
    logits_V, num_rows = torch.tensor([1.0, 0.0, -1.0, 0.5]), 40_000
    uniform_R = torch.from_numpy(uniforms(row_keys(0, 0, range(num_rows), [0] * num_rows), 0))
    greedy_R, temperature_R = torch.zeros(num_rows, dtype=torch.bool), torch.full((num_rows,), 0.5)
    logits_RV, half = logits_V.expand(num_rows, 4), num_rows // 2
    mixed = nucleus(2, 1.0, num_rows)
    mixed.top_k_R[half:] = 0
    tokens_R, logprobs_R = choose(logits_RV, temperature_R, greedy_R, uniform_R, mixed)
    expected_V = torch.softmax(torch.tensor([1.0, -torch.inf, -torch.inf, 0.5]) / 0.5, 0)
    torch.testing.assert_close(torch.bincount(tokens_R[:half], minlength=4) / half, expected_V, atol=0.01, rtol=0)
    torch.testing.assert_close(logprobs_R[:half], expected_V.log()[tokens_R[:half]])
    plain_tokens_R, plain_logprobs_R = choose(logits_RV, temperature_R, greedy_R, uniform_R)
    assert torch.equal(tokens_R[half:], plain_tokens_R[half:])
    assert torch.equal(logprobs_R[half:], plain_logprobs_R[half:])
