"""Problems from rows: columns, answers, messages, filters, order, and what wrong rows are told."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from periplus.environment.datasets.listed import problem_file, read_problem_file
from periplus.environment.datasets.problems import read_problems
from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError
from periplus.job.data_section import DataSection, MixtureSource


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
    assert "2 rows read, and no more because of limit=2" in read[0].summary
    assert read[1].summary.endswith(
        "prompt from the first of prompt, question, problem, messages, answer from answer, other columns none"
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
        ({"prompt": "q", "answer": " "}, {}, r":1 has an answer that is ' '.* data.filters=.*matches: '\\S'"),
        ({"prompt": "q", "answer": float("nan")}, {}, ":1 has an answer that is None"),
        ({"prompt": "q", "answer": "#### "}, {"answer_pattern": "#### (.*)"}, "finds only ''"),
        ({"prompt": "q", "answer": "5"}, {"answer_pattern": "#### (.*)"}, ":1 has an answer in which '#### "),
        ({"prompt": "q", "answer": "5"}, {"solution_column": "steps"}, ":1 has the columns"),
        ({"prompt": [{"role": "robot", "content": "q"}], "answer": "5"}, {}, ":1 has a message in prompt that is"),
        ({"prompt": [{"role": "user", "content": ["q"]}], "answer": "5"}, {}, ":1 has a message in prompt whose"),
        (
            {"prompt": [{"role": "assistant", "content": "q"}], "answer": "5"},
            {},
            "ends with a message of the assistant.* leave it out of prompt",
        ),
        ({"prompt": [], "answer": "5"}, {}, "text or a list of messages"),
        ({"prompt": '[{"role": "user", "content": "q"}]', "answer": "5"}, {}, "a list of messages written as text"),
        ({"prompt": "[{'content': 'q', 'role': 'user'}]", "answer": "5"}, {}, "a list of messages written as text"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "answer": "5"},
            {},
            "a part of the type 'image_url', but only text",
        ),
        (
            {"prompt": "q", "reward_model": {"ground_truth": "5"}},
            {},
            "is data.answer_column=reward_model.ground_truth meant",
        ),
        ({"prompt": "q", "ground_truth": "5"}, {"answer_column": "a.b"}, "is data.answer_column=ground_truth meant"),
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


def test_whole_numbers_that_pandas_has_made_floats_are_answers_without_a_point(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate([2.0, 2.5, 1e20, None, float("nan"), 3])]
    chosen = {"filters": [{"column": "answer", "one_of": [2, 3.0]}]}
    assert [item.answer for item in items(tmp_path, [*rows, {"prompt": "t", "answer": True}], **chosen)] == ["2", "3"]
    keep = {"filters": [{"column": "answer", "matches": r"\S"}]}
    assert [item.answer for item in items(tmp_path, rows, **keep)] == ["2", "2.5", "100000000000000000000", "3"]
    with pytest.raises(ConfigError, match=r"(?s):4 has an answer that is None.*:5 has an answer that is None"):
        items(tmp_path, rows)


@pytest.mark.parametrize("column", ["prompt", "answer", "steps"])
def test_bytes_that_are_no_text_are_refused_where_text_is_wanted_and_allowed_elsewhere(
    tmp_path: Path, column: str
) -> None:
    path = tmp_path / "data.parquet"

    def read(**values: bytes) -> tuple[Item, ...]:
        row = {"prompt": b"q", "answer": b"4", "steps": b"2+2", "image": b"\xff\xd8", **values}
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)
        (found,) = read_problems(DataSection(sources=(MixtureSource(path=str(path), solution_column="steps"),)))
        return found.items

    (item,) = read()
    assert (item.prompt, item.answer, item.solution) == ("q", "4", "2+2")
    assert item.columns == {"image": "2 bytes that are not UTF-8 text"}
    with pytest.raises(ConfigError, match=f"row 0 has an? {column} that is 1 bytes that are not UTF-8 text, but must"):
        read(**{column: b"\x89"})


def test_messages_keep_calls_of_tools_and_parts_of_text_are_joined(tmp_path: Path) -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]},
                {"role": "assistant", "content": None, "tool_calls": calls, "name": None},
                {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"},
            ],
            "answer": "2",
        }
    ]
    (item,) = items(tmp_path, rows)
    assert item.messages == (
        Message(role="user", content="1+1?"),
        Message(role="assistant", content="", extra={"tool_calls": calls}),
        Message(role="tool", content="2", extra={"tool_call_id": "c1", "name": "add"}),
    )
    assert json.dumps(calls) in item.prompt
    (tmp_path / "problems.jsonl").write_bytes(problem_file([item]))
    assert read_problem_file(tmp_path / "problems.jsonl").items == (item,)


VERL_ROW = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0, "solution": "1+1=2", "level": 3},
}


def test_dotted_paths_name_values_inside_columns_as_verl_has_them(tmp_path: Path) -> None:
    keys = {"answer_column": "reward_model.ground_truth", "solution_column": "extra_info.solution"}
    (item,) = items(tmp_path, [VERL_ROW], **keys, filters=[{"column": "extra_info.level", "at_most": 3}])
    assert (item.prompt, item.answer, item.solution) == ("1+1?", "2", "1+1=2")
    assert set(item.columns) == {"data_source", "ability", "reward_model", "extra_info"}
    (whole,) = items(tmp_path, [{**VERL_ROW, "reward_model.ground_truth": "3"}], **keys)
    assert whole.answer == "3"


def test_rows_may_lack_the_usual_answer_column_where_nothing_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "answer": null}\n{"prompt": "c", "answer": 5}\n')
    (read,) = read_problems(DataSection(path=str(path)), needs_answers=False)
    assert [item.answer for item in read.items] == ["", "", "5"]
    with pytest.raises(ConfigError, match="needed: prompt, and gold"):
        read_problems(DataSection(path=str(path), answer_column="gold"), needs_answers=False)


def test_bounds_hold_numbers_that_are_written_as_text(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("prompt,answer,level\na,1,3\nb,1,12\nc,1,\nd,1,hard\n")
    filters = [{"column": "level", "at_least": 4}]
    section = {"path": str(tmp_path / "data.csv"), "filters": filters}
    (read,) = read_problems(DataSection.model_validate_json(json.dumps(section)))
    assert [item.prompt for item in read.items] == ["b"]
    assert read.num_filtered == 3
    assert "4 rows read, 3 left out by filters" in read.summary
