"""Which changes of a run's problems their digests show."""

from typing import Any

import pytest

from periplus.environment.datasets.listed import ListedProblems
from periplus.environment.environment import Item, Message
from periplus.environment.job_environment import TrainerEnvironment
from periplus.environment.splits import Splits
from periplus.job.job_file import job_of
from trainer.data.problem_digests import digest_of_all, problem_digests

SPLITS = Splits(warmup=(), train=(0,), held_out=())


def digest(item: Item, reward: dict[str, Any]) -> bytes:
    job = job_of({"name": "a", "data": {"path": "a.jsonl"}, "reward": reward})
    problems = ListedProblems(items=(item,))
    made = TrainerEnvironment(environment=problems, main=problems, file=b"", read=())
    return digest_of_all(problem_digests(job, made, (), SPLITS))


def item(**changes: Any) -> Item:
    return Item(**{"index": 0, "prompt": "q", "answer": "a", "columns": {"tests": ["assert f()"], "id": 1}, **changes})


@pytest.mark.parametrize(
    ("reward", "changes", "is_seen"),
    [
        ({"functions": [{"name": "code"}]}, {"columns": {"tests": ["assert not f()"], "id": 1}}, True),
        ({"functions": [{"name": "exact"}]}, {"columns": {"tests": ["assert not f()"], "id": 1}}, False),
        ({"functions": [{"name": "exact"}]}, {"answer": "b"}, True),
        ({"functions": [{"name": "exact"}]}, {"solution": "b"}, True),
        ({"functions": [{"name": "exact"}]}, {"messages": (Message(role="system", content="q"),)}, True),
    ],
)
def test_a_digest_covers_what_a_job_reads(reward: dict[str, Any], changes: dict[str, Any], is_seen: bool) -> None:
    assert (digest(item(), reward) != digest(item(**changes), reward)) == is_seen
