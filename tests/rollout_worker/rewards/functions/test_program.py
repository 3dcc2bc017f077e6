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
    ],
)
def test_the_program_is_the_last_block_of_python_of_the_answer(completion: str, program: str) -> None:
    assert program_of(completion) == program
