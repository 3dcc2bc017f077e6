"""Series are named, kept and made once; both ways to go on begin where they say."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.weight_deltas import gsm8k, series
from bench.weight_deltas.series import Series, Sources, dense_series, sparse_series
from bench.weight_deltas.states import density, widened
from trainer.publishing.publish import bf16_state

SMALL = gsm8k.Size(hidden=32, intermediate=32, layers=1, heads=2, kv_heads=1)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A file of GSM8K's form."""
    rows = [
        {"question": "Go on: " + " ".join(str(n * k % 997) for k in range(30)), "answer": f"#### {n * 30 % 997}"}
        for n in range(600)
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def trained(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A small model, trained for a moment, where series look for the large one."""
    monkeypatch.setattr(gsm8k, "COOLDOWN_STEPS", 2)
    monkeypatch.setattr(gsm8k, "Size", lambda: SMALL)
    sources = Sources(folder=tmp_path / "cache", gsm8k=texts, limit_s=0.2)
    gsm8k.trained(sources.folder / series.GSM8K, texts, seed=0, limit_s=0.2, say=lambda _: None)
    return sources


def test_names_tell_the_rate_and_how_it_goes_on() -> None:
    names = [one.name for one in (*sparse_series(), *dense_series()) if one.model == series.GSM8K]
    assert names == [
        "lr1e-6",
        "lr1e-6-resumed",
        "lr3e-6",
        "lr3e-6-resumed",
        "lr1e-4-resumed",
        "lr3e-4-resumed",
        "lr1e-3-resumed",
    ]


def test_every_version_of_every_delta_is_kept() -> None:
    for one in (*sparse_series(), *dense_series()):
        assert {version for pair in one.singles for version in pair} <= set(one.kept)
        for first, last in one.folds:
            assert last - first == series.FOLD
            assert set(range(first, last + 1)) <= set(one.kept)


def test_a_series_is_made_once(trained: Sources) -> None:
    one = Series(model=series.GSM8K, rate=1e-3, resumed=True, steps=5)
    said: list[str] = []
    for _ in range(2):
        series.make(trained, (one,), said.append)
    assert said == ["making gsm8k-21m/lr1e-3-resumed"]
    versions = [series.read(trained.folder, one, version) for version in one.kept]
    assert one.kept == (2, 3, 4, 5)
    assert all(0 < density(old, new) < 1 for old, new in pairwise(versions))


def test_anew_begins_with_what_was_published(trained: Sources) -> None:
    found = gsm8k.trained(trained.folder / series.GSM8K, trained.gsm8k, seed=0, limit_s=1, say=print)
    published = bf16_state(found.model)
    going = series._continuation(trained, Series(model=series.GSM8K, rate=1e-6, resumed=False, steps=2), print)
    assert bf16_state(going.model) == published
    for name, parameter in going.model.named_parameters():
        masters = widened(published)[name].data.view(np.float32)
        assert np.array_equal(parameter.detach().numpy().reshape(-1), masters)


def test_resumed_begins_with_the_masters_and_the_optimizer(trained: Sources) -> None:
    found = gsm8k.trained(trained.folder / series.GSM8K, trained.gsm8k, seed=0, limit_s=1, say=print)
    going = series._continuation(trained, Series(model=series.GSM8K, rate=1e-6, resumed=True, steps=2), print)
    for parameter, stored in zip(going.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(parameter, stored)
    assert isinstance(going, series.Gsm8k)
    assert going.optimizer.state_dict()["state"][0]["step"] == found.about["steps"] + 2


def test_an_interrupted_training_goes_on_as_if_it_had_not_been(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gsm8k, "EVAL_EVERY_STEPS", 2)
    monkeypatch.setattr(gsm8k, "COOLDOWN_STEPS", 1)
    monkeypatch.setattr(gsm8k, "is_flat", lambda losses: len(losses) == 3)
    read = gsm8k.read_texts(texts)

    def training(name: str) -> gsm8k._Training:
        model = gsm8k.new_model(SMALL, 0)
        return gsm8k._Training(model=model, optimizer=gsm8k.new_optimizer(model), path=tmp_path / name)

    def interrupted(text: str) -> None:
        if "step 4" in text:
            raise KeyboardInterrupt

    at_once, in_two = training("a"), training("b")
    gsm8k._train(at_once, read, seed=0, limit_s=1e9, say=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        gsm8k._train(in_two, read, seed=0, limit_s=1e9, say=interrupted)
    in_two = training("b")
    outcome = gsm8k._train(in_two, read, seed=0, limit_s=1e9, say=lambda _: None)
    assert (outcome.ended_by, outcome.steps, len(outcome.held_out_losses)) == ("flat", 6, 3)
    assert bf16_state(in_two.model) == bf16_state(at_once.model)


def test_flat_is_less_than_a_percent_over_the_last_steps() -> None:
    assert not gsm8k.is_flat([4.0, 3.0, 2.0, 1.0])
    assert not gsm8k.is_flat([4.0, 3.0, 2.0, 1.99, 1.98, 1.97, 1.96])
    assert gsm8k.is_flat([4.0, 3.0, 2.0, 1.999, 1.999, 1.995, 1.99])
    assert gsm8k.is_flat([3.0, 2.0, 2.1, 2.2, 2.3, 2.4])


def test_without_the_texts_it_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--gsm8k"):
        gsm8k.read_texts(tmp_path / "nowhere.jsonl")
