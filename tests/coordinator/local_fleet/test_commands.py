"""The regions of `periplus up`, and what its command line refuses before anything starts."""

from pathlib import Path

import pytest

from coordinator.local_fleet.commands import emulated_regions, plain_regions
from periplus.__main__ import run as periplus
from periplus.errors import ConfigError
from periplus.wan import grid


def test_regions_are_counted_or_named() -> None:
    assert plain_regions("") == ("local",)
    assert plain_regions("1") == ("local",)
    assert plain_regions("3") == ("local-1", "local-2", "local-3")
    assert plain_regions("east, west") == ("east", "west")


def test_regions_of_a_grid_begin_with_its_usual_ones() -> None:
    usual = grid.DEFAULT_REGIONS["intercontinental"]
    assert emulated_regions("", "intercontinental") == usual
    assert emulated_regions("2", "intercontinental") == usual[:2]
    five = emulated_regions("5", "intercontinental")
    assert (five[:3], len(set(five))) == (usual, 5)
    assert emulated_regions("aws:us-east-1,azure:westeurope", "intercontinental") == usual[:2]


@pytest.mark.parametrize(("text", "wan"), [("0", ""), ("65", ""), ("0", "off"), (",", ""), ("a b", ""), ("x,x", "")])
def test_regions_that_cannot_be_are_refused(text: str, wan: str) -> None:
    with pytest.raises(ConfigError, match="region"):
        emulated_regions(text, wan) if wan else plain_regions(text)


def test_a_region_that_the_grid_lacks_ends_the_command_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert periplus(["up", "--dir", str(tmp_path), "--grid", "intercontinental", "--regions", "mars"]) == 2
    assert "'mars' is not in the network" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was started"
