import json
from pathlib import Path

import pytest

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, load_job
from periplus.job.sampling_section import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, EvalSampling

ROOT = Path(__file__).parents[3]
SPELLING = ROOT / "examples" / "spelling.yaml"


def job(*overrides: str) -> JobFile:
    return load_job(SPELLING, overrides)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as found:
        job("sampling.max_new_tokens=16", *overrides)
    return str(found.value)


def test_an_evaluation_is_greedy_unless_the_job_says_otherwise() -> None:
    assert job().eval.sampling == EvalSampling(temperature=0.0, top_p=1.0, top_k=0)


def test_what_would_have_no_effect_on_greedy_samples_is_refused() -> None:
    message = refused("eval.sampling.top_p=0.9", "eval.sampling.top_k=5")
    assert "eval.sampling.top_p is 0.9, but eval.sampling.temperature is 0" in message
    assert "eval.sampling.top_k is 5, but eval.sampling.temperature is 0" in message
    drawn = job("eval.sampling.temperature=0.6", "eval.sampling.top_p=0.9", "eval.sampling.top_k=5").eval.sampling
    assert (drawn.temperature, drawn.top_p, drawn.top_k) == (0.6, 0.9, 5)


def test_lengths_that_cannot_be_are_refused() -> None:
    assert "eval.sampling.max_new_tokens is 17, but sampling.max_new" in refused("eval.sampling.max_new_tokens=17")
    assert "completions have at most 16 tokens" in refused("eval.sampling.min_new_tokens=17")
    both = refused("eval.sampling.min_new_tokens=5", "eval.sampling.max_new_tokens=4")
    assert "completions have at most 4 tokens" in both
    assert job("sampling.max_new_tokens=16", "eval.sampling.min_new_tokens=16").eval.sampling.min_new_tokens == 16


@pytest.mark.parametrize("key", ["sampling.stop", "eval.sampling.stop"])
@pytest.mark.parametrize(
    "stop", [[""], ["x" * (MAX_STOP_CHARACTERS + 1)], [str(number) for number in range(MAX_STOP_STRINGS + 1)]]
)
def test_stop_strings_have_bounds(key: str, stop: list[str]) -> None:
    assert key in refused(f"{key}={json.dumps(stop)}")


def test_a_job_with_stop_strings_travels_as_json() -> None:
    original = job('sampling.stop=["\\n\\n", END]', "eval.sampling.stop=[]")
    assert original.sampling.stop == ("\n\n", "END")
    assert JobFile.from_json(original.to_json()) == original


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_new_tokens"])
def test_what_rules_tokens_out_is_refused_in_training_with_the_reason(name: str) -> None:
    message = refused(f"sampling.{name}=1")
    assert f"sampling.{name} is not supported yet: training draws from the whole distribution" in message
    assert "eval.sampling" in message


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("sampling.stop_strings=[a]", r"did you mean sampling\.stop\?"),
        ("stop_sequences=[a]", r"did you mean sampling\.stop\?"),
        ("val_kwargs={}", r"did you mean eval\.sampling\?"),
        ("generation_kwargs.repetition_penalty=2", "drawn from the whole distribution"),
        ("generation_kwargs={}", r"eval\.sampling those of evaluation"),
    ],
)
def test_names_of_other_trainers_lead_to_ours(given: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        job(given)
