"""Packing as a function of lengths, and packed passes against dense ones."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.learning.forward.packing import PackedSequences, TokenSequence, pack

CPU = torch.device("cpu")
pairs = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12)


def sequences(sizes: list[tuple[int, int]]) -> list[TokenSequence]:
    """Return sequences of different token ids with these numbers of prompt and completion tokens."""
    made, next_id = [], 1
    for num_prompt, num_completion in sizes:
        ids = np.arange(next_id, next_id + num_prompt + num_completion, dtype=np.int32)
        made.append(TokenSequence(prompt_ids=ids[:num_prompt], completion_ids=ids[num_prompt:]))
        next_id += len(ids)
    return made


def packed(sizes: list[tuple[int, int]]) -> PackedSequences:
    return pack(sequences(sizes), 9, CPU)


@given(pairs)
def test_each_token_is_there_once_and_each_completion_token_finds_its_cell(sizes: list[tuple[int, int]]) -> None:
    made, got = sequences(sizes), packed(sizes)
    ids = got.ids_1N[0]
    assert sorted(ids.tolist()) == list(range(1, sum(map(sum, sizes)) + 1))
    cells = torch.zeros(len(sizes) * 9, dtype=torch.long).index_copy(0, got.cells_M, got.targets_M)
    for row, each in enumerate(made):
        assert cells.view(-1, 9)[row, : len(each.completion_ids)].tolist() == each.completion_ids.tolist()
    # The token before each completion token has the id that is smaller by one, in the same sequence.
    assert ids[got.before_M].tolist() == (got.targets_M - 1).tolist()
    states = torch.zeros(len(sizes) * 10, dtype=torch.long).index_copy(0, got.cells_K, ids[got.states_K])
    for row, each in enumerate(made):
        expected = [int(each.prompt_ids[-1]), *each.completion_ids.tolist()]
        assert states.view(-1, 10)[row, : len(expected)].tolist() == expected


@given(pairs)
def test_positions_start_again_in_each_sequence(sizes: list[tuple[int, int]]) -> None:
    got = packed(sizes)
    starts = got.starts.tolist()
    lengths = sorted((sum(pair) for pair in sizes), reverse=True)
    assert [after - before for before, after in itertools.pairwise(starts)] == lengths
    assert got.positions_1N[0].tolist() == [position for length in lengths for position in range(length)]
    assert got.longest == lengths[0]


@given(pairs)
def test_blocks_cover_the_tokens_and_are_at_least_half_full(sizes: list[tuple[int, int]]) -> None:
    got = packed(sizes)
    assert [block.start for block in got.blocks] == [0, *(block.stop for block in got.blocks[:-1])]
    assert got.blocks[-1].stop == got.ids_1N.shape[1]
    for block in got.blocks:
        num_tokens, num_cells = block.stop - block.start, block.num_rows * block.num_columns
        assert num_cells <= 2 * num_tokens
        if block.cell_of_place is None or block.place_of_cell is None:
            assert num_cells == num_tokens
            continue
        assert block.place_of_cell[block.cell_of_place].tolist() == list(range(num_tokens))
        # A sequence begins in the first column of a row, and ends before the next.
        positions = got.positions_1N[0, block.start : block.stop]
        assert (block.cell_of_place % block.num_columns).tolist() == positions.tolist()


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 30))
def test_equal_prompts_are_there_once_and_in_the_places_of_each_sequence(groups: list[list[int]], length: int) -> None:
    rows: list[TokenSequence] = []
    for number, completions in enumerate(groups):
        prompt = np.arange(length, dtype=np.int32) + 1000 * (number + 1)
        rows += [
            TokenSequence(prompt_ids=prompt, completion_ids=np.arange(size, dtype=np.int32) + 100 * len(rows) + 1)
            for size in completions
        ]
    got = pack(rows, 9, CPU)
    ids = got.ids_1N[0]
    assert len(ids) == len(groups) * length + sum(map(sum, groups))
    if got.shared is None:
        assert max(map(len, groups)) == 1
        return
    # In the places, whole sequences follow each other, longest first.
    by_length = sorted(rows, key=lambda each: -each.num_tokens)
    whole = [token for each in by_length for token in (*each.prompt_ids.tolist(), *each.completion_ids.tolist())]
    assert ids[got.shared.token_of_place].tolist() == whole
    assert got.starts.tolist()[-1] == len(whole)
    assert got.shared.token_of_place[got.shared.place_of_token].tolist() == list(range(len(ids)))
    # Each token that has several places is in one pair, with all of them.
    copied: dict[int, list[int]] = {}
    for tokens, places in got.shared.copies:
        copied |= dict(zip(tokens.tolist(), places.view(len(tokens), -1).tolist(), strict=True))
    everywhere: dict[int, list[int]] = {}
    for place, token in enumerate(got.shared.token_of_place.tolist()):
        everywhere.setdefault(token, []).append(place)
    assert copied == {token: places for token, places in everywhere.items() if len(places) > 1}
    # What predicts a completion's first token is its own prompt's last one.
    cells = torch.full((len(rows) * 9,), -1).index_copy(0, got.cells_M, ids[got.before_M])
    assert cells.view(-1, 9)[:, 0].tolist() == [int(each.prompt_ids[-1]) for each in rows]


def test_equal_lengths_need_no_indices() -> None:
    (block,) = packed([(3, 4), (5, 2)]).blocks
    assert (block.place_of_cell, block.cell_of_place, block.num_rows, block.num_columns) == (None, None, 2, 7)


def test_without_sequences_there_is_a_token_that_predicts_nothing() -> None:
    got = pack([], 5, CPU)
    assert (got.ids_1N.tolist(), got.num_rows, len(got.before_M), len(got.states_K)) == ([[0]], 0, 0, 0)


def test_a_completion_that_is_longer_than_its_row_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than the 3 columns"):
        pack(sequences([(1, 4)]), 3, CPU)
