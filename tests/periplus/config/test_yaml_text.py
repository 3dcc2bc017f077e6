import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.config import yaml_text
from periplus.errors import ConfigError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
LOOKALIKES = st.sampled_from(
    ["1e-3", "0o17", "0x1f", "no", "~", "NULL", "True", "FALSE", "-.Inf", ".NaN", "<<", "1.", "-.5e3", "", "-", "10"]
)
TREES = st.recursive(
    SCALARS | LOOKALIKES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | LOOKALIKES, inner, max_size=3),
    max_leaves=8,
)


def test_text_is_read_by_the_core_schema_of_1_2() -> None:
    text = "[1e-3, 1E5, 010, 0x1f, 0o17, no, on, 2020-01-01, 1_000, 12:30, ~, true, -.5, '1', -.inf]"
    expected = [
        0.001,
        1e5,
        10,
        31,
        15,
        "no",
        "on",
        "2020-01-01",
        "1_000",
        "12:30",
        None,
        True,
        -0.5,
        "1",
        float("-inf"),
    ]
    assert yaml_text.parse(text, "text") == expected


def test_each_spelling_of_the_core_schema_is_read_and_no_other() -> None:
    spellings = "[true, True, TRUE, false, False, FALSE, ~, null, Null, NULL, , .inf, +.Inf, -.INF]"
    inf = float("inf")
    expected = [True] * 3 + [False] * 3 + [None] * 4
    assert yaml_text.parse(spellings.replace(" ,", ""), "text") == [*expected, inf, inf, -inf]
    assert yaml_text.parse("a:\nb: [!!bool True, !!float .INF]", "text") == {"a": None, "b": [True, inf]}
    assert all(math.isnan(each) for each in yaml_text.parse("[.nan, .NaN, .NAN]", "text"))
    texts = ["yes", "no", "on", "Off", "y", "N", "tRUE", "nULL", ".iNF", "+.nan", "0X1f", "0o8", "Nan", "inf"]
    assert yaml_text.parse(f"[{', '.join(texts)}]", "text") == texts


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


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested more than 64 deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested more than 64 deep"),
        ("- " * 100_000 + "x", "nested more than 64 deep"),
        ("a: &a [" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "nested more than 64 deep"),
        (BOMB, "more than 1,000,000 keys and values, where an alias counts"),
        ("a: &a {b: *a}", "refers to the value that contains it"),
        ("a: " + "1" * 5000, "cannot be read as int"),
        ("[" + "1" * 5000 + "]", "cannot be read as int"),
        ("a: !!binary aGVsbG8=", "none of JSON's kinds"),
        ("a: !!timestamp 2020-01-01", "none of JSON's kinds"),
        ("a: !!set {b, c}", "none of JSON's kinds"),
        ('["\\ud800"]', "not valid YAML"),
        ("[" + "0," * 600_000 + "0]" + " " * 20, None),
        ("[" + "0," * 1_000_001 + "0]", "more than 1,000,000 keys and values"),
        ("x" * 8_000_001, "YAML may have at most 8,000,000"),
    ],
)
def test_a_text_costs_little_before_it_is_refused(text: str, why: str | None) -> None:
    if why is None:
        assert len(yaml_text.parse(text, "the source")) == 600_001
        return
    with pytest.raises(ConfigError) as raised:
        yaml_text.parse(text, "the source")
    assert str(raised.value).startswith("the source")
    assert why in str(raised.value)
    assert len(str(raised.value)) < 300


@given(TREES)
def test_json_is_read_as_the_yaml_that_it_is(tree: object) -> None:
    finite = json.loads(json.dumps([tree]).replace("Infinity", "1.5"))
    text = json.dumps(finite)
    assert yaml_text.parse(text, "json") == yaml_text.parse_json(text, "json") == finite
    assert yaml_text.parse(yaml_text.dump(finite), "yaml") == finite


@pytest.mark.parametrize("text", ["[" * 100_000, "[NaN]", "1" * 5000, '{"a": 1, "a": 2}', '"\\ud800"', "[1"])
def test_what_is_no_json_is_refused_by_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^the source"):
        yaml_text.parse_json(text, "the source")


def test_keys_of_aliases_and_merges_are_ordinary_keys() -> None:
    assert yaml_text.parse("a: &k key\n*k : 1", "text") == {"a": "key", "key": 1}
    text = "x: &x {p: 1, q: 1}\ny: &y {q: 2}\nz: {q: 3, <<: [*y, *x]}\nw: {<<: [*y, *x]}"
    tree = yaml_text.parse(text, "text")
    assert (tree["z"], tree["w"]) == ({"p": 1, "q": 3}, {"p": 1, "q": 2})
