import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainer.learning.micro_batches import MicroBatchLimits, micro_batches, micro_batches_of_rank
from trainer.learning.ranks import Ranks

lengths = st.lists(st.integers(1, 60), max_size=40)
limits = st.builds(
    lambda rows, tokens: MicroBatchLimits(rows=rows, tokens=tokens), st.integers(1, 9), st.integers(1, 99)
)


def test_rows_are_cut_by_rows_and_by_tokens_longest_first() -> None:
    sizes = [3, 9, 3, 5, 1]
    assert micro_batches(range(5), sizes, MicroBatchLimits(rows=2, tokens=100)) == [(1, 3), (0, 2), (4,)]
    assert micro_batches(range(5), sizes, MicroBatchLimits(rows=9, tokens=8)) == [(1,), (3, 0), (2, 4)]
    assert micro_batches([4, 1], sizes, MicroBatchLimits(rows=9, tokens=100)) == [(1, 4)]
    assert micro_batches([], sizes, MicroBatchLimits(rows=2, tokens=8)) == []


@given(lengths, limits, st.randoms())
def test_each_row_is_in_one_micro_batch_that_keeps_the_limits(
    sizes: list[int], at: MicroBatchLimits, random: st.DataObject
) -> None:
    rows = list(range(len(sizes)))
    parts = micro_batches(rows, sizes, at)
    assert sorted(row for part in parts for row in part) == rows
    for part in parts:
        assert 1 <= len(part) <= at.rows
        assert len(part) == 1 or sum(sizes[row] for row in part) <= at.tokens
    # No two neighbours would have fitted into one.
    for left, right in itertools.pairwise(parts):
        assert len(left) == at.rows or sum(sizes[row] for row in left) + sizes[right[0]] > at.tokens


@given(lengths, limits, st.integers(1, 5))
def test_ranks_share_the_rows_and_make_the_same_number_of_passes(
    sizes: list[int], at: MicroBatchLimits, num_ranks: int
) -> None:
    rows = list(range(len(sizes)))
    shares = [micro_batches_of_rank(rows, sizes, at, Ranks(rank=rank, size=num_ranks)) for rank in range(num_ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for part in share for row in part) == rows
    # Some rank has no empty one: nobody waits for nothing.
    assert not rows or any(all(share) for share in shares)
