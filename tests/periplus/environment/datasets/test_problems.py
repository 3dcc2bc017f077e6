"""Problems from rows: columns, answers, messages, filters, order, and what wrong rows are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from periplus.environment.datasets.problems import read_problems
from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError
from periplus.job.data_section import DataSection


def items(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> tuple[Item, ...]:
    path = folder / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    (read,) = read_problems(DataSection.model_validate_json(json.dumps({"path": str(path), **keys})))
    return read.items


@pytest.mark.parametrize("column", ["prompt", "question", "problem"])
def test_each_usual_prompt_column_is_read_and_other_columns_are_kept(tmp_path: Path, column: str) -> None:
    found = items(tmp_path, [{column: f"q{n}", "answer": n, "more": {"level": n}} for n in range(3)])
    assert [(item.index, item.prompt, item.answer) for item in found] == [
        (0, "q0", "0"),
        (1, "q1", "1"),
        (2, "q2", "2"),
    ]
    assert found[2].columns == {"more": {"level": 2}}
    assert found[2].messages == ()


def test_columns_are_named_and_a_pattern_finds_the_answer(tmp_path: Path) -> None:
    rows = [{"text": "2+3?", "full": "2 and 3 are 5.\n#### 5", "answer": "no"}]
    keys = {"prompt_column": "text", "answer_column": "full", "solution_column": "full", "answer_pattern": "#### (.+)"}
    (item,) = items(tmp_path, rows, **keys)
    assert (item.prompt, item.answer, item.solution) == ("2+3?", "5", "2 and 3 are 5.\n#### 5")
    assert item.columns == {"answer": "no"}
    assert items(tmp_path, rows, prompt_column="text", answer_column="full", answer_pattern="[0-9]+")[0].answer == "2"


def test_a_prompt_of_messages_keeps_them_and_a_system_prompt_is_added_where_there_is_none(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "d"}]
    rows: list[dict[str, Any]] = [
        {"prompt": chat, "answer": "x"},
        {"prompt": own, "answer": "x"},
        {"prompt": "e", "answer": "x"},
    ]
    first, second, third = items(tmp_path, rows, system_prompt="be brief")
    assert first.messages[0] == Message(role="system", content="be brief")
    assert [message.content for message in first.messages[1:]] == ["a", "b", "c"]
    assert [message.content for message in second.messages] == ["mine", "d"]
    assert third.prompt == "be brief\n\ne"
    assert [message.role for message in third.messages] == ["system", "user"]


def test_only_rows_that_meet_all_filters_count_up_to_the_limit(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": f"q{n}", "answer": "x", "level": n, "kind": "ab"[n % 2]} for n in range(20)
    ]
    rows += [
        {"prompt": "none", "answer": "x", "kind": "a"},
        {"prompt": "true", "answer": "x", "kind": "a", "level": True},
    ]
    filters = [{"column": "level", "at_least": 4, "at_most": 15}, {"column": "kind", "one_of": ["a"]}]
    assert [item.prompt for item in items(tmp_path, rows, filters=filters)] == ["q4", "q6", "q8", "q10", "q12", "q14"]
    assert [item.prompt for item in items(tmp_path, rows, filters=filters, limit=2)] == ["q4", "q6"]
    matched = items(tmp_path, rows, filters=[{"column": "prompt", "matches": "^q1.$"}])
    assert [item.prompt for item in matched] == [f"q1{n}" for n in range(10)]


def test_a_mixture_numbers_its_problems_through_and_tells_their_source(tmp_path: Path) -> None:
    for name, number in (("a", 3), ("b", 2)):
        lines = [json.dumps({"question": f"{name}{n}", "answer": n}) for n in range(number)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sources = [{"path": str(tmp_path / "a.jsonl"), "limit": 2}, {"path": str(tmp_path / "b.jsonl"), "weight": 3}]
    read = read_problems(DataSection.model_validate_json(json.dumps({"sources": sources})))
    found = [(item.index, item.source, item.prompt) for each in read for item in each.items]
    assert found == [(0, 0, "a0"), (1, 0, "a1"), (2, 1, "b0"), (3, 1, "b1")]
    assert "3 rows read" not in read[0].summary
    assert read[1].summary.endswith(
        "prompt from the first of prompt, question, problem, answer from answer, other columns none"
    )


@pytest.mark.parametrize(
    ("row", "keys", "why"),
    [
        ({"question": "q"}, {}, r":1 has the columns \['question'\]"),
        ({"text": "q", "answer": "a"}, {}, ":1 has the columns"),
        ({"prompt": " ", "answer": "a"}, {}, ":1 has an empty prompt"),
        ({"prompt": 5, "answer": "a"}, {}, ":1 has a prompt that is 5"),
        ({"prompt": "q", "answer": True}, {}, ":1 has an answer that is True"),
        ({"prompt": "q", "answer": None}, {}, ":1 has an answer that is None"),
        ({"prompt": "q", "answer": "5"}, {"answer_pattern": "#### (.*)"}, ":1 has an answer in which '#### "),
        ({"prompt": "q", "answer": "5"}, {"solution_column": "steps"}, ":1 has the columns"),
        ({"prompt": [{"role": "robot", "content": "q"}], "answer": "5"}, {}, ":1 has a message in prompt that is"),
        ({"prompt": [{"role": "user", "content": ["q"]}], "answer": "5"}, {}, ":1 has a message in prompt that is"),
        (
            {"prompt": [{"role": "assistant", "content": "q"}], "answer": "5"},
            {},
            "ends with an answer of the assistant",
        ),
        ({"prompt": [], "answer": "5"}, {}, "text or a list of messages"),
        (
            {"prompt": "q", "answer": "5"},
            {"filters": [{"column": "prompt", "one_of": ["x"]}]},
            "none of its 1 rows meets",
        ),
    ],
)
def test_a_row_that_is_no_problem_is_named_with_its_place(
    tmp_path: Path, row: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        items(tmp_path, [row], **keys)


def test_five_wrong_rows_are_named_and_the_others_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        items(tmp_path, [{"prompt": "q", "answer": "a"}, *[{"prompt": "q"}] * 8])
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1].split()[0] for line in lines[:5]] == ["2", "3", "4", "5", "6"]
    assert lines[5] == "and 3 rows more"
