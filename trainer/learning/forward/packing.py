"""Lays sequences end to end in one row without padding, and computes the indices that lead from there to each result.

Linear layers, norms and activations treat each token by itself, so they run on the row of real tokens. Sequences of a
group have the same prompt, and what a layer computes for a prompt does not depend on what follows it. So each distinct
prompt is there once, before the first sequence that begins with it.

Attention needs the sequences apart, each with its prompt: there, every token of every sequence has a *place*. Sequences
are packed longest first, and neighbours of similar length form *blocks*. In a block, each sequence is padded on the
right to the longest one for the time of the attention alone. Under a causal mask a token never sees what is to its
right, so that padding needs no mask. A block holds no sequence shorter than half of its longest one. So at most half of
its columns are padding, and a few blocks suffice: one for each halving of length.

All indices are computed on the host with numpy and go to the device in one transfer.

Shapes: N packed tokens, L places, R rows of a block, S columns of a block, n places of a block, B rows (samples), T
completion columns, M completion tokens, U = T + 1 states, K states of all rows (each row has one more than completion
tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One prompt and its completion, as token ids. Neither is empty."""

    prompt_ids: npt.NDArray[np.int32]
    completion_ids: npt.NDArray[np.int32]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBlock:
    """Neighbouring sequences of similar length: the places from `start` to before `stop`.

    `num_rows` and `num_columns` are R and S. `place_of_cell` has R * S indices: the block's place in each cell, 0 in
    padding. `cell_of_place` has n indices: the cell of each place. Both are None if all lengths are equal, since the
    places then are the cells.
    """

    start: int
    stop: int
    num_rows: int
    num_columns: int
    place_of_cell: torch.Tensor | None
    cell_of_place: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedPrompts:
    """The places of tokens, where several sequences have the same prompt.

    `token_of_place` has L indices: the packed token in each place. `place_of_token` has N: the first place of each
    token. `copies` has a pair for each number c > 1 of places that tokens have: the indices of these m tokens, and the
    m * c places of them, those of a token in a row.
    """

    token_of_place: torch.Tensor
    place_of_token: torch.Tensor
    copies: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedSequences:
    """Sequences in one row, on one device.

    - `ids_1N`, `positions_1N`: token ids, and their positions, which start at 0 in each sequence.
    - `shared`: the places of tokens; None if all prompts differ, since the packed tokens then are the places.
    - `starts`: the place where each sequence starts, and L at the end, int32. `longest`: tokens of the longest one.
    - `blocks`: the sequences in blocks of similar length, in packed order.
    - `before_M`: the token before each completion token, whose logits predict it. `targets_M`: the completion token.
      `cells_M`: its place in a tensor of B * T elements.
    - `states_K`: the tokens at which states begin: those before each completion token, and the last one. `cells_K`:
      their places in a tensor of B * U elements.
    - `first_state`: the smallest position of a state in any sequence.
    - `num_rows`, `num_columns`: B and T.
    """

    ids_1N: torch.Tensor
    positions_1N: torch.Tensor
    shared: SharedPrompts | None
    starts: torch.Tensor
    longest: int
    blocks: tuple[AttentionBlock, ...]
    before_M: torch.Tensor
    targets_M: torch.Tensor
    cells_M: torch.Tensor
    states_K: torch.Tensor
    cells_K: torch.Tensor
    first_state: int
    num_rows: int
    num_columns: int


def pack(sequences: Sequence[TokenSequence], num_columns: int, device: torch.device) -> PackedSequences:
    """Pack the sequences. `num_columns` is T, the number of columns of the results' rows.

    Without sequences the result is one token with the id 0 that belongs to no row and predicts nothing. A model can
    make its forward and backward pass over it, with a gradient of zeros, which a rank needs that has no rows left while
    others have. Raises: ValueError if a completion is longer than `num_columns`.
    """
    if any(len(each.completion_ids) > num_columns for each in sequences):
        raise ValueError(f"a completion is longer than the {num_columns} columns of its row")
    lengths = np.array([each.num_tokens for each in sequences], np.int64)
    # Longest first; equal lengths keep their order.
    order = np.argsort(-lengths, kind="stable")
    ordered = [sequences[row] for row in order]
    segments, host = _host_arrays(ordered, order, num_columns)
    sorted_lengths = lengths[order] if len(sequences) else np.ones(1, np.int64)
    spans = _spans(sorted_lengths)
    cells = [_cell_indices(sorted_lengths[first:last]) for first, last in spans]
    shared = _shared_indices(ordered, segments, len(host[0])) if len(host[0]) < lengths.sum() else []
    arrays = [*host, *(array for pair in cells for array in pair), *shared]
    tensors = iter(_transferred(arrays, device))
    ids, positions, before, targets, cells_m, states, cells_k = (next(tensors) for _ in host)
    starts = np.concatenate([[0], np.cumsum(sorted_lengths)])
    blocks = []
    for first, last in spans:
        place_of_cell, cell_of_place = next(tensors), next(tensors)
        even = sorted_lengths[first] == sorted_lengths[last - 1]
        blocks.append(
            AttentionBlock(
                start=int(starts[first]),
                stop=int(starts[last]),
                num_rows=last - first,
                num_columns=int(sorted_lengths[first]),
                place_of_cell=None if even else place_of_cell,
                cell_of_place=None if even else cell_of_place,
            )
        )
    token_of_place, place_of_token, *copies = list(tensors) or (None, None)
    return PackedSequences(
        ids_1N=ids[None],
        positions_1N=positions[None],
        shared=None
        if token_of_place is None or place_of_token is None
        else SharedPrompts(
            token_of_place=token_of_place,
            place_of_token=place_of_token,
            copies=tuple(zip(copies[::2], copies[1::2], strict=True)),
        ),
        starts=torch.from_numpy(starts.astype(np.int32)).to(device),
        longest=int(sorted_lengths[0]),
        blocks=tuple(blocks),
        before_M=before,
        targets_M=targets,
        cells_M=cells_m,
        states_K=states,
        cells_K=cells_k,
        first_state=min((len(each.prompt_ids) for each in sequences), default=1) - 1,
        num_rows=len(sequences),
        num_columns=num_columns,
    )


def _host_arrays(
    ordered: Sequence[TokenSequence], order: IntArray, num_columns: int
) -> tuple[list[tuple[int, int]], tuple[IntArray, ...]]:
    # The packed tokens at which the prompt and the completion of each sequence start; then ids and positions (N),
    # before, targets and cells (M), states and their cells (K), in packed order.
    if not ordered:
        none = np.zeros(0, np.int64)
        return [], (np.zeros(1, np.int64), np.zeros(1, np.int64), none, none, none, none, none)
    ids, positions, before, targets, cells_m, states, cells_k = ([] for _ in range(7))
    segments: list[tuple[int, int]] = []
    known: dict[bytes, int] = {}
    end = 0
    for row, each in zip(order, ordered, strict=True):
        num_prompt, num_completion = len(each.prompt_ids), len(each.completion_ids)
        prompt = known.setdefault(each.prompt_ids.tobytes(), end)
        if prompt == end:
            ids.append(each.prompt_ids)
            positions.append(np.arange(num_prompt))
            end += num_prompt
        segments.append((prompt, end))
        ids.append(each.completion_ids)
        positions.append(num_prompt + np.arange(num_completion))
        # States are those of the prompt's last token and of each completion token; all but the last predict a token.
        state = np.append(prompt + num_prompt - 1, end + np.arange(num_completion))
        states.append(state)
        before.append(state[:-1])
        targets.append(each.completion_ids)
        cells_m.append(row * num_columns + np.arange(num_completion))
        cells_k.append(row * (num_columns + 1) + np.arange(num_completion + 1))
        end += num_completion
    return segments, tuple(
        np.concatenate(parts).astype(np.int64) for parts in (ids, positions, before, targets, cells_m, states, cells_k)
    )


def _shared_indices(
    ordered: Sequence[TokenSequence], segments: Sequence[tuple[int, int]], num_tokens: int
) -> list[IntArray]:
    # The fields of SharedPrompts, one array after the other.
    parts = []
    for each, (prompt, completion) in zip(ordered, segments, strict=True):
        parts += [prompt + np.arange(len(each.prompt_ids)), completion + np.arange(len(each.completion_ids))]
    token_of_place = np.concatenate(parts).astype(np.int64)
    # All places of a token are neighbours here, in their order.
    places = np.argsort(token_of_place, kind="stable")
    counts = np.bincount(token_of_place, minlength=num_tokens)
    firsts = np.cumsum(counts) - counts
    found = [token_of_place, places[firsts]]
    for count in np.unique(counts[counts > 1]):
        tokens = np.flatnonzero(counts == count)
        found += [tokens, places[(firsts[tokens][:, None] + np.arange(count)).ravel()]]
    return found


def _spans(lengths: IntArray) -> list[tuple[int, int]]:
    # Sequences first to last - 1 of each block; `lengths` descend, and a block's shortest is at least half its longest.
    spans, first = [], 0
    for row in range(1, len(lengths) + 1):
        if row == len(lengths) or 2 * lengths[row] < lengths[first]:
            spans.append((first, row))
            first = row
    return spans


def _cell_indices(lengths: IntArray) -> tuple[IntArray, IntArray]:
    # The place of each cell (R * S, 0 in padding) and the cell of each place (n), both empty if no cell is padding.
    if lengths[0] == lengths[-1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    real_RS = np.arange(lengths[0])[None] < lengths[:, None]
    cell_of_place = np.flatnonzero(real_RS)
    place_of_cell = np.zeros(real_RS.size, np.int64)
    place_of_cell[cell_of_place] = np.arange(len(cell_of_place))
    return place_of_cell, cell_of_place


def _transferred(arrays: Sequence[IntArray], device: torch.device) -> tuple[torch.Tensor, ...]:
    whole = torch.from_numpy(np.concatenate(arrays)).to(device)
    return torch.split(whole, [len(array) for array in arrays])
