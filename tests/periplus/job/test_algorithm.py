import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.config import yaml_text
from periplus.config.loading import validate
from periplus.errors import ConfigError
from periplus.job.algorithm import AlgorithmSection, disagreements, filled_in
from periplus.job.job_file import JobFile, load_job, resolve

ROOT = Path(__file__).parents[3]
# The reward model of preference.yaml is made first: tests/integration/test_examples.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml") if path.name != "preference.yaml")

NAMES = get_args(AlgorithmSection.model_fields["name"].annotation)


def section(**options: Any) -> AlgorithmSection:
    return validate(AlgorithmSection, options, "job")


def filled(**options: Any) -> AlgorithmSection:
    return filled_in(section(**options), max_new_tokens=64, optimizer_lr=1e-3)


def refusals(staleness: int = 2, **options: Any) -> str:
    return "\n".join(disagreements(section(**options), staleness=staleness, max_new_tokens=64))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_every_algorithm_is_complete_with_its_own_defaults_and_resolves_to_itself(name: str, correction: str) -> None:
    assert refusals(name=name, importance_correction=correction) == ""
    once = filled(name=name, importance_correction=correction)
    assert filled_in(once, max_new_tokens=64, optimizer_lr=1e-3) == once
    assert disagreements(once, staleness=2, max_new_tokens=64) == []


def test_the_defaults_are_those_of_the_papers_and_of_the_runs_before() -> None:
    grpo = filled()
    assert (grpo.clip_low, grpo.clip_high, grpo.advantage_normalisation) == (0.2, 0.28, "std")
    assert (grpo.loss_aggregation, grpo.importance_level, grpo.importance_cap) == ("token_mean", "token", 2.0)
    assert (grpo.gamma, grpo.critic_lr, grpo.kl_estimator, grpo.importance_low) == (None,) * 4
    dr_grpo = filled(name="dr_grpo")
    assert (dr_grpo.advantage_normalisation, dr_grpo.loss_aggregation) == ("none", "constant")
    assert dr_grpo.loss_constant_tokens == 64
    gspo = filled(name="gspo")
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4)
    assert (gspo.loss_aggregation, gspo.importance_level) == ("sequence_mean", "sequence_geometric")
    assert (filled(name="cispo").clip_low, filled(name="rloo").clip_low) == (1.0, None)
    assert filled(name="rloo").loss_constant_tokens == 1
    m2po = filled(name="m2po")
    assert (m2po.m2_threshold, m2po.importance_cap, m2po.clip_high, m2po.importance_level) == (
        0.04,
        100.0,
        None,
        "token",
    )
    assert filled(name="m2po", importance_cap=3.0).importance_cap == 3.0
    ppo = filled(name="ppo", kl_coefficient=0.1)
    assert (ppo.gamma, ppo.gae_lambda, ppo.value_clip, ppo.critic_lr) == (1.0, 0.95, 0.2, 1e-3)
    assert (ppo.kl_in, ppo.kl_estimator) == ("reward", "k1")
    assert filled(kl_coefficient=0.1).kl_estimator == "k3"


@pytest.mark.parametrize("name", NAMES)
def test_stale_samples_need_a_correction_whatever_the_algorithm(name: str) -> None:
    assert "the loss would be wrong for stale tokens" in refusals(1, name=name, importance_correction="none")
    assert refusals(0, name=name, importance_correction="none") == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"name": "grpo", "gamma": 0.9},
            "algorithm.gamma is set, but grpo has no such option: it is for rei",
        ),
        ({"name": "rloo", "gae_lambda": 0.9}, "it is for ppo"),
        ({"name": "gspo", "dual_clip": 3.0}, "algorithm.dual_clip is set, but gspo has no such option"),
        ({"name": "grpo", "critic_lr": 0.1}, "it is for ppo"),
        ({"name": "grpo", "overlong_filter": True}, "it is for dapo"),
        ({"name": "dr_grpo", "advantage_normalisation": "std"}, "dr_grpo accepts only none"),
        ({"name": "grpo", "advantage_normalisation": "batch"}, "grpo accepts only std or none"),
        ({"name": "dapo", "loss_aggregation": "sequence_mean"}, "dapo accepts only token_mean"),
        ({"name": "gspo", "importance_level": "token"}, "gspo accepts only sequence_geometric or sequence"),
        ({"name": "m2po", "importance_level": "sequence"}, "m2po accepts only token"),
        ({"name": "m2po", "clip_high": 0.2}, "m2po has no such option"),
        ({"name": "grpo", "m2_threshold": 0.04}, "it is for m2po"),
        ({"name": "grpo", "loss_constant_tokens": 5}, "algorithm.loss_aggregation=constant"),
        (
            {"importance_correction": "masked", "importance_cap": 3.0},
            "importance_cap is set, but",
        ),
        ({"importance_low": 0.5}, "importance_correction is truncated: it is for masked"),
        ({"kl_estimator": "k2"}, "kl_coefficient is 0: there is no penalty"),
        ({"kl_in": "loss"}, "kl_coefficient is 0: there is no penalty"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k1"}, "its expected gradient is 0"),
        ({"name": "ppo", "kl_coefficient": 0.1, "kl_estimator": "k1", "kl_in": "loss"}, "its expected gradient is 0"),
        ({"name": "dapo", "kl_coefficient": 0.1}, "dapo has no KL penalty"),
        ({"group_size": 1}, "every advantage would be 0"),
        ({"name": "rloo", "group_size": 1}, "every advantage would be 0"),
        ({"name": "dapo", "overlong_cache_tokens": 65}, "sampling.max_new_tokens is only 64"),
    ],
)
def test_options_that_would_be_ignored_or_make_no_sense_are_refused(options: dict[str, Any], expected: str) -> None:
    assert expected in refusals(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ppo", "group_size": 1},
        {"name": "reinforce_plus_plus", "group_size": 1, "gamma": 0.99, "kl_coefficient": 0.01},
        {"name": "dapo", "overlong_cache_tokens": 16, "overlong_filter": True, "dual_clip": 3.0},
        {"name": "grpo", "loss_aggregation": "constant", "loss_constant_tokens": 100},
        {"name": "grpo", "kl_coefficient": 0.1, "kl_in": "reward"},
        {"name": "rloo", "clip_low": 0.2, "clip_high": 0.2},
        {"importance_correction": "masked", "importance_low": 0.5, "importance_high": 5.0},
        {"importance_correction": "truncated", "importance_level": "sequence", "importance_cap": 5.0},
    ],
)
def test_options_that_go_together_are_accepted(options: dict[str, Any]) -> None:
    assert refusals(**options) == ""


OPTIONAL = [name for name, field in AlgorithmSection.model_fields.items() if field.default is None]
VALUES: dict[str, list[Any]] = {
    "advantage_normalisation": ["std", "batch", "none"],
    "clip_low": [0.1],
    "clip_high": [0.3],
    "m2_threshold": [0.1],
    "dual_clip": [3.0],
    "loss_aggregation": ["token_mean", "sequence_mean", "constant"],
    "loss_constant_tokens": [7],
    "importance_level": ["token", "sequence", "sequence_geometric"],
    "importance_cap": [3.0],
    "importance_low": [0.4],
    "importance_high": [4.0],
    "kl_estimator": ["k1", "k2", "k3"],
    "kl_in": ["loss", "reward"],
    "kl_reference": ["models/start"],
    "gamma": [0.9],
    "gae_lambda": [0.9],
    "value_clip": [0.1],
    "critic_lr": [1e-4],
    "overlong_filter": [True],
    "bootstrap_truncated": [True],
    "overlong_cache_tokens": [3],
}


def test_every_optional_option_is_tried() -> None:
    assert set(VALUES) == set(OPTIONAL)


BASIC = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "kl_coefficient": st.sampled_from([0.0, 0.1]),
        "importance_correction": st.sampled_from(["truncated", "masked", "none"]),
    }
)
"""Options that every algorithm has."""


@given(st.data())
def test_what_is_accepted_keeps_every_option_and_still_agrees_when_filled_in(data: st.DataObject) -> None:
    options = {
        name: data.draw(st.sampled_from(VALUES[name]))
        for name in data.draw(st.sets(st.sampled_from(OPTIONAL), max_size=4))
    }
    options |= data.draw(BASIC)
    if refusals(0, **options):
        return
    got = filled(**options)
    assert {name: getattr(got, name) for name in options} == options
    assert disagreements(got, staleness=0, max_new_tokens=64) == []


SETTING = re.compile(r"set algorithm\.(\w+)=([\w.]+)")


@given(st.data())
def test_each_refusal_names_a_key_and_a_value_that_would_do(data: st.DataObject) -> None:
    options: dict[str, Any] = {
        name: data.draw(st.sampled_from(VALUES[name]))
        for name in data.draw(st.sets(st.sampled_from(OPTIONAL), max_size=6))
    }
    options |= {**data.draw(BASIC), "group_size": data.draw(st.sampled_from([1, 8]))}
    for _ in range(3):  # to obey one refusal may show another
        for refusal in refusals(2, **options).splitlines():
            match = SETTING.search(refusal)
            assert match, refusal
            options[match[1]] = yaml_text.parse(match[2], "refusal")
    assert refusals(2, **options) == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_runs_every_example_with_its_own_defaults(path: Path, name: str) -> None:
    assert load_job(path, [f"algorithm.name={name}"]).algorithm.name == name


def test_a_job_is_told_all_its_refusals_at_once() -> None:
    job = validate(
        JobFile,
        {
            "name": "a",
            "environment": {"name": "chain_sum"},
            "train": {"minibatches": 33},
            "algorithm": {"name": "rloo", "gamma": 0.9, "importance_correction": "none"},
        },
        "job",
    )
    with pytest.raises(ConfigError) as caught:
        resolve(job)
    for expected in ("rloo has no such option", "wrong for stale tokens", "a group is never divided"):
        assert expected in str(caught.value)


@pytest.mark.parametrize(("groups", "is_refused"), [(1024, False), (1025, True)])
def test_a_step_of_more_samples_than_one_line_of_the_journal_holds_is_refused(groups: int, is_refused: bool) -> None:
    tree = {
        "name": "a",
        "environment": {"name": "chain_sum"},
        "train": {"groups_per_step": groups},
        "algorithm": {"group_size": 1024},
    }
    job = validate(JobFile, tree, "job")
    if is_refused:
        with pytest.raises(ConfigError, match="1049600 samples a step; at most 1048576"):
            resolve(job)
    else:
        resolve(job)


def test_an_unknown_option_is_refused_with_ours() -> None:
    with pytest.raises(ConfigError, match=r"did you mean algorithm\.kl_coefficient"):
        JobFile.from_json('{"schema": "periplus.job/1", "name": "a", "algorithm": {"beta": 1}}')
