import pytest
import torch

from tests.support.trainer.losses import counts_of
from trainer.learning.losses.aggregate import Aggregation, StepCounts, aggregate

VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 7.0, 7.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.TOKEN_MEAN, 16 / 4),
        (Aggregation.SEQUENCE_MEAN, (2.0 + 10.0) / 2),
        (Aggregation.CONSTANT, 16 / (2 * 8)),
    ],
)
def test_each_mean_worked_out_by_hand(aggregation: Aggregation, expected: float) -> None:
    assert float(aggregate(VALUES, MASK, aggregation, counts_of(MASK), constant_tokens=8)) == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_the_shares_of_micro_batches_add_up_to_the_mean_of_the_step(aggregation: Aggregation) -> None:
    counts = counts_of(MASK)
    whole = aggregate(VALUES, MASK, aggregation, counts, constant_tokens=8)
    shares = [
        aggregate(VALUES[[row]], MASK[[row]], aggregation, counts, constant_tokens=8) for row in range(len(VALUES))
    ]
    torch.testing.assert_close(whole, shares[0] + shares[1])


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_a_sample_without_tokens_adds_nothing_and_breaks_nothing(aggregation: Aggregation) -> None:
    mask = torch.tensor([[True, True, True], [False, False, False]])
    got = aggregate(VALUES, mask, aggregation, counts_of(mask), constant_tokens=1)
    assert float(got) == pytest.approx({"token_mean": 2.0, "sequence_mean": 1.0, "constant": 3.0}[aggregation])


@pytest.mark.parametrize(
    "counts", [StepCounts(num_tokens=0, num_sequences=1), StepCounts(num_tokens=1, num_sequences=0)]
)
def test_an_empty_step_is_refused(counts: StepCounts) -> None:
    with pytest.raises(ValueError, match="no mean exists"):
        aggregate(VALUES, MASK, Aggregation.TOKEN_MEAN, counts, constant_tokens=1)
