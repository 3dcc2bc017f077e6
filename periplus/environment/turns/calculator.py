"""The environment `calculator`: arithmetic problems, and a tool that the model may call before it answers.

The model calls the tool by a turn that holds `calc(EXPRESSION)`, and reads the result, or `error`, in a message of the
role `tool`. Any other turn is its answer: the last whole number in it is compared with the right one. The answer's turn
has reward 1 if it is right, and every other turn has reward 0.

Expressions have whole numbers, `+`, `-`, `*` and parentheses. Their length and the size of their values are bounded, so
that no expression takes long.
"""

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from periplus.environment.environment import EXACT, Item, Message
from periplus.environment.turns.protocol import TurnOutcome
from periplus.environment.turns.settings import read_settings

CALL = re.compile(r"calc\(([^\n]*)\)")
"""A call of the tool; the group is the expression."""

MAX_EXPRESSION_CHARACTERS = 200
"""Longest expression that is computed, so that its syntax tree is small. Chosen by hand."""

MAX_MAGNITUDE = 10**30
"""Largest magnitude of a value within an expression. Chosen by hand: far above what a problem needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculatorTasks:
    """`size` problems of arithmetic, each made from `seed` and its index: `operands` numbers of 0 to `largest`."""

    size: int
    seed: int
    operands: int
    largest: int

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> Item:
        """Return the problem at `index`."""
        if not 0 <= index < self.size:
            raise ValueError(f"item {index} of an environment with {self.size} items")
        drawn = random.Random(f"calculator {self.seed} {index}")
        expression = str(drawn.randint(0, self.largest))
        for _ in range(self.operands - 1):
            expression += f"{drawn.choice('+-*')}{drawn.randint(0, self.largest)}"
        # A supervised warm-up imitates the first turn alone.
        return Item(
            index=index, prompt=f"{expression}=", answer=str(compute(expression)), solution=f"calc({expression})"
        )

    def score(self, index: int, completion: str) -> float:
        """Return EXACT if a text's last whole number is the answer, else 0."""
        return EXACT if _last_number(completion) == int(self.item(index).answer) else 0.0

    def episode(self) -> "CalculatorEpisode":
        """Return the tool and the judge of one episode."""
        return CalculatorEpisode()


class CalculatorEpisode:
    """One episode with the tool."""

    def __init__(self) -> None:
        self._answer = 0

    async def reset(self, item: Item) -> Sequence[Message]:
        """Begin with the problem's own prompt."""
        self._answer = int(item.answer)
        return ()

    async def step(self, completion: str) -> TurnOutcome:
        """Return the tool's result for a call, and the end for an answer."""
        if called := CALL.search(completion):
            try:
                result = str(compute(called.group(1)))
            except ValueError:
                result = "error"
            return TurnOutcome(reward=0.0, messages=(Message(role="tool", content=result),))
        return TurnOutcome(reward=EXACT if _last_number(completion) == self._answer else 0.0, is_done=True)


def compute(expression: str) -> int:
    """Return the value of an expression. Raises: ValueError for one that is no arithmetic, or is too large."""
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise ValueError(f"an expression of {len(expression)} characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is no arithmetic") from error


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            result = value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            result = _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            result = _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            result = _value(left) * _value(right)
        case _:
            raise ValueError(f"{type(node).__name__} is no arithmetic")
    if abs(result) > MAX_MAGNITUDE:
        raise ValueError("the value is too large")
    return result


def _last_number(text: str) -> int | None:
    found = re.findall(r"-?[0-9]{1,40}", text)
    return int(found[-1]) if found else None


def load(config: Mapping[str, Any], *, seed: int, size: int) -> CalculatorTasks:
    """Return the problems for the settings of a job. Raises: ConfigError for a setting that does not exist."""
    read = read_settings("calculator", config, {"operands": (2, range(2, 9)), "largest": (99, range(1, 1_000_001))})
    return CalculatorTasks(size=size, seed=seed, operands=int(read["operands"]), largest=int(read["largest"]))
