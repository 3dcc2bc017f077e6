"""Samples as text for a terminal: whatever a model writes stays behind its bar."""

import json
from pathlib import Path

import pytest

from periplus.job.samples.gallery import gallery_of
from periplus.job.samples.selection import SampleQuery
from periplus.values.policy import Policy
from periplus.view.terminal.samples_text import SHOWN_CHARACTERS, samples_text
from tests.support.trainer.kept_samples import SampleWriter, trajectory_of


def text_of(root: Path, *, with_tokenizer: bool = True, **sample: object) -> str:
    writer = SampleWriter(root, with_tokenizer=with_tokenizer)
    writer.step(Policy(0, 3), [trajectory_of(1, 0, **sample)])  # type: ignore[arg-type]
    return samples_text(gallery_of(writer.run, SampleQuery()))


def test_a_sample_is_its_figures_its_prompt_and_its_pieces(tmp_path: Path) -> None:
    metadata = json.dumps({"reward_parts": {"exact": 1.0, "format": 0.25}})
    completion = (("ab", 1), ("tool", None), ("c", 2))
    text = text_of(tmp_path / "run", completion=completion, metadata=metadata, worker="w-us")
    assert text.splitlines() == [
        "1 samples match, of 1 that were trained on; page 1 of 1",
        "",
        "step 3  group 1  sample 0  us-east  reward 1  advantage +0.5",
        "  reward parts: exact 1, format 0.25",
        "  7 tokens, the oldest 1 version behind; log-probabilities differ from the engine's by 0.25 nats in the mean, "
        "1.5 at most",
        "  ended by eos after 0.5 s, temperature 0.7, worker w-us",
        "  prompt, 5 tokens:",
        "  | <bos>1+1<answer>",
        "  policy 0.1, 1 version behind, 2 tokens:",
        "  | ab",
        "  context, 4 tokens that no policy sampled:",
        "  | tool",
        "  policy 0.2, 0 versions behind, 1 token:",
        "  | c",
    ]


@pytest.mark.parametrize("hostile", ["\nstep 3  group 9", "a\n  policy 0.1, 5 tokens:"])
def test_no_line_of_a_completion_passes_for_one_of_ours(tmp_path: Path, hostile: str) -> None:
    text = text_of(tmp_path / "run", completion=((hostile, 1),))
    lines = text.splitlines()
    ours = [line for line in lines if not line.startswith("  | ")]
    assert len([line for line in ours if line.startswith("step")]) == 1
    assert len([line for line in ours if line.startswith("  policy")]) == 1
    assert text.replace("\n", "").isprintable()


def test_names_from_outside_cannot_command_the_terminal(tmp_path: Path) -> None:
    metadata = json.dumps({"reward_parts": {"\x1b[2J": 1.0}})
    text = text_of(tmp_path / "run", metadata=metadata, worker="w\x1b]0;x\x07")
    assert "\x1b" not in text
    assert "\\x1b[2J 1" in text


def test_a_long_completion_is_shortened(tmp_path: Path) -> None:
    text = text_of(tmp_path / "run", completion=(("a" * (SHOWN_CHARACTERS + 500), 1),))
    assert "[500 characters are not shown]" in text


def test_without_a_tokenizer_ids_are_printed_and_it_is_said(tmp_path: Path) -> None:
    text = text_of(tmp_path / "run", with_tokenizer=False, completion=(("a" * 70, 1),))
    assert "no tokenizer.json" in text.splitlines()[1]
    assert " ... 6 more" in text
