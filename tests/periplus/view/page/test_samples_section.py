"""Samples in HTML: whatever a model writes stays text."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from periplus.job.run_directory import RunDirectory
from periplus.job.samples.gallery import Gallery, gallery_of, reported_gallery
from periplus.job.samples.selection import SampleQuery
from periplus.values.policy import Policy
from periplus.view.page.samples_section import samples_page, samples_section
from tests.support.trainer.kept_samples import SampleWriter, trajectory_of
from trainer.data.characters import character_tokenizer

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\" onmouseover='x'"


class Tags(HTMLParser):
    """The tags and attributes of a page, and all its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def tags_of(markup: str) -> Tags:
    found = Tags()
    found.feed(markup)
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run whose every text is hostile."""
    writer = SampleWriter(tmp_path / "<b>run")
    metadata = json.dumps({"reward_parts": {HOSTILE: 1.0}})
    completion = ((HOSTILE, 1), ("tool says <b>", None), ("\x1b", 2))
    writer.step(
        Policy(0, 3), [trajectory_of(1, 0, prompt=HOSTILE, completion=completion, worker=HOSTILE, metadata=metadata)]
    )
    writer.store.close()
    return writer.run


def hostile_gallery(run: RunDirectory) -> Gallery:
    return gallery_of(run, SampleQuery())


def test_hostile_text_makes_no_tag_and_no_attribute(run: RunDirectory) -> None:
    found = tags_of(samples_page(hostile_gallery(run)))
    assert not found.tags & {"script", "img", "b"}
    assert not {name for name in found.attributes if name.startswith("on")} | (found.attributes & {"src", "href"})
    assert HOSTILE in found.text


def test_pieces_say_who_sampled_them(run: RunDirectory) -> None:
    page = samples_page(hostile_gallery(run))
    num_tokens = len(character_tokenizer().encode(HOSTILE, add_special_tokens=False).ids)
    assert f'class="stale" title="{num_tokens} tokens by policy 0.1, 1 version behind"' in page
    assert 'class="context" title="13 context tokens that no policy sampled"' in page
    assert 'class="fresh" title="1 token by policy 0.2, 0 versions behind"' in page


def test_a_section_of_a_report_is_short(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    writer.step(Policy(0, 1), [trajectory_of(1, 0, completion=(("a" * 10_000, 0),))])
    gallery = reported_gallery(writer.run)
    assert gallery is not None
    assert "[6,000 characters are not shown]" in samples_section(gallery)
    assert "a" * 10_000 in samples_page(gallery_of(writer.run, SampleQuery()))


def test_without_text_the_page_says_why_and_shows_ids(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run", with_tokenizer=False)
    writer.step(Policy(0, 1), [trajectory_of(1, 0)])
    page = samples_page(gallery_of(writer.run, SampleQuery()))
    assert "no tokenizer.json" in page
    assert "24" in tags_of(page).text


def test_a_sample_without_its_frame_says_why(run: RunDirectory) -> None:
    for file in run.trajectories.glob("*.db"):
        file.write_bytes(bytes(9999))
    assert "Not shown: " in samples_page(hostile_gallery(run))
