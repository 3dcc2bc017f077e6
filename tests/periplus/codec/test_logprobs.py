import math

import numpy as np
import numpy.typing as npt
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from periplus.codec.logprobs import MIN_NEAR_SHARE, NUM_NEAR, Sections, join, near_bits, section_bytes, split
from periplus.errors import CorruptFrame

bits = npst.arrays(np.uint32, st.integers(0, 40))
near = st.lists(st.integers(0, NUM_NEAR - 1), max_size=40).map(lambda places: near_bits()[places])


def there_and_back(logprobs: npt.NDArray[np.float32]) -> int:
    """Split and join log-probabilities, which must come back, and return how many are stored as near."""
    num_near, sections = split(logprobs)
    assert tuple(map(len, sections)) == section_bytes(len(logprobs), num_near)
    back = join(sections, len(logprobs), num_near)
    assert back.view(np.uint32).tolist() == logprobs.view(np.uint32).tolist()
    return num_near


@given(bits)
def test_any_log_probabilities_come_back_bit_by_bit(column: npt.NDArray[np.uint32]) -> None:
    there_and_back(column.view(np.float32))


@given(near, bits, st.randoms(use_true_random=False))
def test_near_numbers_among_others_come_back(
    listed: npt.NDArray[np.uint32], others: npt.NDArray[np.uint32], random: object
) -> None:
    column = np.concatenate([listed, others])
    np.random.default_rng(len(column)).shuffle(column)
    num_near = there_and_back(column.view(np.float32))
    assert num_near >= len(listed) or num_near == 0


def test_what_a_log_softmax_gives_to_likely_tokens_is_on_the_list() -> None:
    """The list is right if a correctly rounded logarithm agrees with it nearly always."""
    exact = np.array([-math.log1p(k * 2.0**-23) for k in range(NUM_NEAR)]).astype(np.float32) + np.float32(0)
    assert there_and_back(exact) > 0.99 * NUM_NEAR


def test_the_list_of_near_numbers_is_frozen() -> None:
    assert blake3(near_bits().astype("<u4").tobytes()).hexdigest()[:32] == "b8c91ed6de26392247c3e3d18a1894a6"


def test_a_column_with_few_near_numbers_is_not_taken_apart() -> None:
    column = np.full(100, -2.5, np.float32)
    column[: int(100 * MIN_NEAR_SHARE)] = near_bits().view(np.float32)[8]
    assert split(column)[0] == 0
    column[:50] = near_bits().view(np.float32)[8]
    assert split(column)[0] == 50


def test_bits_that_tell_another_number_than_the_counts_are_refused() -> None:
    num_near, sections = split(np.zeros(8, np.float32))
    assert num_near == 8
    forged = Sections(b"\x7f", b"\x80", b"\0" * 3, sections.near_high[:7], sections.near_low[:7])
    assert len(join(forged, 8, 7)) == 8
    with pytest.raises(CorruptFrame, match="8 bits say"):
        join(forged._replace(near=b"\xff"), 8, 7)
