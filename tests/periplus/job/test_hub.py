"""Names of the Hub against a cache on disk as huggingface_hub lays it out."""

from pathlib import Path

import huggingface_hub.constants
import pytest

from periplus.errors import ConfigError
from periplus.job.hub import HubName, cached_folder, hub_name, located

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one data set and one model, both at one commit of the branch main."""
    root = tmp_path / "hub"
    for kind, repo in (("datasets", "org--maths"), ("models", "org--tiny")):
        folder = root / f"{kind}--{repo}"
        (folder / "snapshots" / COMMIT).mkdir(parents=True)
        (folder / "snapshots" / COMMIT / "train.jsonl").write_text("{}")
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.chdir(tmp_path)
    return root


def test_a_name_is_found_in_the_cache_and_recorded_with_its_commit(cache: Path) -> None:
    assert cached_folder(HubName(kind="dataset", repo="org/maths"), "data.path").parts[-3:] == (
        "datasets--org--maths",
        "snapshots",
        COMMIT,
    )
    assert located("org/tiny", None, "model", "model.path") == {"path": "hf://org/tiny", "revision": COMMIT}
    data = located("hf://datasets/org/maths/train.jsonl", "main", "dataset", "data.path")
    assert data == {"path": "hf://datasets/org/maths/train.jsonl", "revision": COMMIT}
    assert located(data["path"], data["revision"], "dataset", "data.path") == data, "what was recorded stays"
    assert located("hf://org/tiny@main", None, "model", "model.path")["revision"] == COMMIT


@pytest.mark.parametrize(("name", "revision"), [("org/absent", None), ("org/maths", "v2")])
def test_what_the_cache_lacks_is_refused_with_the_command_that_downloads_it(
    cache: Path, name: str, revision: str | None
) -> None:
    found = hub_name(name, revision, "dataset", "data.path")
    assert found is not None
    with pytest.raises(ConfigError, match="nor in its Hugging Face cache") as caught:
        cached_folder(found, "data.path")
    flag = f" --revision {revision}" if revision else ""
    assert f"`hf download {name}{flag} --repo-type dataset`" in str(caught.value)
    assert located(name, revision, "dataset", "data.path") == {"path": name}


def test_a_path_of_this_machine_wins_and_becomes_absolute(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "maths").write_text("{}")
    assert located("org/maths", None, "dataset", "data.path") == {"path": str(tmp_path / "org" / "maths")}
    assert hub_name("./org/absent", None, "dataset", "data.path") is None
    with pytest.raises(ConfigError, match=r"data\.revision is v2, but data\.path 'org/maths' is not a name"):
        hub_name("org/maths", "v2", "dataset", "data.path")


@pytest.mark.parametrize(
    ("path", "kind", "why"),
    [
        ("hf://org", "model", "is not an address"),
        ("hf://datasets/org/maths", "model", "names a data set; a model is needed"),
        ("hf://org/tiny", "dataset", "names a model; a data set is needed here, hf://datasets/"),
        ("hf://org/tiny/config.json", "model", "names a file of a model"),
        ("hf://org/ti ny", "model", "is not an address"),
    ],
)
def test_an_address_that_names_something_else_is_refused(path: str, kind: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        hub_name(path, None, "model" if kind == "model" else "dataset", "model.path")


def test_two_revisions_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"names the revision v1, but model\.revision is v2"):
        hub_name("hf://org/tiny@v1", "v2", "model", "model.path")
