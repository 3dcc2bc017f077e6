"""The digest of weights that several real ranks hold, against that of the gathered state."""

import numpy as np
import pytest
import torch

from periplus.values.digest import BLOCK_BYTES, state_digest
from tests.support.cases.tiers import rest_is_slow
from tests.support.trainer.gloo import run_on_ranks
from tests.support.trainer.sharded import OddModel, divided
from trainer.distributed.collectives import HostCollectives
from trainer.publishing.local_rows import parameter_rows
from trainer.publishing.publish import bf16_state
from trainer.publishing.shard_digest import rounded_digest, rounded_digests

LARGE = {"blocks": (2 * BLOCK_BYTES // 256, 128), "straddling": (1000, 1701), "tall": (3 * BLOCK_BYTES // 2 + 5,)}
"""Shapes whose shards hold whole blocks and no end, whole blocks and both ends, and rows of one element."""


def model() -> OddModel:
    found = OddModel(3)
    for number, (name, shape) in enumerate(LARGE.items()):
        values = np.random.default_rng(number).standard_normal(shape, np.float32)
        found.register_parameter(name, torch.nn.Parameter(torch.from_numpy(values)))
    return found


def digest_on_ranks() -> bytes | None:
    ranks = HostCollectives.over()
    found = rounded_digests(parameter_rows(divided(model()), ranks.rank), ranks)
    return rounded_digest(found) if ranks.rank == 0 else None if not found else b"too much"


def test_a_single_process_has_the_digest_of_the_published_state() -> None:
    whole = model()
    assert rounded_digest(rounded_digests(parameter_rows(whole, 0), HostCollectives())) == state_digest(
        bf16_state(whole)
    )


@pytest.mark.processes
@pytest.mark.parametrize("size", rest_is_slow([3, 2, 4], quick=0))
def test_the_digest_does_not_depend_on_the_number_of_ranks(size: int) -> None:
    expected = state_digest(bf16_state(model()))
    assert run_on_ranks(digest_on_ranks, size) == [expected, *[None] * (size - 1)]
