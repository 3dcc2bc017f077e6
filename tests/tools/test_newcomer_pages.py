"""Tests of the pages for newcomers: the keys, names, metrics and files that they promise exist."""

import re
from pathlib import Path

import pytest

from periplus.config.loading import dotted_keys
from periplus.job.job_file import JobFile
from periplus.job.known_elsewhere import KNOWN_ELSEWHERE
from periplus.job.unsupported import UNSUPPORTED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


KEYS = set(dotted_keys(JobFile))
SECTIONS = {key.split(".")[0] for key in KEYS if "." in key}


def rows_of(page: str, heading: str) -> list[list[list[str]]]:
    """Return the names in backquotes of each cell of the table under a heading."""
    section = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")] for line in lines]


def test_each_name_of_another_trainer_is_mapped_to_the_key_beside_it() -> None:
    rows = rows_of("from-other-trainers.md", "What has a key")
    assert len(rows) > 25
    for row in rows:
        (ours,) = row[-1]
        theirs = [name for cell in row[1:-1] for name in cell]
        assert ours in KEYS
        assert theirs
        assert {name: KNOWN_ELSEWHERE.get(name) for name in theirs} == dict.fromkeys(theirs, ours)


def test_each_name_without_a_key_is_one_that_a_job_refuses_with_advice() -> None:
    names = [name for row in rows_of("from-other-trainers.md", "What has none") for name in row[0]]
    assert len(names) >= 8
    assert not [name for name in names if name not in UNSUPPORTED]


@pytest.mark.parametrize("page", ["bring-your-own.md", "when-it-does-not-learn.md", "from-other-trainers.md"])
def test_each_dotted_key_in_a_page_is_a_key_of_a_job(page: str) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_.]+)[`=]", (DOCS / page).read_text()))
    files = {name for name in named if name.endswith((".md", ".py", ".yaml", ".jsonl"))}
    assert len(named - files) >= 5
    assert not named - files - KEYS


def test_each_metric_in_the_page_about_learning_is_recorded() -> None:
    known = set(re.findall(r"^\| `([^`]+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    text = (DOCS / "when-it-does-not-learn.md").read_text()
    lines = [line for line in text.splitlines() if re.match(r"\| [2-8] ", line)]
    named = {name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[2])}
    assert len(named) > 15
    assert not named - known


@pytest.mark.parametrize("page", ["bring-your-own.md", "when-it-does-not-learn.md", "from-other-trainers.md"])
def test_each_file_that_a_page_names_exists(page: str) -> None:
    text = (DOCS / page).read_text()
    named = {DOCS / path for path in re.findall(r"\]\(([^)#]+)\)", text)}
    named |= {ROOT / path for path in re.findall(r"\b(?:examples|periplus)/[\w/.-]+\.(?:yaml|py|jsonl)", text)}
    assert named
    assert not [path for path in named if not path.exists()]
