import json

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


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{'bcdefghi'[n]}: &{'bcdefghi'[n]} [{', '.join(['*' + 'abcdefgh'[n]] * 10)}]\n" for n in range(8)
)
MERGE_BOMB = "a: &a0 {k: v}\n" + "".join(f"k{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "more than 1000000 values"),
        (MERGE_BOMB, "more than 1000000 values"),
        ("a: &a [*a]", "a part of"),
        ("a: &a {b: {c: *a}}", "a part of"),
        ("a: " + "[" * 5000, "levels of nesting"),
        ("a: " + "{a: " * 5000, "levels of nesting"),
        ("".join(" " * n + "a:\n" for n in range(500)), "levels of nesting"),
        ("a: " + "9" * 5000, "a whole number of 5000 characters"),
        ("a: 0x" + "f" * 5000, "a whole number of 5002 characters"),
        ("a: !!int abc", "'abc' is no whole number"),
        ("a: !!float abc", "'abc' is no number"),
        ("a: !!bool maybe", "neither true nor false"),
        ("a: !!binary aGk=", "could not determine a constructor"),
        ("a: !!timestamp 2020-01-01", "could not determine a constructor"),
        ("a: !!set {b}", "could not determine a constructor"),
        ("a: !!omap [b: c]", "could not determine a constructor"),
        ("a: !!map [b]", "expected a mapping"),
    ],
)
def test_a_text_that_stands_for_too_much_or_for_what_json_lacks_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=r"^the source.*not valid YAML") as refused:
        yaml_text.parse(text, "the source")
    assert expected in str(refused.value)


@given(st.text(alphabet="[]{}:,&*!<|>-?'\"ab01~ \n\t#%@`\\\x00\ud800", max_size=60))
def test_any_text_is_a_value_of_json_or_a_config_error(text: str) -> None:
    try:
        tree = yaml_text.parse(text, "the source")
    except ConfigError:
        return
    json.dumps(tree)
