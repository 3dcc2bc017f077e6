from dataclasses import replace

import pytest

from periplus.codec import trajectory as trajectory_codec
from tests.periplus.values.test_trajectory import GOOD
from trainer.intake import tally as tally_module
from trainer.intake.tally import Tally


def test_the_size_as_json_is_measured_for_the_first_tokens_and_extrapolated_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tally_module, "JSON_TOKENS", 2 * len(GOOD.completion_ids))
    tally = Tally()
    longer = replace(GOOD, metadata='{"turns": 200000}')
    measured = [tally.as_json([GOOD]), tally.as_json([longer])]
    assert measured == [trajectory_codec.json_bytes([GOOD]), trajectory_codec.json_bytes([longer])]
    assert tally.as_json([longer, longer]) == sum(measured), "the mean of what was measured, by tokens"
