import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.weights.layout import StateLayout, TensorLayout, layout_of
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import WeightState
from tests.support.cases.strategies import states


@given(states(), st.sampled_from([1 << 10, 1 << 12]))
def test_spans_cover_each_element_once_in_one_dtype(state: WeightState, span_bytes: int) -> None:
    layout = layout_of(state)
    spans = layout.spans(span_bytes)
    assert len(spans) == layout.num_spans(span_bytes)
    covered = {index: 0 for index, _ in enumerate(layout.lines)}
    for span in spans:
        assert 0 < span.num_bytes <= span_bytes
        for piece in span.pieces:
            assert layout.lines[piece.line].dtype == span.dtype
            assert piece.start == covered[piece.line] < piece.stop
            covered[piece.line] = piece.stop
    for index, line in enumerate(layout.lines):
        assert covered[index] == line.num_bytes // ELEMENT_BYTES[line.dtype]


def test_tensors_of_one_role_stand_side_by_side_in_the_order_of_layers() -> None:
    names = ["layers.10.b", "layers.2.a", "layers.10.a", "layers.2.b", "norm"]
    layout = StateLayout(lines=tuple(TensorLayout(name=name, dtype="BF16", shape=(4,)) for name in sorted(names)))
    (span,) = layout.spans()
    ordered = [layout.lines[piece.line].name for piece in span.pieces]
    assert ordered == ["layers.2.a", "layers.10.a", "layers.2.b", "layers.10.b", "norm"]


def test_a_large_tensor_has_many_spans_and_small_ones_share() -> None:
    lines = (TensorLayout(name="a", dtype="F32", shape=(600,)), TensorLayout(name="b", dtype="F32", shape=(10,)))
    spans = StateLayout(lines=lines).spans(1 << 10)
    assert [[(p.line, p.start, p.stop) for p in span.pieces] for span in spans] == [
        [(0, 0, 256)],
        [(0, 256, 512)],
        [(0, 512, 600), (1, 0, 10)],
    ]


@pytest.mark.parametrize("span_bytes", [0, 1000, 1 << 27])
def test_spans_of_odd_sizes_are_refused(span_bytes: int) -> None:
    with pytest.raises(ValueError, match="take a multiple of 8"):
        StateLayout(lines=()).spans(span_bytes)


def test_digits_of_any_length_are_a_name() -> None:
    layout = StateLayout(lines=(TensorLayout(name="9" * 5000, dtype="U8", shape=(1,)),))
    assert len(layout.spans()) == 1


@given(states())
def test_a_layout_survives_json(state: WeightState) -> None:
    layout = layout_of(state)
    assert StateLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
