"""The section `reward` of a job file: what may be written, what is refused and with which words."""

import json
from pathlib import Path
from typing import Any

import pytest

from periplus.config.loading import validate
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, load_job
from periplus.job.reward_functions import ExactReward, MathReward, OwnReward, RegexReward, VerifierReward, label_of
from periplus.job.reward_section import RewardSection, disagreements

BASE = "name: a\nenvironment: {name: chain_sum}\n"


def load(tmp_path: Path, text: str, *overrides: str) -> JobFile:
    file = tmp_path / "job.yaml"
    file.write_text(BASE + text)
    return load_job(file, overrides)


def section(tmp_path: Path, text: str, *overrides: str) -> RewardSection:
    job = load(tmp_path, text, *overrides)
    assert JobFile.from_json(job.to_json()) == job
    return job.reward


def test_without_a_section_the_environments_verifier_scores(tmp_path: Path) -> None:
    for text in ("", "reward: verifier\n", "reward: {name: shuffled}\n"):
        found = section(tmp_path, text)
        assert found.entries == (VerifierReward(name="verifier"),)
        assert found.is_verifier_alone
    assert section(tmp_path, "reward: shuffled\n").is_shuffled


@pytest.mark.parametrize("text", ["reward: math\n", "reward: {name: math}\n", "reward: {functions: [{name: math}]}\n"])
def test_one_function_is_named_in_a_word(tmp_path: Path, text: str) -> None:
    found = section(tmp_path, text)
    assert found.entries == (MathReward(name="math"),)
    assert not found.is_verifier_alone


def test_an_override_names_the_function_too(tmp_path: Path) -> None:
    assert section(tmp_path, "", "reward=math").entries == (MathReward(name="math"),)
    assert section(tmp_path, "reward: math\n", "reward.name=exact").entries == (ExactReward(name="exact"),)
    shuffled = section(tmp_path, "reward: {functions: [{name: exact}]}\n", "reward.name=shuffled")
    assert shuffled.is_shuffled
    assert shuffled.entries == (ExactReward(name="exact"),)


def test_a_list_has_functions_of_all_kinds_with_weights_and_labels(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    functions = [
        {"name": "math", "weight": 2},
        {"name": "regex", "pattern": "x", "where": "last", "group": 0},
        {"name": "format", "tags": ["think"]},
        {"name": "length", "target": 5, "max": 9, "unit": "characters"},
        {"name": "code", "memory_mib": 128},
        {"name": "model", "path": str(tmp_path)},
        {"name": "verifier", "label": "own-rule"},
    ]
    found = section(tmp_path, f"reward: {json.dumps({'functions': functions})}\n")
    assert [label_of(each) for each in found.entries] == [
        "math",
        "regex",
        "format",
        "length",
        "code",
        "model",
        "own-rule",
    ]
    assert found.entries[0].weight == 2.0
    assert found.entries[1] == RegexReward(name="regex", pattern="x", where="last", group=0)
    assert not found.has_own_code


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("mth", 'reward.name is "mth", but must be one of verifier, shuffled, math'),
        ({"functions": [{"name": "mth"}]}, 'reward.functions.0 is {"name": "mth"}, but must be a mapping with path'),
        ({"functions": [3]}, "reward.functions.0 is 3, but must be a mapping with path: MODULE:FUNCTION, or with name"),
        ({"functions": [{"name": "regex"}]}, "reward.functions.0.pattern is missing"),
        ({"functions": [{"name": "format", "tag": 1}]}, "unknown key reward.functions.0.tag; did you mean"),
        ({"functions": [{"name": "math", "pattern": "x"}]}, "unknown key reward.functions.0.pattern; known keys"),
        ({"functions": [{"name": "math", "weight": "1"}]}, 'reward.functions.0.weight is "1", but must be a number'),
        ({"functions": [{"path": "score"}]}, "MODULE:FUNCTION, such as my_rewards:score"),
        ({"functions": [{"name": "math"}, {"name": "math"}]}, "two entries that are recorded as 'math'"),
        ({"functions": [{"name": "length", "target": 5, "max": 5}]}, "max 5, which is not above its target 5"),
        ({"name": "math", "functions": [{"name": "exact"}]}, "put name: math into the list"),
        ({"functions": [{"name": "math"}], "code": ["a.py"]}, "no entry of reward.functions has a path"),
        ({"reward_funcs": ["math"]}, "unknown key reward.reward_funcs; did you mean reward.functions?"),
    ],
)
def test_what_is_wrong_is_said_at_its_key(tmp_path: Path, reward: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, f"reward: {json.dumps(reward)}\n")
    assert expected in str(raised.value)


def test_names_of_other_trainers_lead_to_the_list(tmp_path: Path) -> None:
    for name in ("reward_funcs", "reward_fn", "reward_weights", "custom_reward_function", "reward_model"):
        with pytest.raises(ConfigError, match=r"did you mean reward\.functions\?"):
            load(tmp_path, f"{name}: x\n")


def test_a_section_of_python_values_is_checked_like_one_of_a_file() -> None:
    made = RewardSection(functions=(OwnReward(path="a:b"), OwnReward(path="a:c")))
    assert disagreements(made) == []
    assert validate(RewardSection, made.model_dump(mode="json"), "a test") == made
