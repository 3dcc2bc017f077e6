"""Which part of a completion is its final answer."""

import pytest

from periplus.environment.final_answer import final_answer, is_answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so it is 12", "so it is 12"),
        ("<think>15</think><answer>12</answer>", "12"),
        ("<think>15</think> <answer>\n12\n</answer> I hope this helps.", "\n12\n"),
        ("15?</think>12", "12"),
        ("<THINK>15</Think><Answer>12</ANSWER>", "12"),
        ("<answer>15</answer> No: <answer>12</answer>", "12"),
        ("<think>15</think><answer>12", "12"),
        ("<think><answer>15</answer></think><answer>12</answer>", "12"),
        ("<think><answer>15</answer></think>12", "12"),
        ("<think>15", None),
        ("<think>15<answer>12</answer>", "12"),
        ("<think>12</think>", ""),
    ],
)
def test_the_last_answer_after_the_thoughts_is_the_final_one(completion: str, answer: str | None) -> None:
    assert final_answer(completion) == answer


def test_a_completion_is_the_answer_if_all_of_it_or_its_final_answer_is() -> None:
    tagged = "<think>a</think><answer>b</answer>"
    assert is_answer(tagged, " b\n")
    assert is_answer(tagged + "\n", tagged)
    assert not is_answer(tagged, "a")
    assert not is_answer("<think>a", "")
