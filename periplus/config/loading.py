"""Reads configuration files: one frozen pydantic model per kind of file, with overrides `dotted.key=value`.

A section of a file, or all of it, may also be a dataclass whose annotations are its keys, types and ranges. It is built
unchecked in code, and validated only here.

A file is read as YAML 1.2 (`periplus.config.yaml_text`). The resulting tree holds only JSON values, and it is validated
strictly: text is never turned into a number. Every error is a ConfigError that names the file, the dotted key, the
wrong value and what is allowed. All errors of a file are reported together: the first ten in words, the others as a
number. An unknown key gets a suggestion, from the model's own keys or from names of other tools. This module does not
know what the keys mean.
"""

import dataclasses
import difflib
import enum
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import pydantic
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ValidateAs

from periplus.config import yaml_text
from periplus.errors import ConfigError, shortened

Tree = dict[str, Any]
"""The content of a YAML file: JSON values under text keys."""

MAX_FILE_BYTES = 64_000_000
"""Largest text file that is read, in bytes: twice the longest JSON text that `periplus.config.yaml_text` accepts."""

MAX_REFUSALS = 10
"""Number of errors of one file that are shown; the others are only counted.

Chosen by hand: a file of the wrong kind may have an error in every line, and each suggestion for an unknown key takes
half a millisecond.
"""

UNKNOWN_KIND = "unknown_kind"
"""Type of pydantic's error for an entry of a list that is of none of the list's kinds, where a `Discriminator` tells
these apart. The error's message says what an entry must be."""


STRICT = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""How files are validated: strictly, without unknown keys and without infinite numbers.

A dataclass that is a file of its own has this as `__pydantic_config__`. Dataclasses within it follow it.
"""


class Config(pydantic.BaseModel):
    """Base class of every configuration: frozen, strict, without unknown keys and without infinite numbers.

    The docstring under a field is its description in the JSON schema.
    """

    model_config = pydantic.ConfigDict(**STRICT, frozen=True, use_attribute_docstrings=True)

    shorthand: typing.ClassVar[str | None] = None
    """Key of a section that is meant where a text stands in place of the section; None if no text may."""


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """An annotation that says in words what a field's `pattern` allows, for use in error messages."""

    text: str


M = TypeVar("M", bound=Config)
V = TypeVar("V")

Section = type[Any]
"""A class whose fields are the keys of a mapping: a `Config`, or a dataclass."""


@dataclasses.dataclass(frozen=True, slots=True)
class NotSupported:
    """The advice for a setting that other tools have and a model has not: why not, and what to do instead."""

    instead: str


KnownElsewhere = Mapping[str, "str | NotSupported"]
"""Maps names of settings in other tools to our dotted key, or to the advice if we have none. For messages only."""


def load(
    model: type[M],
    path: Path | None,
    overrides: Sequence[str] = (),
    known_elsewhere: KnownElsewhere | None = None,
) -> M:
    """Read a file, apply the overrides from left to right, and validate the result.

    Without a file the defaults are the start. Raises: ConfigError.
    """
    tree = read_yaml(path) if path else {}
    return of_tree(model, tree, str(path) if path else "the overrides", overrides, known_elsewhere)


def of_tree(
    model: type[M],
    tree: Mapping[str, Any],
    source: str,
    overrides: Sequence[str] = (),
    known_elsewhere: KnownElsewhere | None = None,
) -> M:
    """Apply the overrides to a parsed file from left to right, and validate the result. Raises: ConfigError."""
    if not tree and not overrides and any(field.is_required() for field in model.model_fields.values()):
        raise ConfigError(f"{source}: is empty")
    elsewhere = known_elsewhere or {}
    overridden = override(model, tree, overrides, elsewhere)
    try:
        return validate(model, overridden, source, elsewhere)
    except ConfigError as error:
        lines = (_of_override(line, source, overrides) for line in str(error).splitlines())
        raise ConfigError("\n".join(lines)) from error


def read_yaml(path: Path, max_bytes: int = MAX_FILE_BYTES) -> Tree:
    """Return the mapping in a YAML or JSON file; empty for an empty file. Raises: ConfigError with the wrong line."""
    tree = yaml_text.parse(read_text(path, max_bytes), str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold a mapping of keys to values, not {_shown(tree)}")
    return tree


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a UTF-8 file. Raises: ConfigError if it is unreadable or longer than `max_bytes`."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give a file that you may read") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{path}: is larger than {max_bytes:,} bytes; is it the right file?")
    return _decoded(content, str(path))


def _decoded(content: bytes, source: str) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark and with `\\n` at the end of each line.

    Raises: ConfigError that names the first line with another encoding.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Lines are counted in bytes, since the text before the error is all that can be decoded.
        number = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}: cannot be read as UTF-8 text: line {number} has the byte 0x{error.object[error.start]:02x}; "
            "save the file as UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def refuse(source: str, refusals: Iterable[str]) -> None:
    """Raise a ConfigError with the first MAX_REFUSALS sentences and the number of the others; return if there is none.

    `source` is put before each sentence.
    """
    every = iter(refusals)
    if lines := [f"{source}: {refusal}" for refusal in itertools.islice(every, MAX_REFUSALS)]:
        if more := sum(1 for _ in every):
            lines.append(f"{source}: and {more:,} more of this kind")
        raise ConfigError("\n".join(lines))


# ---- overrides -------------------------------------------------------------------------------------------------------


def overlay(model: Section, tree: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Return the tree with the values of `over` laid over it. Sections are merged; any other value is replaced."""
    result = dict(tree)
    for key, value in over.items():
        field = _fields(model).get(key)
        section, known = _section_of(field.annotation) if field else None, result.get(key)
        is_section = section is not None and isinstance(value, dict) and isinstance(known, dict)
        # Only two mappings can be merged: a section that is null or absent is replaced as a whole.
        result[key] = overlay(section, known, value) if section and is_section and known else value
    return result


def override(
    model: type[Config], tree: Mapping[str, Any], overrides: Sequence[str], known_elsewhere: KnownElsewhere
) -> Tree:
    """Return a copy of the tree with each `dotted.key=value` set. Values are YAML; the right-most override wins.

    Raises: ConfigError for an unknown key or a malformed override.
    """
    # A deep copy: the caller's tree stays as it is.
    result: Tree = json.loads(json.dumps(tree))
    for text in overrides:
        key, equals, value_text = text.partition("=")
        path, source = key.strip().split("."), f"override {shortened(text)!r}"
        if not equals or not all(path):
            raise ConfigError(f"{source}: write it as dotted.key=value, such as seed=3")
        _check_key(model, path, source, known_elsewhere)
        value, node = yaml_text.parse(value_text, source), result
        for name in path[:-1]:
            # A section that the file leaves out, or sets to null, begins with this key.
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[path[-1]] = value
    return result


def _of_override(line: str, source: str, overrides: Sequence[str]) -> str:
    """Return a line about a wrong value of the source, which names the override in its place if one gave the value."""
    told = line.removeprefix(f"{source}: ")
    about = told.removeprefix("unknown key ")
    for text in reversed(overrides):
        key = text.partition("=")[0].strip()
        if about.startswith(key) and about[len(key) :][:1] in (" ", ".", ":", ";"):
            return f"override {shortened(text)!r}: {told}"
    return line


def _check_key(model: Section, path: Sequence[str], source: str, known_elsewhere: KnownElsewhere) -> None:
    section: Section | None = model
    for i, name in enumerate(path):
        assert section is not None
        if name not in (fields := _fields(section)):
            raise ConfigError(f"{source}: {_unknown(model, path[: i + 1], known_elsewhere, path[i + 1 :])}")
        field = fields[name]
        section = _section_of(field.annotation)
        # The name is that of a value and not of a section: nothing may follow, unless the value is a mapping of free
        # keys.
        if section is None:
            base, key = _base(field.annotation), ".".join(path[: i + 1])
            if base is Mapping and len(path) > i + 2:  # of sections by names of the user's own
                _check_key(typing.get_args(_bare(field.annotation).annotation)[1], path[i + 2 :], source, {})
                return
            if base is Mapping:
                return
            if i + 1 < len(path) and base is tuple:
                raise ConfigError(f"{source}: {key} is a list, which an override gives as a whole")
            if i + 1 < len(path) and base is not dict:
                raise ConfigError(f"{source}: {key} holds one value, it has no keys below it")
            return


# ---- validation ------------------------------------------------------------------------------------------------------


def validate(model: type[V], tree: object, source: str, known_elsewhere: KnownElsewhere | None = None) -> V:
    """Return the model or dataclass that a tree describes. Raises: ConfigError with the first errors, one per line."""
    kind: Any = model
    try:
        # Strict validation accepts JSON's types from JSON text alone, such as a list for a tuple.
        value: V = _adapter(kind).validate_json(json.dumps(_spelled_out(kind, tree)))
        return value
    # A section in the form of another kind of file has a reader of its own.
    except ConfigError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from error
    except pydantic.ValidationError as error:
        details, num = error.errors(include_url=False)[:MAX_REFUSALS], error.error_count()
        refusals = [_refusal(model, detail, known_elsewhere or {}) for detail in details]
        more = [f"and {num - MAX_REFUSALS:,} more refusals"] if num > MAX_REFUSALS else []
        raise ConfigError("\n".join(f"{source}: {refusal}" for refusal in [*refusals, *more])) from error


def tree_of(value: object) -> Tree:
    """Return a dataclass as the JSON values that `validate` reads, without values that equal their defaults."""
    kind: Any = type(value)
    tree: Tree = _adapter(kind).dump_python(value, mode="json", exclude_defaults=True)
    return tree


def without_absent(value: Any, tree: Any) -> Any:
    """Return the JSON values of a configuration without its keys that are null and are so by default."""
    if isinstance(value, pydantic.BaseModel):
        pairs = [(name, getattr(value, name), field.default) for name, field in type(value).model_fields.items()]
        return {name: without_absent(own, tree[name]) for name, own, default in pairs if (own, default) != (None, None)}
    if isinstance(value, Mapping):
        return {name: without_absent(own, each) for (name, each), own in zip(tree.items(), value.values(), strict=True)}
    if isinstance(value, tuple | list):
        return [without_absent(own, each) for own, each in zip(value, tree, strict=True)]
    return tree


@functools.cache
def _adapter(model: Section) -> pydantic.TypeAdapter[Any]:
    """Return pydantic's reader and writer of a class. To make one takes 20 ms for a plan, with all that it holds."""
    return pydantic.TypeAdapter(model)


def _spelled_out(model: Section, tree: object) -> object:
    """Return the tree with texts that stand in place of sections replaced by sections."""
    if not isinstance(tree, dict) or not issubclass(model, Config):
        return tree
    sections = {name: _section_of(field.annotation) for name, field in model.model_fields.items()}
    return {
        key: {shorthand: value}
        if isinstance(value, str) and (shorthand := getattr(sections.get(key), "shorthand", None)) is not None
        else value
        for key, value in tree.items()
    }


def check_schema(tree: object, schema: str, source: str) -> Tree:
    """Return the tree without its `schema` key. Raises: ConfigError if it is not a mapping with this schema."""
    if tree == {}:
        raise ConfigError(f"{source}: is empty; it must carry schema: {schema}")
    if not isinstance(tree, dict) or "schema" not in tree:
        found = "none" if isinstance(tree, dict) else _shown(tree)
        raise ConfigError(f"{source}: must carry schema: {schema}, found {found}")
    if tree["schema"] != schema:
        raise ConfigError(f"{source}: must carry schema: {schema}, found {_shown(tree['schema'])}")
    return {key: value for key, value in tree.items() if key != "schema"}


def parse_json(text: str, source: str) -> object:
    """Return the value of a JSON text. Raises: ConfigError."""
    return yaml_text.parse_json(text, source)


def _refusal(model: Section, detail: Any, known_elsewhere: KnownElsewhere) -> str:
    location: tuple[int | str, ...] = detail["loc"]
    if detail["type"] == "json_invalid":
        return "holds text that is not valid Unicode, half of a surrogate pair"
    key = ".".join(_names(model, location))
    if detail["type"] == UNKNOWN_KIND:
        return f"{key} is {_shown(detail['input'])}, but must be {detail['msg']}"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown(model, location, known_elsewhere)
    if detail["type"] == "value_error":
        return f"{key}: {detail['ctx']['error']}"
    # The key of a mapping is wrong, and not its value.
    if location and location[-1] == _KEY:
        allowed = _allowed(_place_at(model, (*location[:-2], _KEY)))
        return f"unknown key {key.removesuffix('.' + _KEY)}; it must be {allowed or 'another'}"
    # What is allowed follows from the model's own annotation, so that the message cannot contradict it.
    allowed = _allowed(_place_at(model, location))
    if detail["type"] == "missing":
        return f"{key} is missing" + (f"; it must be {allowed}" if allowed else "")
    if not location:
        return f"must be a mapping of keys to values, not {_shown(detail['input'])}"
    if detail["type"] == "too_long":
        return f"{key} has {len(detail['input']):,} items, but must be {allowed}"
    if detail["type"] == "finite_number":
        allowed = allowed.replace("a number", "a finite number", 1)
    return (
        f"{key} is {_shown(detail['input'])}, but must be {allowed or detail['msg'].removeprefix('Input should be ')}"
    )


def _unknown(
    model: Section, location: Sequence[int | str], known_elsewhere: KnownElsewhere, inner: Sequence[str] = ()
) -> str:
    """Return the sentence about the unknown key at `location`, with a suggestion.

    `inner` are the names below the unknown one in an override. The last name that is known from other tools decides.
    """
    *parents, name = _names(model, location)
    meant = next((known_elsewhere[each] for each in (*reversed(inner), name) if each in known_elsewhere), None)
    if isinstance(meant, NotSupported):
        return f"{'.'.join((*parents, name, *inner))} is not supported yet: {meant.instead}"
    place = _place_at(model, location[:-1])
    section = _section_of(place.annotation) if place else None
    siblings = tuple(_fields(section)) if section else ()
    # All keys of the model by their last name, to find a right name in a wrong section.
    leaves: dict[str, list[str]] = {}
    for known in _paths(model, _indices(location)):
        leaves.setdefault(known[-1], []).append(".".join(known))
    # From the best guess to the worst: another tool's name, the same name elsewhere, a like name here, a like name
    # elsewhere.
    if meant is not None:
        guesses = [meant]
    elif name in leaves:
        guesses = leaves[name][:3]
    elif near := difflib.get_close_matches(name, siblings, n=1):
        guesses = [".".join((*parents, near[0]))]
    else:
        far = difflib.get_close_matches(name, leaves, n=1, cutoff=0.75)
        guesses = leaves[far[0]][:3] if far else []
    hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"known keys: {', '.join(siblings)}"
    return f"unknown key {'.'.join((*parents, name))}; {hint}"


# ---- what a model has where ------------------------------------------------------------------------------------------

_Path = tuple[str, ...]
_KEY = "[key]"
"""The last part of a location in pydantic's errors when a mapping's key, and not its value, is wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The type and bounds of the value at one location of a file."""

    annotation: Any
    bounds: tuple[Any, ...] = ()


def _paths(model: Section, index_of: Callable[[_Path], str | None], at: _Path = ()) -> Iterator[_Path]:
    """Yield every key below `at`. In a list of sections, yield the keys of the entry that `index_of` names, if any."""
    for name, place in _fields(model).items():
        path = (*at, name)
        yield path
        # A list of sections is known by its first entry's type, if it has one.
        entry = _entry(place.annotation, 0)
        if section := _section_of(place.annotation):
            yield from _paths(section, index_of, path)
        elif entry and (section := _section_of(entry.annotation)) and (index := index_of(path)) is not None:
            yield from _paths(section, index_of, (*path, index))


def _indices(location: Sequence[int | str]) -> Callable[[_Path], str | None]:
    """Return the `index_of` for suggestions about an unknown key.

    For a list on the path to the key it returns the entry that holds the key; for a list below the key's section it
    returns the first entry; for any other list None.
    """
    names = tuple(map(str, location))

    def index_of(path: _Path) -> str | None:
        if names[: len(path)] == path and len(names) > len(path):
            return names[len(path)]
        return "0" if path[: len(names) - 1] == names[:-1] else None

    return index_of


def _place_at(model: Section, location: Sequence[int | str]) -> _Place | None:
    """Return the type and bounds at a location, or None if the model has no such location."""
    place: _Place | None = _Place(model)
    for part in location:
        if place is None:
            return None
        # A section is entered by a key's name; anything else by an index or a key of a mapping.
        if section := _section_of(place.annotation):
            place = _fields(section).get(str(part))
        else:
            place = _entry(place.annotation, part)
    return place


def _names(model: Section, location: Sequence[int | str]) -> tuple[str, ...]:
    """Return the parts of a location as a person writes them: without pydantic's tags of the kinds of entries."""
    places = (_place_at(model, location[:i]) for i in range(len(location)))
    is_tag = [
        place is not None and part in _kinds(place.annotation) for place, part in zip(places, location, strict=True)
    ]
    return tuple(str(part) for part, tagged in zip(location, is_tag, strict=True) if not tagged)


def _kinds(annotation: Any) -> dict[str, Any]:
    """Return the members of a union whose kinds a `Discriminator` distinguishes, by their tags; empty for any other."""
    return {
        metadata.tag: choice
        for choice in _alternatives(annotation)
        if typing.get_origin(choice) is Annotated
        for metadata in choice.__metadata__
        if isinstance(metadata, pydantic.Tag)
    }


def _entry(annotation: Any, part: int | str) -> _Place | None:
    """Return the place of one entry of a list or mapping, or of a mapping's key; None for any other type."""
    if kind := _kinds(annotation).get(str(part)):
        return _bare(kind)
    for choice in _alternatives(annotation):
        bare = _bare(choice).annotation
        origin, args = typing.get_origin(bare), typing.get_args(bare)
        if origin is dict:
            return _bare(args[0] if part == _KEY else args[1])
        if origin is frozenset or (origin is tuple and args[-1] is Ellipsis):
            return _bare(args[0])
        if origin is tuple and isinstance(part, int) and part < len(args):
            return _bare(args[part])
    return None


def _bare(annotation: Any) -> _Place:
    """Split an annotation into the bare type that a file has, and its bounds."""
    if typing.get_origin(annotation) is not Annotated:
        return _Place(annotation)
    inner, *metadata = typing.get_args(annotation)
    bounds = [each for one in metadata for each in (one.metadata if isinstance(one, FieldInfo) else (one,))]
    in_file = next((each.from_type for each in bounds if isinstance(each, ValidateAs)), inner)
    return _Place(in_file, tuple(bounds))


def _fields(section: Section) -> dict[str, _Place]:
    """Return the keys of a section with their types and bounds."""
    if issubclass(section, Config):
        return {name: _Place(field.annotation, tuple(field.metadata)) for name, field in section.model_fields.items()}
    hints = typing.get_type_hints(section, include_extras=True)
    return {field.name: _bare(hints[field.name]) for field in dataclasses.fields(section)}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _section_of(annotation: Any) -> Section | None:
    # Which kind of a section an entry is depends on the entry.
    if _kinds(annotation):
        return None
    return next((bare for choice in _alternatives(annotation) if _is_section(bare := _bare(choice).annotation)), None)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, Config) or dataclasses.is_dataclass(annotation))


def _base(annotation: Any) -> Any:
    chosen = next((a for a in _alternatives(annotation) if a is not type(None)), annotation)
    bare = _bare(chosen).annotation
    return typing.get_origin(bare) or bare


_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a mapping",
    tuple: "a list",
    frozenset: "a list",
}
_BOUNDS = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}", "pattern": "matching {}"}
_LENGTHS = {"min_length": "of at least {} items", "max_length": "of at most {} items"}
_CHARACTERS = {"min_length": "of at least {} characters", "max_length": "of at most {} characters"}
_WORDS = {tuple: _LENGTHS, frozenset: _LENGTHS, str: {**_BOUNDS, **_CHARACTERS}}


def _allowed(place: _Place | None) -> str:
    if place is None:
        return ""
    base = _base(place.annotation)
    if base is Literal:
        chosen = next(a for a in _alternatives(place.annotation) if typing.get_origin(a) is Literal)
        kind = "one of " + ", ".join(map(str, typing.get_args(chosen)))
    elif isinstance(base, type) and issubclass(base, enum.Enum):
        kind = "one of " + ", ".join(str(each.value) for each in base)
    elif _is_section(base):
        kind = "a mapping with keys " + ", ".join(_fields(base))
    else:
        kind = _KINDS.get(base, "valid")
    words = _WORDS.get(base, _BOUNDS)
    # Bounds stand on the field itself, or on the members of a union such as an optional number.
    inner = [bound for choice in _alternatives(place.annotation) for bound in _bare(choice).bounds]
    items = (*place.bounds, *inner)
    said = [item.text for item in items if isinstance(item, Words)]
    # A pattern is shown only if no sentence explains it.
    bounds = [
        words[name].format(_number(value))
        for item in items
        for name in words
        if (value := getattr(item, name, None)) is not None and not (said and name == "pattern")
    ]
    null = " or null" if type(None) in _alternatives(place.annotation) else ""
    return " ".join([kind, *bounds, *said]) + null


def _number(bound: Any) -> Any:
    """Return a bound for a message; a large one is written in powers of ten."""
    is_long = isinstance(bound, float) or (isinstance(bound, int) and abs(bound) >= 10**7)
    return f"{bound:g}" if is_long else bound


def _shown(value: object) -> str:
    return shortened(json.dumps(value, default=str))
