import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus import yaml_text
from periplus.errors import ConfigError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
LOOKALIKES = st.sampled_from(
    ["1e-3", "0o17", "0x1f", "no", "~", "null", "true", ".inf", "<<", "1.", "-.5e3", "", "-", "10"]
)
TREES = st.recursive(
    SCALARS | LOOKALIKES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | LOOKALIKES, inner, max_size=3),
    max_leaves=8,
)


def test_text_is_read_by_the_core_schema_of_1_2() -> None:
    text = "[1e-3, 1E5, 010, 0x1f, 0o17, no, on, 2020-01-01, 1_000, 12:30, ~, true, -.5, '1', -.inf]"
    expected = [
        0.001, 1e5, 10, 31, 15, "no", "on", "2020-01-01", "1_000", "12:30", None, True, -0.5, "1", float("-inf"),
    ]  # fmt: skip
    assert yaml_text.parse(text, "text") == expected


@given(TREES)
def test_what_is_dumped_reads_back_the_same(tree: object) -> None:
    back = yaml_text.parse(yaml_text.dump(tree), "dump")
    assert back == tree
    assert type(back) is type(tree)


def test_merge_keys_and_anchors_work() -> None:
    assert yaml_text.parse("a: &x {p: 1}\nb: {<<: *x, q: 2}", "text")["b"] == {"p": 1, "q": 2}


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "1: a", "!!python/name:os.system x", "a: *nowhere", "\x01"])
def test_what_is_refused_names_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^the source.*: not valid YAML: "):
        yaml_text.parse(text, "the source")
