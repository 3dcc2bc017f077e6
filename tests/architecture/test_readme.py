"""The README shows what tests run."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 10


def test_the_script_of_the_readme_is_the_example_and_short() -> None:
    """`tests/integration/test_local_fleet.py` runs the example with a real fleet."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## From Python\n")[2]
    shown = section.partition("```python\n")[2].partition("```")[0]
    example = (ROOT / "examples" / "from_python.py").read_text(encoding="utf-8")
    docstring = ast.parse(example).body[0]
    code = "\n".join(example.splitlines()[docstring.end_lineno :])
    assert shown.strip() == code.strip()
    assert len([line for line in shown.splitlines() if line.strip()]) <= MAX_LINES
