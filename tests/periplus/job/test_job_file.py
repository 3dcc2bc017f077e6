import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from periplus.config.loading import validate
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, SamplingSection, job_of, job_schema, load_job, recorded_job, resolve
from periplus.job.other_trainers.known_elsewhere import KNOWN_ELSEWHERE
from periplus.job.other_trainers.unsupported import ONLY_IN_EVALUATION, UNSUPPORTED
from tests.support.cases.job_keys import dotted_keys

ROOT = Path(__file__).parents[3]
# The reward model of preference.yaml is made first: tests/integration/test_examples.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml") if path.name != "preference.yaml")
TOP_LEVEL = (
    "name",
    "model",
    "algorithm",
    "data",
    "environment",
    "reward",
    "sampling",
    "engine",
    "optimizer",
    "train",
    "staleness",
    "steps",
    "seed",
    "eval",
    "network",
    "plan",
    "regions",
    "failure",
    "checkpoint",
    "output",
    "secrets",
)


def job(**changes: Any) -> JobFile:
    return validate(JobFile, {"name": "a", "environment": {"name": "chain_sum"}} | changes, "job")


def test_the_top_level_keys_are_the_contract() -> None:
    assert tuple(JobFile.model_fields) == TOP_LEVEL


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_a_job_and_points_editors_to_the_schema(path: Path) -> None:
    load_job(path)
    assert path.read_text().startswith("# yaml-language-server: $schema=../periplus/schemas/job.schema.json\n")


def test_each_field_says_what_it_means() -> None:
    undescribed = []
    for name, section in job_schema()["$defs"].items():
        fields = section.get("properties", {})
        undescribed += [f"{name}.{key}" for key, field in fields.items() if not field.get("description")]
        undescribed += [name] if fields and not section.get("description") else []
    assert not undescribed


def test_every_suggestion_for_other_tools_names_a_key_of_ours_and_is_none_itself() -> None:
    keys = dotted_keys(JobFile)
    assert set(KNOWN_ELSEWHERE.values()) <= set(keys)
    assert not set(KNOWN_ELSEWHERE) & set(JobFile.model_fields)


def test_names_of_other_tools_are_refused_with_ours() -> None:
    with pytest.raises(ConfigError, match=r"unknown key num_generations; did you mean algorithm\.group_size\?"):
        load_job(ROOT / "examples" / "arithmetic.yaml", ["num_generations=4"])


@pytest.mark.parametrize("name", ["report_to", "use_wandb", "tensorboard", "logger", "trackers"])
def test_other_names_of_trackers_suggest_our_key(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key {name}; did you mean output\.trackers\?"):
        load_job(ROOT / "examples" / "spelling.yaml", [f"{name}=[wandb]"])


def test_accounts_and_credentials_of_trackers_are_no_keys() -> None:
    with pytest.raises(ConfigError, match=r"wandb_api_key is not supported yet: accounts and credentials are no part"):
        load_job(ROOT / "examples" / "spelling.yaml", ["wandb_api_key=x"])


def test_a_tracker_is_named_once() -> None:
    with pytest.raises(ConfigError, match=r"output\.trackers has wandb more than once"):
        resolve(job(output={"trackers": ["wandb", "tensorboard", "wandb"]}))


def test_a_run_from_before_there_were_trackers_can_be_read(tmp_path: Path) -> None:
    original = load_job(ROOT / "examples" / "spelling.yaml")
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(json.loads(original.to_json()) | {"trackers": ["jsonl"]}))
    assert recorded_job(path) == load_job(path) == original


def test_what_is_not_supported_is_no_key_of_ours_and_says_what_to_do() -> None:
    keys = {part for key in dotted_keys(JobFile) for part in key.split(".")}
    assert set(UNSUPPORTED) & keys == set(ONLY_IN_EVALUATION)
    assert not set(ONLY_IN_EVALUATION) & set(SamplingSection.model_fields)
    assert not set(UNSUPPORTED) & set(KNOWN_ELSEWHERE)
    for example in (
        "top_p",
        "top_k",
        "min_p",
        "qlora",
        "sglang",
        "fsdp",
        "multi_turn",
        "remote_rm_url",
        "mlflow",
        "fp16",
    ):
        with pytest.raises(ConfigError, match=rf"sampling\.{example} is not supported yet: \w+"):
            load_job(ROOT / "examples" / "spelling.yaml", [f"sampling.{example}=1"])


def test_every_number_has_a_lower_and_an_upper_bound() -> None:
    unbounded = []
    for name, section in (("job", job_schema()), *job_schema()["$defs"].items()):
        for key, field in section.get("properties", {}).items():
            for form in field.get("anyOf", [field]):
                low, high = ({f"{end}imum", f"exclusive{end.title()}imum"} & form.keys() for end in ("min", "max"))
                if form.get("type") in ("integer", "number") and not (low and high):
                    unbounded.append(f"{name}.{key}")
    assert not unbounded


def test_a_run_s_own_configuration_is_a_job_file(tmp_path: Path) -> None:
    original = load_job(ROOT / "examples" / "spelling.yaml")
    (tmp_path / "config.yaml").write_text(original.to_json())
    assert load_job(tmp_path / "config.yaml", ["steps=3"]).steps == 3


def test_a_resolved_job_survives_json_and_yaml(tmp_path: Path) -> None:
    original = load_job(ROOT / "examples" / "arithmetic.yaml", ["sampling.temperature=0.7", "regions.rollout=[a, b]"])
    assert JobFile.from_json(original.to_json()) == original
    assert json.loads(original.to_json())["schema"] == "periplus.job/1"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(json.loads(original.to_json())))
    assert load_job(tmp_path / "config.yaml") == original


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "periplus.job/2"}', '{"schema": "periplus.job/1", "x": 1}']
)
def test_what_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        JobFile.from_json(text)


def test_resolving_twice_changes_nothing_more() -> None:
    once = resolve(job())
    assert once.data.size == 16_384
    assert resolve(once) == once


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/tiny").mkdir(parents=True)
    Path("job.yaml").write_text("name: a\ndata: {path: sums.jsonl}\nmodel: {path: models/tiny}\n")
    loaded = load_job(Path("job.yaml"))
    assert loaded.data.path == str(tmp_path / "sums.jsonl")
    assert loaded.model.path == str(tmp_path / "models" / "tiny")
    assert load_job(Path("job.yaml"), ["model.path=builtin:qwen3-tiny"]).model.path == "builtin:qwen3-tiny"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment": None}, "exactly one of environment, data.path and data.sources must be given, but none is"),
        ({"data": {"path": "x"}}, "must be given, but environment and data.path are"),
        (
            {"environment": None, "data": {"path": "x", "size": 3}},
            "data.size is 3, but a data set has one problem per row",
        ),
        ({"environment": None, "data": {"sources": [{}]}}, "data.sources.0 has no path"),
        (
            {"environment": None, "data": {"split": "test", "sources": [{"path": "x"}]}},
            "data.split is set, but data.path is not; set it in each of data.sources",
        ),
        ({"environment": None, "data": {"path": "x", "answer_pattern": "("}}, "is not a regular expression"),
        ({"environment": None, "data": {"path": "x", "filters": [{"column": "a"}]}}, "has no condition"),
        ({"model": {"chat_template": "chatml"}}, "model.chat_template is 'chatml', which has no {{ or {%"),
        ({"environment": {"name": "x", "config": {"seed": 1}}}, "environment.config.seed is set"),
        ({"environment": {"name": "x", "config": {"a": [{"b": float("nan")}]}}}, "infinite or NaN"),
        ({"algorithm": {"importance_correction": "none"}}, "the loss would be wrong for stale tokens"),
        ({"regions": {"rollout": ["a", "a"]}}, "regions.rollout names a region twice"),
        ({"regions": {"rollout": ["a"], "trainer": "b", "min": 3}}, "allow only 2"),
        ({"regions": {"rollout": ["a"], "min": 3}}, "allow only 2"),
        ({"checkpoint": {"replicate": "s3:/somewhere"}}, "'s3:/somewhere' is no place for replicas of checkpoints"),
        ({"checkpoint": {"replicate": "http://host/x"}}, "schemes: file, s3,"),
        ({"checkpoint": {"replicate": "s3://b/x", "every_steps": 0}}, "checkpoint.every_steps is 0"),
        ({"checkpoint": {"replicate": "s3://b/x"}, "regions": {"trainer": "a"}}, "could go on nowhere else"),
        ({"data": {"size": 512}}, "problems are left to train on"),
        ({"data": {"size": 600}, "train": {"warmup": {"num_examples": 100}}}, "already take 612"),
        (
            {"algorithm": {"group_size": 4}, "train": {"groups_per_step": 8, "minibatches": 4, "devices": 9}},
            "train.devices is 9, but an update has only 8 samples",
        ),
    ],
)
def test_keys_that_disagree_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(job(**changes))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"staleness": 0, "algorithm": {"importance_correction": "none"}},
        {"environment": None, "data": {"path": "x"}},
        {"regions": {"rollout": ["a"], "min": 2}},
        {"regions": {"rollout": ["a"], "trainer": "b", "min": 2}},
        {"algorithm": {"group_size": 4}, "train": {"groups_per_step": 8, "minibatches": 4, "devices": 8}},
    ],
)
def test_keys_that_agree_are_accepted(changes: dict[str, Any]) -> None:
    resolve(job(**changes))


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("algorithm", {"group_size": 0}),
        ("algorithm", {"name": "trpo"}),
        ("algorithm", {"dual_clip": 1.0}),
        ("sampling", {"temperature": 0}),
        ("optimizer", {"betas": [0.9, 1.0]}),
        ("network", {"zstd_level": 20}),
        ("failure", {"lease_timeout_s": 0}),
        ("output", {"trackers": ["mlflow"]}),
        ("seed", -1),
        ("name", "Not A Name"),
    ],
)
def test_a_value_out_of_range_is_refused(section: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"job: {section}"):
        job(**{section: value})


def test_a_job_that_is_sent_has_no_key_that_an_earlier_version_need_not_know() -> None:
    tree = {
        "name": "a",
        "environment": {"name": "spell_backward", "config": {"min_word_len": None}},
        "train": {"logprob_mismatch_alarm": None},
    }
    job = job_of(tree)
    sent = json.loads(job.to_json())
    assert JobFile.from_json(job.to_json()) == job
    assert "expected_tokens" not in sent["sampling"], "null, and null by default"
    assert sent["train"]["logprob_mismatch_alarm"] is None, "null, and not null by default"
    assert sent["environment"]["config"] == {"min_word_len": None}, "the environment's own"
    longer = job_of(tree | {"sampling": {"expected_tokens": 5}})
    assert json.loads(longer.to_json())["sampling"]["expected_tokens"] == 5.0
