"""What each named function says of completions, called as a reward process calls it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from periplus.environment.rewards.completions import BatchFunction, ScoredText
from periplus.job.reward_functions import kind_of
from periplus.job.reward_section import RewardSection
from rollout_worker.rewards.functions.registry import MODULES, build_function
from tests.support.processes.rewards import reward, text


def function(columns: Sequence[str] | None = None, timeout_s: float = 30.0, /, **entry: Any) -> Any:
    """Build a function with the defaults of the job file, for a data set with these columns."""
    (found,) = reward(entry).entries
    kind = kind_of(found)
    assert kind is not None
    return build_function(kind, {**found.model_dump(mode="json"), "timeout_s": timeout_s, "columns": columns})


def values(built: Any, *completions: str, answer: str = "") -> list[float]:
    return [built(text(each, answer)) for each in completions]


def test_every_kind_of_the_job_file_but_the_verifier_has_a_module() -> None:
    schema = RewardSection.model_json_schema()["$defs"]
    names = {entry["properties"]["name"]["const"] for entry in schema.values() if "name" in entry["properties"]}
    assert names | {"path"} == {*MODULES, "verifier"}


def test_exact_ignores_white_space_around_and_case_only_if_told() -> None:
    assert values(function(name="exact"), " Paris\n", "paris", "Paris!", answer="Paris") == [1, 0, 0]
    assert values(function(name="exact", ignore_case=True), "PARIS", "Paris.", answer="paris ") == [1, 0]
    tagged = "<think>London?</think><answer> Paris</answer>"
    assert values(function(name="exact"), tagged, tagged, answer="Paris") == [1, 1]
    assert values(function(name="exact"), tagged, answer="London") == [0]


@pytest.mark.parametrize(
    ("entry", "completions", "expected"),
    [
        ({"pattern": "yes"}, ["oh yes", "no"], [1, 0]),
        ({"pattern": "yes", "where": "whole"}, ["oh yes", "yes"], [0, 1]),
        ({"pattern": "a.b"}, ["a\nb"], [1]),
        ({"pattern": r"#### (\d+)", "group": 1}, ["#### 42", "#### 41", "42"], [1, 0, 0]),
        ({"pattern": r"\d+", "group": 0, "where": "last"}, ["7 then 42", "42 then 7"], [1, 0]),
        ({"pattern": r"\d+", "group": 0}, ["7 then 42", "42 then 7"], [0, 1]),
        ({"pattern": r"x|(42)", "group": 1}, ["x", "42"], [0, 1]),
    ],
)
def test_regex_matches_or_captures_the_answer(
    entry: dict[str, Any], completions: Sequence[str], expected: list[float]
) -> None:
    assert values(function(name="regex", **entry), *completions, answer="42") == expected


def test_regex_refuses_a_group_that_its_pattern_does_not_capture() -> None:
    with pytest.raises(ValueError, match="group is 2"):
        function(name="regex", pattern="(a)", group=2)


def test_format_demands_each_tag_once_and_in_order() -> None:
    right = "<think>2 + 2</think>\n <answer>4</answer>\n"
    wrong = [
        "4",
        "<answer>4</answer><think>2</think>",
        right + "more",
        "well, " + right,
        right.replace("</think>", ""),
        right + right,
        "<think><answer></think>4</answer>",
        "<think>a</think> and <answer>4</answer>",
    ]
    assert values(function(name="format"), right, "<think></think><answer></answer>") == [1, 1]
    assert values(function(name="format"), *wrong) == [0] * len(wrong)
    assert values(function(name="format", tags=["a"]), "<a>x</a>", right) == [1, 0]
    assert values(function(name="format", pattern="a.*b"), "a\nb", "a b c") == [1, 0]


def test_length_falls_along_a_line_from_target_to_maximum() -> None:
    in_tokens = function(name="length", target=2, max=6)
    assert values(in_tokens, "a", "a b", "a b c", "a b c d e", "a b c d e f", "a " * 99) == [0, 0, -0.25, -0.75, -1, -1]
    assert values(function(name="length", target=2, max=6, unit="characters"), "ab", "abcd") == [0, -0.5]


@pytest.mark.parametrize(
    ("answer", "completion", "expected"),
    [
        ("18", "so she makes $18$ dollars", 1),
        ("She sells 9 * 2 = 18\n#### 18", "The answer is 18.", 1),
        ("\\frac{1}{2}", "\\boxed{0.5}", 1),
        ("1,234", "#### 1234", 1),
        ("x^2 - 1", "$(x-1)(x+1)$", 1),
        ("18", "19", 0),
        ("18", "", 0),
        ("18", "18 or 19", 0),
        ("12", "<think>5 plus 7, so I get 15.</think><answer>12</answer>", 1),
        ("15", "<think>5 plus 7, so I get 15.</think><answer>12</answer>", 0),
        ("8", "<think>Is it \\boxed{7}?</think><answer>\\boxed{8}</answer>", 1),
        ("7", "<think>Is it \\boxed{7}?</think><answer>\\boxed{8}</answer>", 0),
        ("-4", "<think>so 3 </think>\n<answer>\n-4\n</answer>", 1),
        ("x^2 - 1", "<answer>(x-1)(x+1)</answer>", 1),
        ("18", "<answer>18 or 19</answer>", 0),
        ("12", "It is 15.</think>It is 12.", 1),
        ("15", "<think>It is 15.", 0),
    ],
)
def test_math_compares_final_answers_by_their_value(answer: str, completion: str, expected: float) -> None:
    assert values(function(name="math"), completion, answer=answer) == [expected]


def test_math_judges_what_it_cannot_work_out_in_time_as_wrong() -> None:
    assert values(function(None, 5.0, name="math"), "$10^{10^{10^{10}}}!$", answer="5") == [0]


OWN = """
def named(prompts, completions, answer):
    return [f"{p}{c}{a}" == "pca" for p, c, a in zip(prompts, completions, answer)]
def everything(prompts, completions, **columns):
    lists = [columns[name] for name in sorted(columns) if name != "trainer_state"]
    return [each[0] for each in lists if isinstance(each[0], int)] * len(prompts)
def trl_style(prompts, completions, completion_ids, trainer_state, log_extra=None, **kwargs):
    return [10 * trainer_state.global_step + sum(ids) for ids in completion_ids]
def needs(completions, level):
    return [0.0 if each is None else each for each in level]
def logs(completions, log_metric):
    return [0.0] * len(completions)
def by_place(completions, /):
    return [0.0] * len(completions)
async def later(completions, **columns):
    return [None for _ in completions]
def last(completions, prompts):
    return [len(c[-1]["content"]) + len(p) for c, p in zip(completions, prompts)]
def short(completions):
    return []
NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    import sys

    (tmp_path / "own_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)

    def build(name: str, columns: Sequence[str] | None = None) -> BatchFunction:
        found = function(columns, path=f"own_rewards:{name}")
        assert isinstance(found, BatchFunction)
        return found

    return build


def test_a_function_of_ones_own_gets_lists_and_the_columns_that_it_names(own: Any) -> None:
    assert own("named").score([text("c", "a"), text("d", "a")]) == [True, False]
    assert own("everything").score([text("c", "a", columns={"level": 5, "id": "x"})]) == [5]
    assert own("later").score([text("c"), text("d")]) == [None, None]


def test_the_further_arguments_of_trl_come_by_name(own: Any) -> None:
    texts = [text("c", token_ids=(1, 2), version=3), text("d", token_ids=(4,), version=2)]
    assert own("trl_style", []).score(texts) == [33, 34]


def test_a_signature_that_can_never_work_is_refused_with_the_columns_that_there_are(own: Any) -> None:
    with pytest.raises(
        TypeError, match=r"needs the argument level, which is no column of the data set \(it has id, tests"
    ):
        own("needs", ["id", "tests"])
    with pytest.raises(TypeError, match="needs the argument log_metric, which Periplus does not have"):
        own("logs", [])
    with pytest.raises(TypeError, match="completions stands before a /"):
        own("by_place", [])
    assert own("needs", ["level"]).score([text("c")]) == [0.0], "a row may lack a column"


def test_a_conversation_comes_as_lists_of_messages(own: Any) -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert own("last").score([text("four", messages=messages)]) == [6]


def test_a_function_of_ones_own_must_exist_and_give_a_value_for_each_completion(own: Any) -> None:
    with pytest.raises(ValueError, match="0 values for 1 completions"):
        own("short").score([text("")])
    with pytest.raises(TypeError, match="cannot be called"):
        own("NUMBER")
    with pytest.raises(AttributeError):
        own("missing")


def test_a_text_survives_json() -> None:
    there = text("c", "a", messages=({"role": "user", "content": "u"},), columns={"tests": ["x"]})
    assert ScoredText.of_json(json.loads(json.dumps(there.to_json()))) == there
