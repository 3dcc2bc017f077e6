"""How many problems are left out of a job, why, and which words say so."""

from pathlib import Path

import pytest

from periplus.environment.datasets.listed import ListedProblems
from periplus.environment.environment import Item
from periplus.environment.job_environment import TrainerEnvironment
from periplus.errors import ConfigError
from periplus.process.telemetry import check_names
from tests.support.tiny_job import tiny_job
from trainer.data.counts import ProblemCounts
from trainer.data.dataset import Prompt, counted, split_prompts


def problems(*prompts: str) -> ListedProblems:
    items = [Item(index=index, prompt=prompt, answer="") for index, prompt in enumerate(prompts)]
    return ListedProblems(items=tuple(items))


def test_each_problem_that_is_left_out_is_counted_once(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    width = job.sampling.prompt_tokens
    texts = [*(f"q{n}" for n in range(40)), "Q0", "q0", "long", "long", "held", "HELD"]
    prompts = [Prompt(text=text, num_tokens=width + (text == "long")) for text in texts]
    main = problems(*texts)
    made = TrainerEnvironment(environment=main, main=main, file=None, sets=(problems("Held"),), num_filtered=5)
    counts = counted(prompts, made, job)
    assert (counts.total, counts.filtered, counts.long, counts.evaluated, counts.repeated) == (46, 5, 2, 2, 2)
    splits = split_prompts(prompts, job, frozenset(["held"]))
    assert (counts.train, counts.warmup, counts.held_out) == tuple(
        map(len, (splits.train, splits.warmup, splits.held_out))
    )
    check_names(counts.values())
    assert not counts.is_mostly_left_out


COUNTS = ProblemCounts(total=7461, filtered=12, long=5012, evaluated=0, repeated=3, warmup=0, held_out=64)


def test_the_sentence_names_the_reasons_that_apply() -> None:
    assert COUNTS.sentence(64) == (
        "2382 problems to train on, 64 held out; left out: 12 rows by filters, 5012 of 7461 problems (67%) with "
        "prompts longer than sampling.prompt_tokens=64, 3 of 7461 problems (0%) that repeat another prompt"
    )
    assert COUNTS.is_mostly_left_out
    none = ProblemCounts(total=9, filtered=0, long=0, evaluated=0, repeated=0, warmup=2, held_out=3)
    assert none.sentence(64) == "4 problems to train on, 3 held out, 2 for the warm-up; left out: nothing"


@pytest.mark.parametrize(("long", "is_warned"), [(5, False), (6, True)])
def test_a_job_that_leaves_out_more_than_half_is_warned_of(long: int, is_warned: bool) -> None:
    counts = ProblemCounts(total=10, filtered=90, long=long, evaluated=0, repeated=0, warmup=0, held_out=0)
    assert counts.is_mostly_left_out is is_warned


def test_too_few_problems_are_refused_with_the_number_of_those_left_out_before(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    prompts = [Prompt(text=f"q{n}", num_tokens=job.sampling.prompt_tokens + (n > 3)) for n in range(20)]
    with pytest.raises(ConfigError, match=r"only 4 of 4 prompts .*; 16 more prompts are too long"):
        split_prompts(prompts, job)
