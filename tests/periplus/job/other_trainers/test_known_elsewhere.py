"""What the page for users of other trainers says is what the errors for their settings say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from periplus.config.loading import Config
from periplus.config.yaml_text import parse
from periplus.job.job_file import JobFile, job_of
from periplus.job.other_trainers.known_elsewhere import KNOWN_ELSEWHERE
from periplus.job.other_trainers.unsupported import UNSUPPORTED

PAGE = Path(__file__).parents[4] / "docs" / "from-other-trainers.md"
SECTION = re.compile(r"\n## (.+)\n")
NAME = re.compile(r"`([a-z][a-z0-9_.]*)`")


def rows() -> Iterator[list[str]]:
    """Yield the cells of each row of the page's first table."""
    table = PAGE.read_text(encoding="utf-8").partition("\n## The same thing under another name\n")[2]
    table = SECTION.split(table)[0]
    for line in table.splitlines()[3:]:
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def exists(key: str) -> bool:
    """Return whether a job has this key: a dotted path through the fields of its sections."""
    fields = JobFile.model_fields
    for part in key.split("."):
        if part not in fields:
            return False
        annotation = str(fields[part].annotation)
        sections = [each for each in _below(Config) if re.search(rf"\b{each.__name__}\b", annotation)]
        fields = sections[0].model_fields if sections else {}
    return True


def _below(section: type[Config]) -> Iterator[type[Config]]:
    for child in section.__subclasses__():
        yield child
        yield from _below(child)


def test_the_table_has_rows_of_all_trainers() -> None:
    found = list(rows())
    assert len(found) > 30
    assert {len(row) for row in found} == {5}


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0])
def test_a_name_of_another_trainer_leads_to_the_key_beside_it(row: list[str]) -> None:
    ours = NAME.findall(row[4])
    assert ours
    assert [key for key in ours if not exists(key)] == []
    for cell in row[1:4]:
        for name in NAME.findall(cell):
            leaf = name.rsplit(".", 1)[-1]
            known = KNOWN_ELSEWHERE.get(leaf)
            assert known in ours or leaf in {key.rsplit(".", 1)[-1] for key in ours}, (name, known)


def test_the_job_beside_trls_is_a_job() -> None:
    text = PAGE.read_text(encoding="utf-8").rpartition("```yaml\n")[2].partition("```")[0]
    tree = parse(text, "the page")
    # Model, data and reward are a user's own; the rest must be a job as it stands.
    del tree["model"], tree["data"], tree["reward"]
    tree["environment"] = {"name": "chain_sum"}
    assert job_of(tree).sampling.max_new_tokens == 512


def test_no_name_is_both_known_and_unsupported() -> None:
    assert sorted(KNOWN_ELSEWHERE.keys() & UNSUPPORTED.keys()) == []
