"""What a page of samples says, from a run directory that the trainer's own writers made."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from periplus.audit.journal import AuditJournal
from periplus.audit.records import DoubtEntry
from periplus.errors import NotFound
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.gallery import gallery_of, gallery_tree, reported_gallery
from periplus.job.samples.selection import SampleOrder, SampleQuery
from periplus.spool.database import DATABASE
from periplus.values.policy import Policy
from periplus.view.page.samples_section import samples_page
from periplus.view.terminal.samples_text import samples_text
from tests.support.trainer.kept_samples import SampleWriter, trajectory_of, written_run

TOOL = (("ab", 3), ("tool", None), ("c", 3), ("de", 4))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return written_run(tmp_path / "run")


def test_a_sample_has_its_text_its_figures_and_each_tokens_policy(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    metadata = json.dumps({"reward_parts": {"exact": 1, "length": -0.5, "bad": "x"}, "turns": 2})
    writer.step(
        Policy(0, 5),
        [trajectory_of(7, 1, prompt="2+2", completion=TOOL, reward=0.5, worker="w-us", metadata=metadata)],
        advantage=-1.25,
    )
    [sample] = gallery_of(writer.run, SampleQuery()).samples
    assert (sample.step, sample.group, sample.sample, sample.region) == (5, 7, 1, "us-east")
    assert (sample.reward, sample.advantage, sample.staleness) == (0.5, -1.25, 1)
    assert (sample.difference_mean, sample.difference_max) == (0.25, 1.5)
    assert sample.reward_parts == {"exact": 1.0, "length": -0.5}
    assert sample.prompt == "<bos>2+2<answer>"
    shown = [(p.text, p.policy.version, p.staleness, p.is_context) for p in sample.pieces]
    assert shown == [("ab", 3, 1, False), ("tool", 3, 1, True), ("c", 3, 1, False), ("de", 4, 0, False)]


def test_the_json_of_a_page_holds_ids_and_log_probabilities(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    writer.step(Policy(0, 5), [trajectory_of(7, 1, completion=TOOL)])
    tree = json.loads(json.dumps(gallery_tree(gallery_of(writer.run, SampleQuery()))))
    assert (tree["schema"], tree["num_matching"], tree["no_text"]) == ("periplus.samples/1", 1, "")
    [sample] = tree["samples"]
    first, context, *_ = sample["completion"]
    assert (first["policy"], first["text"], first["logprobs"]) == ("0.3", "ab", [-0.5, -0.5])
    assert (context["context"], context["logprobs"], len(context["ids"])) == (True, None, 4)


def test_samples_of_a_worker_that_was_found_unsound_afterwards_are_marked(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    for version in (4, 5, 6):
        of_step = [trajectory_of(version, sample, completion=TOOL, worker=f"w-{sample}") for sample in range(2)]
        writer.step(Policy(0, version), of_step)
    journal = AuditJournal.open(writer.run.audit)
    journal.append(DoubtEntry(worker_id="w-1", since=Policy(0, 3), policy=Policy(0, 5), why="they differ"), 0.0)
    journal.append(DoubtEntry(worker_id="w-0", since=Policy(0, 4), policy=Policy(0, 5), why="drawn otherwise"), 0.0)
    journal.flush()
    journal.close()
    gallery = gallery_of(writer.run, SampleQuery(order=SampleOrder.BEST))
    marked = [(sample.step, sample.sample, sample.doubt) for sample in gallery.samples if sample.doubt]
    assert sorted(marked) == [(4, 1, "they differ"), (5, 1, "they differ")], "their tokens are of version 3 and newer"
    assert (
        samples_text(gallery).count("IN DOUBT: this worker's samples were found not to be of the weights: they d") == 2
    )
    assert samples_page(gallery).count("found not to be of the weights: they differ") == 2


def test_pages_are_chosen_by_step_region_group_and_reward(run: RunDirectory) -> None:
    def found(**query: object) -> list[tuple[int, int]]:
        samples = gallery_of(run, SampleQuery(**query)).samples  # type: ignore[arg-type]
        return [(sample.step, sample.sample) for sample in samples]

    assert found() == [(3, 0), (3, 1)]
    assert found(step=1) == [(1, 0), (1, 1)]
    assert found(order=SampleOrder.WORST, size=2) == [(1, 0), (1, 1)]
    assert found(order=SampleOrder.BEST, size=3, page=2) == [(2, 0), (1, 1), (1, 0)]
    assert found(order=SampleOrder.BEST, region="eu-west") == [(3, 0), (2, 0), (1, 0)]
    assert found(group=20) == [(2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (SampleQuery(step=9), "the run has steps 1 to 3 and samples from eu-west, us-east"),
        (SampleQuery(page=2), "there is no page 2: 2 samples match, 8 a page"),
        (SampleQuery(region="mars"), "no sample matches"),
    ],
)
def test_a_query_without_a_match_says_what_there_is(run: RunDirectory, query: SampleQuery, said: str) -> None:
    with pytest.raises(NotFound, match=said):
        gallery_of(run, query)


def test_without_a_tokenizer_ids_are_shown_and_it_is_said(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run", with_tokenizer=False)
    writer.step(Policy(0, 1), [trajectory_of(1, 0)])
    gallery = gallery_of(writer.run, SampleQuery())
    assert "no tokenizer.json" in gallery.no_text
    assert gallery.samples[0].prompt is None
    assert [piece.text for piece in gallery.samples[0].pieces] == [None]


def test_a_damaged_tokenizer_costs_the_text_alone(run: RunDirectory) -> None:
    (run.samples / "tokenizer.json").write_text("{")
    gallery = gallery_of(run, SampleQuery())
    assert "tokenizer.json cannot be used" in gallery.no_text
    assert gallery.samples[0].trajectory is not None


def test_the_tokenizer_of_the_final_model_does_too(run: RunDirectory) -> None:
    run.final.mkdir()
    (run.samples / "tokenizer.json").rename(run.final / "tokenizer.json")
    assert gallery_of(run, SampleQuery()).samples[0].prompt == "<bos>1+1<answer>"


def test_a_sample_whose_frame_is_damaged_is_shown_without_it(run: RunDirectory) -> None:
    with contextlib.closing(sqlite3.connect(run.trajectories / DATABASE, isolation_level=None)) as connection:
        connection.execute("UPDATE records SET data = zeroblob(9) WHERE key = (SELECT max(key) FROM records)")
    samples = gallery_of(run, SampleQuery()).samples
    assert [sample.trajectory for sample in samples] == [None, None]
    assert "restore the file" in samples[0].problem
    assert gallery_of(run, SampleQuery(step=2)).samples[0].trajectory is not None


def test_frames_of_another_run_are_not_taken_for_the_samples(run: RunDirectory, tmp_path: Path) -> None:
    other = SampleWriter(tmp_path / "other")
    for version in (1, 2, 3):
        other.step(Policy(0, version), [trajectory_of(99, number) for number in (0, 1)])
    other.store.close()
    shutil.rmtree(run.trajectories)
    shutil.copytree(other.run.trajectories, run.trajectories)
    assert "from the same copy of the run" in gallery_of(run, SampleQuery()).samples[0].problem


def test_a_report_shows_best_worst_and_others_of_the_newest_step_once_each(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "run")
    writer.step(Policy(0, 1), [trajectory_of(1, 0, reward=9.0)])
    writer.step(Policy(0, 2), [trajectory_of(2, number, reward=number / 10) for number in range(10)])
    first, again = reported_gallery(writer.run), reported_gallery(writer.run)
    assert first is not None
    assert again is not None
    numbers = [sample.sample for sample in first.samples]
    assert numbers[:4] == [9, 8, 0, 1]
    assert len(set(numbers)) == 6
    assert [sample.sample for sample in again.samples] == numbers


def test_a_report_of_a_run_without_samples_has_none(tmp_path: Path) -> None:
    assert reported_gallery(RunDirectory(tmp_path)) is None
