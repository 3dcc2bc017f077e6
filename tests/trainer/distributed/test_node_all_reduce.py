"""One rank a node of an all-reduce (the whole program runs in tests/region_agent/launchers/test_fabric.py)."""

import pytest

from trainer.distributed.node_all_reduce import interface_to


def test_a_rank_sends_from_the_interface_on_which_it_meets_the_others() -> None:
    assert interface_to("127.0.0.1") == "lo"
    with pytest.raises(OSError):
        interface_to("no.such.host.invalid")
