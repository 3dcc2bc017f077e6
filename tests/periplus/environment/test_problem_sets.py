"""Tests of the environment of a job with evaluation sets."""

import pytest

from periplus.environment.datasets.listed import ListedProblems
from periplus.environment.environment import Item
from periplus.environment.problem_sets import ProblemSets, excluded_texts, item_of, set_and_index


def listed(*prompts: str) -> ListedProblems:
    return ListedProblems(
        items=tuple(Item(index=i, prompt=prompt, answer=prompt[::-1]) for i, prompt in enumerate(prompts))
    )


def test_the_number_of_an_item_leads_to_its_set_for_prompts_and_scores() -> None:
    main, other = listed("ab", "cd"), listed("ef")
    sets = ProblemSets(main=main, sets=(main, other))
    assert len(sets) == 2
    number = item_of(2, 0)
    assert set_and_index(number) == (2, 0)
    assert (sets.item(number).prompt, sets.item(number).index) == ("ef", number)
    assert sets.item(item_of(1, 1)).prompt == sets.item(1).prompt == "cd"
    assert (sets.score(number, "fe"), sets.score(number, "ba")) == (1.0, 0.0)


def test_a_number_of_a_set_that_the_job_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="evaluation set 3"):
        ProblemSets(main=listed("a"), sets=()).item(item_of(3, 0))


def test_prompts_of_sets_are_excluded_but_not_those_of_the_job_itself() -> None:
    main = listed("a")
    assert excluded_texts((main, listed("Ef")), main) == {"ef"}
