import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainer.learning.micro_batches import MicroBatchLimits, RowSize, micro_batches, micro_batches_of_rank
from trainer.learning.ranks import Ranks

rows_of_prompts = st.lists(
    st.builds(lambda prompt, size: RowSize(prompt, 3 + prompt, size), st.integers(0, 9), st.integers(1, 60)),
    max_size=40,
)
limits = st.builds(
    lambda rows, tokens: MicroBatchLimits(rows=rows, tokens=tokens), st.integers(1, 9), st.integers(1, 99)
)


def test_rows_are_cut_by_rows_and_by_tokens_longest_first() -> None:
    sizes = [RowSize(number, 1, length - 1) for number, length in enumerate((3, 9, 3, 5, 1))]
    assert micro_batches(range(5), sizes, MicroBatchLimits(rows=2, tokens=100)) == [(1, 3), (0, 2), (4,)]
    assert micro_batches(range(5), sizes, MicroBatchLimits(rows=9, tokens=8)) == [(1,), (3, 0), (2, 4)]
    assert micro_batches([4, 1], sizes, MicroBatchLimits(rows=9, tokens=100)) == [(1, 4)]
    assert micro_batches([], sizes, MicroBatchLimits(rows=2, tokens=8)) == []


def test_rows_of_a_prompt_stay_together_and_count_it_once() -> None:
    sizes = [RowSize(0, 10, 5), RowSize(1, 10, 9), RowSize(0, 10, 7), RowSize(1, 10, 1)]
    assert micro_batches(range(4), sizes, MicroBatchLimits(rows=9, tokens=42)) == [(1, 3, 2, 0)]
    assert micro_batches(range(4), sizes, MicroBatchLimits(rows=9, tokens=41)) == [(1, 3, 2), (0,)]
    assert micro_batches(range(4), sizes, MicroBatchLimits(rows=9, tokens=19)) == [(1,), (3,), (2,), (0,)]
    # Attention has the long prompt three times in a pass of 33 tokens.
    sizes = [RowSize(0, 30, 1), RowSize(0, 30, 1), RowSize(0, 30, 1)]
    assert micro_batches(range(3), sizes, MicroBatchLimits(rows=9, tokens=47)) == [(0, 1, 2)]
    assert micro_batches(range(3), sizes, MicroBatchLimits(rows=9, tokens=46)) == [(0, 1), (2,)]


def fits(part: tuple[int, ...], sizes: list[RowSize], at: MicroBatchLimits) -> bool:
    prompts = {sizes[row].prompt: sizes[row].num_prompt for row in part}
    num_tokens = sum(prompts.values()) + sum(sizes[row].num_completion for row in part)
    return num_tokens <= at.tokens and sum(sizes[row].num_tokens for row in part) <= 2 * at.tokens


@given(rows_of_prompts, limits)
def test_each_row_is_in_one_micro_batch_that_keeps_the_limits(sizes: list[RowSize], at: MicroBatchLimits) -> None:
    rows = list(range(len(sizes)))
    parts = micro_batches(rows, sizes, at)
    assert sorted(row for part in parts for row in part) == rows
    for part in parts:
        assert 1 <= len(part) <= at.rows
        assert len(part) == 1 or fits(part, sizes, at)
    # No two neighbours would have fitted into one.
    for left, right in itertools.pairwise(parts):
        assert len(left) == at.rows or not fits((*left, right[0]), sizes, at)


@given(rows_of_prompts, limits, st.integers(1, 5))
def test_ranks_share_the_rows_and_make_the_same_number_of_passes(
    sizes: list[RowSize], at: MicroBatchLimits, num_ranks: int
) -> None:
    rows = list(range(len(sizes)))
    shares = [micro_batches_of_rank(rows, sizes, at, Ranks(rank=rank, size=num_ranks)) for rank in range(num_ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for part in share for row in part) == rows
    # Some rank has no empty one: nobody waits for nothing.
    assert not rows or any(all(share) for share in shares)


def test_only_ranks_of_one_copy_make_as_many_passes() -> None:
    sizes = [RowSize(prompt=row, num_prompt=2, num_completion=3) for row in range(20)]
    at, shares = MicroBatchLimits(rows=2, tokens=1000), (0.6, 0.2, 0.2, 0.0)
    found = {
        shards: [
            len(micro_batches_of_rank(range(20), sizes, at, Ranks(rank=rank, size=4, shares=shares, shards=shards)))
            for rank in range(4)
        ]
        for shards in (None, 2, 1)
    }
    assert found == {None: [6, 6, 6, 6], 2: [6, 6, 2, 2], 1: [6, 2, 2, 1]}, "each rank has a pass at least"


@given(st.integers(8, 64), st.integers(1, 8), st.sampled_from([(0.5, 0.5), (0.8, 0.2), (2 / 3, 1 / 3)]))
def test_a_rank_with_fewer_rows_spreads_them_over_all_passes(
    num_rows: int, most: int, shares: tuple[float, float]
) -> None:
    sizes = [RowSize(prompt=row, num_prompt=2, num_completion=3) for row in range(num_rows)]
    at = MicroBatchLimits(rows=most, tokens=1000)
    many, few = (
        micro_batches_of_rank(range(num_rows), sizes, at, Ranks(rank=rank, size=2, shares=shares)) for rank in (0, 1)
    )
    assert len(many) == len(few)
    rows = [len(part) for part in few]
    # No pass has much more than its part of the slower rank's rows.
    assert max(rows) <= sum(rows) / len(rows) * 1.25 + 1
