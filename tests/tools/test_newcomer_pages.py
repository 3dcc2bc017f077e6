"""Tests of the pages for newcomers: the keys, names, metrics and files that they promise exist."""

import re
from pathlib import Path

import pytest

from periplus.job.job_file import JobFile
from tests.support.cases.job_keys import dotted_keys

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


KEYS = set(dotted_keys(JobFile))
SECTIONS = {key.split(".")[0] for key in KEYS if "." in key}


@pytest.mark.parametrize("page", ["when-it-does-not-learn.md", "from-other-trainers.md"])
def test_each_dotted_key_in_a_page_is_a_key_of_a_job(page: str) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_.]+)[`=]", (DOCS / page).read_text()))
    files = {name for name in named if name.endswith((".md", ".py", ".yaml", ".jsonl"))}
    assert len(named - files) >= 5
    assert not named - files - KEYS


def test_each_metric_in_the_page_about_learning_is_recorded() -> None:
    known = set(re.findall(r"^\| `([^`]+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    leaves = {key.rsplit(".", 1)[-1] for key in KEYS}
    words = set(re.findall(r"`([a-z]+_[a-z_]+)`", (DOCS / "when-it-does-not-learn.md").read_text()))
    assert len(words & known) > 15
    assert not words - known - leaves


@pytest.mark.parametrize("page", ["bring-your-own.md", "when-it-does-not-learn.md", "from-other-trainers.md"])
def test_each_file_that_a_page_names_exists(page: str) -> None:
    text = (DOCS / page).read_text()
    named = {DOCS / path for path in re.findall(r"\]\(([^)#]+)\)", text)}
    named |= {ROOT / path for path in re.findall(r"\b(?:examples|periplus)/[\w/.-]+\.(?:yaml|py|jsonl)", text)}
    assert named
    assert not [path for path in named if not path.exists()]
