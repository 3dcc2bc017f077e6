import json
from pathlib import Path

import pytest

from periplus.environment.environment import EXACT
from periplus.environment.jsonl import load
from periplus.errors import ConfigError


@pytest.mark.parametrize("column", ["prompt", "question", "problem"])
def test_each_usual_prompt_column_is_read(tmp_path: Path, column: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({column: f"q{n}", "answer": n, "more": 1}) for n in range(3)) + "\n\n")
    environment = load(path)
    assert len(environment) == 3
    assert environment.item(2).prompt == "q2"
    assert environment.item(2).answer == "2"


def test_only_the_exact_answer_scores_and_white_space_around_it_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "q", "answer": " a b "}')
    environment = load(path)
    assert environment.score(0, "a b\n") == EXACT
    assert environment.score(0, "a  b") == 0.0
    assert environment.score(0, "") == 0.0


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "no rows"),
        ('{"prompt": "q", "answer": "a"}\n{oops', ":2 is not JSON"),
        ("[1]", ":1 holds list"),
        ('{"prompt": "q"}', ":1 has the columns"),
        ('{"text": "q", "answer": "a"}', ":1 has the columns"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=where):
        load(path)


def test_bytes_that_are_not_utf_8_are_named_with_their_line_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [b'{"prompt": "Gr\xc3\xb6sse", "answer": "a"}'] * 9000
    rows[4000] = rows[8000] = b'{"prompt": "Gr\xf6sse", "answer": "a"}'
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).splitlines() == [
        f"{path}:{number} has the byte 0xf6, which is not UTF-8; save the file as UTF-8" for number in (4001, 8001)
    ]


def test_a_missing_file_is_the_operators_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "absent.jsonl")


def test_an_index_outside_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "q", "answer": "a"}')
    with pytest.raises(ValueError):
        load(path).item(-1)
