"""Records of publications as bytes on disk."""

import pytest

from periplus.errors import CorruptSpool
from region_agent.weights.disk.convert import record_from_bytes, record_to_bytes
from tests.support.publication.versions import Versions, small_states


def test_every_record_of_a_publication_is_read_as_it_was_written() -> None:
    made = Versions(small_states(2, num_elements=50))
    for record in (*made.anchor(0).records(), *made.derived_delta(0, 1).records()):
        assert record_from_bytes(record_to_bytes(record)) == record


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\x0a\x02\x08"])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptSpool):
        record_from_bytes(data)
