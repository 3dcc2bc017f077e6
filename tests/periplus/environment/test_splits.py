import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.environment.splits import split
from periplus.errors import ConfigError

PROMPTS = [f"p{number % 20}" for number in range(50)]


@given(st.lists(st.text(max_size=2), max_size=60), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**32))
def test_sets_are_disjoint_by_text_and_use_each_text_once_or_are_refused(
    prompts: list[str], num_warmup: int, num_held_out: int, seed: int
) -> None:
    distinct = {prompt.casefold() for prompt in prompts}
    if len(distinct) <= num_warmup + num_held_out:
        with pytest.raises(ConfigError):
            split(prompts, num_warmup, num_held_out, seed)
        return
    splits = split(prompts, num_warmup, num_held_out, seed)
    assigned = [prompts[index].casefold() for index in (*splits.warmup, *splits.train, *splits.held_out)]
    assert sorted(assigned) == sorted(distinct)
    assert (len(splits.warmup), len(splits.held_out)) == (num_warmup, num_held_out)


def test_the_same_seed_deals_the_same_and_another_seed_otherwise() -> None:
    assert split(PROMPTS, 4, 4, 1) == split(PROMPTS, 4, 4, 1)
    assert split(PROMPTS, 4, 4, 1) != split(PROMPTS, 4, 4, 2)


def test_the_held_out_set_does_not_depend_on_the_size_of_the_warm_up() -> None:
    assert split(PROMPTS, 2, 4, 1).held_out == split(PROMPTS, 9, 4, 1).held_out


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        split(PROMPTS, -1, 4, 0)


def test_two_spellings_that_differ_in_case_are_one_prompt() -> None:
    splits = split(["Sun", "sun", "SUN", "moon"], 0, 1, 0)
    assert len(splits.train) == len(splits.held_out) == 1
