"""The calculator's tool, its judge, and the bounds of its expressions."""

import asyncio

import pytest

from periplus.environment.environment import Message
from periplus.environment.turns.calculator import compute, load
from periplus.environment.turns.protocol import TurnOutcome
from periplus.errors import ConfigError


@pytest.mark.parametrize(("expression", "value"), [("2+3*4", 14), ("(2+3)*-4", -20), (" 7 ", 7), ("0-0", 0)])
def test_an_expression_has_its_value(expression: str, value: int) -> None:
    assert compute(expression) == value


@pytest.mark.parametrize(
    "expression", ["", "2/3", "2**9", "__import__('os')", "a", "1.5", "True", "9" * 40, "9" * 300, "(" * 150, "\0"]
)
def test_what_is_no_bounded_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError):  # the message differs
        compute(expression)


def test_a_call_gets_its_result_and_an_answer_ends_the_episode() -> None:
    tasks = load({"largest": 9}, seed=3, size=50)
    item = tasks.item(7)
    assert tasks.item(7) == item
    assert compute(item.prompt.removesuffix("=")) == int(item.answer)

    async def scene() -> None:
        episode = tasks.episode()
        assert await episode.reset(item) == ()
        called = await episode.step("let me see: calc(6*7)")
        assert called == TurnOutcome(reward=0.0, messages=(Message(role="tool", content="42"),))
        wrong = await episode.step("calc(6/7)")
        assert wrong.messages == (Message(role="tool", content="error"),)
        assert await episode.step(f"so it is {item.answer}") == TurnOutcome(reward=1.0, is_done=True)
        assert await episode.step(f"{int(item.answer) + 1}") == TurnOutcome(reward=0.0, is_done=True)
        assert await episode.step("no number") == TurnOutcome(reward=0.0, is_done=True)

    asyncio.run(scene())


@pytest.mark.parametrize("config", [{"largets": 3}, {"largest": 0}, {"operands": True}, {"operands": "2"}])
def test_settings_that_do_not_exist_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"environment\.config\."):
        load(config, seed=0, size=1)
