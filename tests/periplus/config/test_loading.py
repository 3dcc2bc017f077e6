from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PlainSerializer
from pydantic.functional_validators import ValidateAs

from periplus.config.loading import (
    STRICT,
    Config,
    KnownElsewhere,
    NotSupported,
    check_schema,
    load,
    override,
    parse_json,
    read_text,
    read_yaml,
    tree_of,
    validate,
)
from periplus.errors import ConfigError
from tests.support.cases.job_keys import dotted_keys


class Inner(Config):
    rate: float = Field(default=0.5, ge=0, lt=1)
    """A rate."""
    kind: str = "plain"


class Part(Config):
    weight: float = Field(default=0.5, ge=0, lt=1)
    form: str = "round"


class Sample(Config):
    name: str
    steps: int = Field(default=3, ge=1)
    inner: Inner = Inner()
    maybe: Inner | None = None
    extras: dict[str, Any] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], str] | None = None
    pace: dict[Literal["run", "walk"], Annotated[int, Field(ge=1)]] = Field(default_factory=dict)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sample.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str, *overrides: str, known_elsewhere: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Sample, write(tmp_path, text), overrides, known_elsewhere)
    return str(caught.value)


def test_a_file_becomes_a_frozen_model_with_its_defaults(tmp_path: Path) -> None:
    sample = load(Sample, write(tmp_path, "name: a\ninner: {rate: 1e-3}\ntags: [x, y]\n"))
    assert (sample.name, sample.steps, sample.inner.rate, sample.tags) == ("a", 3, 1e-3, ("x", "y"))
    with pytest.raises(ValueError, match="frozen"):
        sample.steps = 4


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load(Sample, tmp_path / "absent.yaml")


def test_a_directory_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read: Is a directory; give a file"):
        read_yaml(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xef\xbb\xbfa: 1\r\n" + b"# more\n" * 9000 + b"b: \xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "binary")
    assert str(caught.value) == (
        f"{tmp_path}/binary: cannot be read as UTF-8 text: line 9002 has the byte 0xff; save the file as UTF-8"
    )


def test_every_usual_end_of_a_line_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\nd")
    assert read_text(tmp_path / "file") == "a\nb\nc\n\nd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nsteps: [1\n", "line 3, column 1: not valid YAML"),
        ("name: a\nname: b\n", "line 2, column 1: not valid YAML: the key 'name' is given twice"),
        ("3: a\n", "line 1, column 1: not valid YAML: a key must be text"),
        (
            "name: !!python/object:os.system x\n",
            "line 1, column 7: not valid YAML: the tag tag:yaml.org,2002:python/object",
        ),
        ("- a\n", 'must hold a mapping of keys to values, not ["a"]'),
        ("name: \x01\n", "not valid YAML"),
    ],
)
def test_text_that_is_no_mapping_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "")) == {}
    assert load(Inner, write(tmp_path, "# defaults will do\n")) == Inner()


def test_an_empty_file_that_must_not_be_empty_is_called_empty(tmp_path: Path) -> None:
    assert refusal(tmp_path, "# later\n") == f"{tmp_path / 'sample.yaml'}: is empty"
    with pytest.raises(ConfigError, match="file: is empty; it must carry schema: a/1"):
        check_schema({}, "a/1", "file")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nstep: 4\n", "unknown key step; did you mean steps?"),
        ("name: a\ninner: {rat: 1}\n", "unknown key inner.rat; did you mean inner.rate?"),
        ("name: a\nmaybe: {knd: b}\n", "unknown key maybe.knd; did you mean maybe.kind?"),
        ("name: a\nrate: 0.1\n", "unknown key rate; did you mean inner.rate or maybe.rate?"),
        ("name: a\nkinds: 0.1\n", "unknown key kinds; did you mean inner.kind or maybe.kind?"),
        ("name: a\nzzz: 0.1\n", "unknown key zzz; known keys: name, steps, inner, maybe, extras, tags, parts, betas"),
        ("name: a\nparts: [{}, {weigth: 1}]\n", "unknown key parts.1.weigth; did you mean parts.1.weight?"),
        ("name: a\nparts: [{zzz: 1}]\n", "unknown key parts.0.zzz; known keys: weight, form"),
        ("name: a\nparts: [{steps: 1}]\n", "unknown key parts.0.steps; did you mean steps?"),
        ("name: a\nweight: 1\n", "unknown key weight; did you mean parts.0.weight?"),
        ("name: a\npace: {rum: 1}\n", "unknown key pace.rum; it must be one of run, walk"),
        ("name: a\ninner: {zzz: 1}\n", "unknown key inner.zzz; known keys: rate, kind"),
        ("name: a\nspeed: 1\n", "unknown key speed; did you mean inner.rate?"),
    ],
)
def test_an_unknown_key_gets_its_path_and_a_suggestion(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text, known_elsewhere={"speed": "inner.rate"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: 3\n", "name is 3, but must be text"),
        ("name: a\nsteps: 0\n", "steps is 0, but must be a whole number from 1"),
        ("name: a\nsteps: '4'\n", 'steps is "4", but must be a whole number from 1'),
        ("name: a\nsteps: true\n", "steps is true, but must be a whole number from 1"),
        ("name: a\nsteps: 1.5\n", "steps is 1.5, but must be a whole number from 1"),
        ("name: a\ninner: {rate: 1}\n", "inner.rate is 1, but must be a number from 0 below 1"),
        ("name: a\ninner: {rate: .nan}\n", "inner.rate is NaN, but must be a finite number from 0 below 1"),
        ("name: a\ninner: 3\n", "inner is 3, but must be a mapping with keys rate, kind"),
        ("name: a\ntags: x\n", 'tags is "x", but must be a list'),
        ("name: a\ntags: [x, 1]\n", "tags.1 is 1, but must be text"),
        ("name: a\nparts: [{}, {weight: 2}]\n", "parts.1.weight is 2, but must be a number from 0 below 1"),
        ("name: a\nparts: [x]\n", 'parts.0 is "x", but must be a mapping with keys weight, form'),
        ("name: a\nbetas: [2, x]\n", "betas.0 is 2, but must be a number from 0 below 1"),
        ("name: a\nbetas: [.1, 3]\n", "betas.1 is 3, but must be text"),
        ("name: a\nbetas: [.1]\n", "betas.1 is missing; it must be text"),
        ("name: a\npace: {run: 0}\n", "pace.run is 0, but must be a whole number from 1"),
        ("steps: 4\n", "name is missing; it must be text"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_all_refusals_come_at_once_each_naming_the_file(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "steps: 0\ninner: {rate: 2, x: 1}\n").splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{tmp_path / 'sample.yaml'}: ") for line in lines)


def test_overrides_are_parsed_as_yaml_and_the_right_most_wins(tmp_path: Path) -> None:
    overrides = ["steps=4", "steps=5", "inner.rate=1e-1", "maybe.kind=odd", "tags=[p, q]", "extras.deep.er=[1]"]
    sample = load(Sample, write(tmp_path, "name: a\n"), overrides)
    assert (sample.steps, sample.inner.rate, sample.tags) == (5, 0.1, ("p", "q"))
    assert sample.maybe is not None
    assert sample.maybe.kind == "odd"
    assert sample.extras == {"deep": {"er": [1]}}


def test_overrides_alone_make_a_config() -> None:
    assert load(Sample, None, ["name=a"]).name == "a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inner.rte=1", "unknown key inner.rte; did you mean inner.rate?"),
        ("maybe.rte=1", "unknown key maybe.rte; did you mean maybe.rate?"),
        ("stps=1", "unknown key stps; did you mean steps?"),
        ("steps", "write it as dotted.key=value"),
        ("=3", "write it as dotted.key=value"),
        ("inner..rate=3", "write it as dotted.key=value"),
        ("steps.more=1", "steps holds one value, it has no keys below it"),
        ("parts.0.weight=1", "parts is a list, which an override gives as a whole"),
        ("tags=[", "not valid YAML"),
        ("inner.rate=2", "inner.rate is 2, but must be"),
        ("parts=[{weight: 2}]", "parts.0.weight is 2, but must be"),
        ("inner=5", "inner is 5, but must be"),
        ("inner={rte: 1}", "unknown key inner.rte; did you mean inner.rate?"),
    ],
)
def test_an_override_is_refused_by_its_own_text(tmp_path: Path, text: str, expected: str) -> None:
    message = refusal(tmp_path, "name: a\n", text)
    assert message.startswith(f"override {text!r}")
    assert expected in message


def test_each_wrong_value_is_told_with_the_override_or_the_file_that_gave_it(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "name: 1\nsteps: 4\n", "steps=-1", "steps=0", "inner.rate=0.25").splitlines()
    assert sorted(line.partition(" is ")[0] for line in lines) == [
        f"{tmp_path}/sample.yaml: name",
        "override 'steps=0': steps",
    ]


def test_what_other_tools_have_is_answered_by_its_name_or_with_what_to_do_instead(tmp_path: Path) -> None:
    known: KnownElsewhere = {"speed": "inner.rate", "wings": NotSupported("walk")}

    def refused(text: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(Sample, write(tmp_path, text), overrides, known)
        return str(caught.value)

    assert "wings is not supported yet: walk" in refused("name: a\nwings: 2\n")
    assert "inner.wings is not supported yet: walk" in refused("name: a\ninner: {wings: 2}\n")
    assert "bird.body.wings.left is not supported yet: walk" in refused("name: a\n", "bird.body.wings.left=2")
    assert "unknown key bird; did you mean inner.rate?" in refused("name: a\n", "bird.speed=2")


def test_a_file_that_is_too_large_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="larger than 1,000 bytes"):
        read_yaml(Path("/dev/zero"), 1000)


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    assert "Unicode" in refusal(tmp_path, 'name: "\\ud800"\n')


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_json_that_python_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^text.*(nested more than 64 deep|not valid JSON)"):
        parse_json(text, "text")


def test_overriding_leaves_the_given_tree_alone() -> None:
    tree = {"name": "a", "inner": {"rate": 0.1}}
    changed = override(Sample, tree, ["inner.rate=0.2"], {})
    assert tree["inner"] == {"rate": 0.1}
    assert changed["inner"] == {"rate": 0.2}


def test_the_known_keys_include_sections_and_what_is_in_them() -> None:
    assert {"inner", "inner.rate", "maybe.kind", "steps"} <= set(dotted_keys(Sample))


def test_the_field_docstring_is_its_description() -> None:
    assert Inner.model_fields["rate"].description == "A rate."


def test_a_document_carries_its_schema() -> None:
    assert check_schema({"schema": "a/1", "x": 2}, "a/1", "file") == {"x": 2}
    for tree in ({"x": 2}, {"schema": "a/2"}, [1]):
        with pytest.raises(ConfigError, match="file: must carry schema: a/1, found "):
            check_schema(tree, "a/1", "file")


def test_broken_json_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="text, line 2: not valid JSON"):
        parse_json('{\n"a" 1}', "text")


def test_ten_refusals_are_said_and_the_others_counted(tmp_path: Path) -> None:
    text = "name: a\n" + "".join(f"unknown{i}: 1\n" for i in range(30_000))
    lines = refusal(tmp_path, text).splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("and 29,990 more refusals")
    assert all(len(line) < 300 for line in lines)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    radius: Annotated[float, Field(gt=0, le=9)]
    spokes: int = 3

    def __post_init__(self) -> None:
        if self.spokes == 13:
            raise ValueError("13 spokes bring bad luck")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart:
    __pydantic_config__ = STRICT

    wheels: tuple[Wheel, ...]
    by_colour: Annotated[
        tuple[tuple[Colour, Wheel], ...],
        ValidateAs(dict[Colour, Wheel], lambda each: tuple(each.items())),
        PlainSerializer(dict, return_type=dict[Colour, Wheel]),
    ] = ()
    marks: Annotated[frozenset[str], Field(max_length=2), PlainSerializer(sorted)] = frozenset()
    spare: Wheel | None = None


CART = {"wheels": [{"radius": 1.5}], "by_colour": {"blue": {"radius": 1.0, "spokes": 5}}, "marks": ["a", "b"]}


def test_a_dataclass_is_its_own_file_without_its_defaults() -> None:
    blue = Wheel(radius=1.0, spokes=5)
    cart = Cart(wheels=(Wheel(radius=1.5),), by_colour=((Colour.BLUE, blue),), marks=frozenset("ba"))
    assert tree_of(cart) == CART
    assert validate(Cart, CART, "f") == cart


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"wheels": [{"radius": 0}]}, "wheels.0.radius is 0, but must be a number above 0 to 9"),
        ({"wheels": [{}]}, "wheels.0.radius is missing; it must be a number above 0 to 9"),
        ({"wheels": [{"radius": 1, "spoke": 1}]}, "unknown key wheels.0.spoke; did you mean wheels.0.spokes?"),
        ({"wheels": [3]}, "wheels.0 is 3, but must be a mapping with keys radius, spokes"),
        ({"by_colour": {"green": {"radius": 1}}}, "unknown key by_colour.green; it must be one of red, blue"),
        ({"by_colour": {"red": {"radius": "1"}}}, 'by_colour.red.radius is "1", but must be a number above 0 to 9'),
        ({"by_colour": []}, "by_colour is [], but must be a mapping"),
        ({"marks": [1]}, "marks.0 is 1, but must be text"),
        ({"marks": ["a", "b", "c"]}, "marks has 3 items, but must be a list of at most 2 items"),
        ({"spare": {"radius": 1, "spokes": 13}}, "spare: 13 spokes bring bad luck"),
        ({"spare": {"radius": 1, "spokes": 1.5}}, "spare.spokes is 1.5, but must be a whole number"),
        ({"colour": 1}, "unknown key colour; did you mean by_colour?"),
    ],
)
def test_a_dataclass_is_refused_by_key_and_with_what_is_allowed(change: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Cart, CART | change, "f")
    assert str(caught.value) == f"f: {refusal}"


def test_code_makes_a_dataclass_unchecked() -> None:
    assert Wheel(radius=-1.0).radius == -1.0
