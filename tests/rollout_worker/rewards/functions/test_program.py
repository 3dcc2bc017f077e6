"""Which part of a completion is its program."""

import pytest

from rollout_worker.rewards.functions.program import program_of

DOUBLE = "def double(x):\n    return 2 * x\n"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("First:\n```python\nx = 1\n```\nBetter:\n```py\nx = 2\n```\nDone.", "x = 2\n"),
        ("```\nx = 3\n```", "x = 3\n"),
        (f"```python\n{DOUBLE}", DOUBLE),
        (f"```python\n{DOUBLE}```\n\nOutput:\n```\n4\n```", DOUBLE),
        (f"```\n{DOUBLE}```\n\nOutput:\n```\n4\n```", DOUBLE),
        (f"```\n{DOUBLE}```\n```\n>>> double(2)\n4\n```", DOUBLE),
        (f"```python\n{DOUBLE}```\nRun it:\n```bash\npython a.py\n```", DOUBLE),
        (f"```Python3 title=a.py\n{DOUBLE}```\n```pycon\n>>> double(2)\n```", DOUBLE),
        (f"```{{.python}}\n{DOUBLE}```\n```python\n\n```", DOUBLE),
        ("1. So:\n\n   ```python\n   def double(x):\n       return 2 * x\n   ```\n", DOUBLE),
        ("> ```python\n> def double(x):\n>     return 2 * x\n> ```\n", DOUBLE),
        (f"~~~~python\n{DOUBLE}~~~\n~~~~", f"{DOUBLE}~~~\n"),
        (f"````python\n{DOUBLE}```\n````\n", f"{DOUBLE}```\n"),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("<think>\n```python\nx = 1\n```\n</think>\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\n</think>x = 2", "x = 2"),
        ("<think>```python\nx = 1\n```\n</think>Done.", "x = 1\n"),
        (f"<think>x</think><answer>```python\n{DOUBLE}```</answer>", DOUBLE),
        (f"<answer>\n```python\n{DOUBLE}```\n</answer>", DOUBLE),
        (f"```python\n{DOUBLE.rstrip()}```", DOUBLE.rstrip()),
        (f"The program: ```python\n{DOUBLE}```", DOUBLE),
    ],
)
def test_the_program_is_the_last_block_of_python_of_the_answer(completion: str, program: str) -> None:
    assert program_of(completion) == program


@pytest.mark.parametrize(
    ("blocks", "program"),
    [
        ((DOUBLE, "print(double(2))\n"), (0,)),
        ((DOUBLE, "r = double(2)\nassert r == 5\n", "print(r)\nprint(double(3))\n"), (0,)),
        ((DOUBLE, "print(double(int(input())))\n"), (0, 1)),
        ((DOUBLE, "def four(x):\n    return double(double(x))\n"), (0, 1)),
        (("import math\n", "print(math.pi)\n"), (0, 1)),
        (("x = 1\nprint(x)\n", "x = 2\nprint(x)\n"), (1,)),
        (("def double(x):\n    return x\n", DOUBLE), (1,)),
        ((DOUBLE, "print(unknown)\n"), (1,)),
    ],
)
def test_blocks_that_need_each_other_are_one_program_without_examples_of_use(
    blocks: tuple[str, ...], program: tuple[int, ...]
) -> None:
    completion = "".join(f"So:\n```python\n{block}```\n" for block in blocks)
    assert program_of(completion) == "\n".join(blocks[at] for at in program)
