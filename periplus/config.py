"""Configuration: one frozen model a file, read from YAML, overridden by `dotted.key=value`, refused with a reason.

What it decides: which text is a valid configuration and what to tell a person whose text is not. A file is
read as YAML 1.2 (`periplus.yaml_text`); after that the tree is plain JSON and is validated as JSON, strictly: text is
never turned into a number.

Every refusal is a ConfigError which names the file, the dotted key, the offending value and what is allowed. All
refusals of a file come at once. What it refuses to know: what the keys mean.
"""

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import pydantic
from pydantic.fields import FieldInfo

from periplus import yaml_text
from periplus.errors import ConfigError

Tree = dict[str, Any]
"""What a YAML file holds: JSON values under text keys."""


class Config(pydantic.BaseModel):
    """Base of every configuration. A docstring under a field is its description in the JSON schema."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


M = TypeVar("M", bound=Config)


def load(
    model: type[M],
    path: Path | None,
    overrides: Sequence[str] = (),
    known_elsewhere: Mapping[str, str] | None = None,
) -> M:
    """Read a file (none: start from the defaults), apply the overrides from left to right, validate.

    `known_elsewhere` maps names of other tools to our dotted keys, for suggestions only.

    Raises: ConfigError.
    """
    tree = read_yaml(path) if path else {}
    elsewhere = known_elsewhere or {}
    tree = override(model, tree, overrides, elsewhere)
    return validate(model, tree, str(path) if path else "the overrides", elsewhere)


def read_yaml(path: Path) -> Tree:
    """The mapping in a YAML (or JSON) file. Raises: ConfigError with the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    tree = yaml_text.parse(text, str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold a mapping of keys to values, not {_shown(tree)}")
    return tree


# ---- overrides -------------------------------------------------------------------------------------------------------


def override(
    model: type[Config], tree: Mapping[str, Any], overrides: Sequence[str], known_elsewhere: Mapping[str, str]
) -> Tree:
    """A copy of the tree with each `dotted.key=value` set; the right-most wins, values are YAML.

    Raises: ConfigError.
    """
    result: Tree = json.loads(json.dumps(tree))
    for text in overrides:
        key, equals, value_text = text.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(f"override {text!r}: write it as dotted.key=value, such as seed=3")
        _check_key(model, path, f"override {text!r}", known_elsewhere)
        value, node = yaml_text.parse(value_text, f"override {text!r}"), result
        for name in path[:-1]:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[path[-1]] = value
    return result


def _check_key(model: type[Config], path: Sequence[str], source: str, known_elsewhere: Mapping[str, str]) -> None:
    section: type[Config] | None = model
    for i, name in enumerate(path):
        assert section is not None
        if name not in section.model_fields:
            raise ConfigError(f"{source}: {_unknown(model, tuple(path[: i + 1]), known_elsewhere)}")
        field = section.model_fields[name]
        section = _section_of(field)
        if section is None:
            if i + 1 < len(path) and _base(field.annotation) is not dict:
                raise ConfigError(f"{source}: {'.'.join(path[: i + 1])} holds one value, it has no keys below it")
            return


# ---- validation ------------------------------------------------------------------------------------------------------


def validate(model: type[M], tree: object, source: str, known_elsewhere: Mapping[str, str] | None = None) -> M:
    """The model that a tree stands for. Raises: ConfigError with every refusal, one a line."""
    try:
        return model.model_validate_json(json.dumps(tree))
    except pydantic.ValidationError as error:
        refusals = [_refusal(model, detail, known_elsewhere or {}) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{source}: {refusal}" for refusal in refusals)) from error


def check_schema(tree: object, schema: str, source: str) -> Tree:
    """The tree without its `schema` key. Raises: ConfigError if it is not a mapping that carries this schema."""
    if not isinstance(tree, dict) or tree.get("schema") != schema:
        found = tree.get("schema") if isinstance(tree, dict) else tree
        raise ConfigError(f"{source}: must carry schema: {schema}, found {_shown(found)}")
    return {key: value for key, value in tree.items() if key != "schema"}


def parse_json(text: str, source: str) -> object:
    """The value that a JSON text stands for. Raises: ConfigError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}, line {error.lineno}: not valid JSON: {error.msg}") from error


def _refusal(model: type[Config], detail: Any, known_elsewhere: Mapping[str, str]) -> str:
    location: tuple[int | str, ...] = detail["loc"]
    key = ".".join(map(str, location))
    if detail["type"] == "extra_forbidden":
        return _unknown(model, location, known_elsewhere)
    if detail["type"] == "missing":
        allowed = _allowed(_field_at(model, location))
        return f"{key} is missing" + (f"; it must be {allowed}" if allowed else "")
    if not location:
        return f"must be a mapping of keys to values, not {_shown(detail['input'])}"
    allowed = _allowed(_field_at(model, location))
    return (
        f"{key} is {_shown(detail['input'])}, but must be {allowed or detail['msg'].removeprefix('Input should be ')}"
    )


def _unknown(model: type[Config], location: Sequence[int | str], known_elsewhere: Mapping[str, str]) -> str:
    *parents, name = map(str, location)
    key = ".".join((*parents, name))
    section = _section_at(model, parents)
    siblings = {".".join((*parents, s)): s for s in section.model_fields} if section else {}
    leaves: dict[str, list[str]] = {}
    for known in dotted_keys(model):
        leaves.setdefault(known.rpartition(".")[2], []).append(known)
    if name in known_elsewhere:
        guesses = [known_elsewhere[name]]
    elif name in leaves:
        guesses = leaves[name][:3]
    elif near := difflib.get_close_matches(name, siblings.values(), n=1):
        guesses = [".".join((*parents, near[0]))]
    else:
        far = difflib.get_close_matches(name, leaves, n=1, cutoff=0.75)
        guesses = leaves[far[0]][:3] if far else []
    hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"known keys: {', '.join(siblings.values())}"
    return f"unknown key {key}; {hint}"


def dotted_keys(model: type[Config], prefix: str = "") -> tuple[str, ...]:
    """Every key of the model, sections included, such as `sampling.temperature`."""

    def walk() -> Iterator[str]:
        for name, field in model.model_fields.items():
            yield prefix + name
            if section := _section_of(field):
                yield from dotted_keys(section, f"{prefix}{name}.")

    return tuple(walk())


def _section_at(model: type[Config], path: Sequence[str]) -> type[Config] | None:
    section: type[Config] | None = model
    for name in path:
        field = section.model_fields.get(name) if section else None
        section = _section_of(field) if field else None
    return section


def _field_at(model: type[Config], location: Sequence[int | str]) -> FieldInfo | None:
    section = _section_at(model, [str(part) for part in location[:-1]])
    return section.model_fields.get(str(location[-1])) if section and location else None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _section_of(field: FieldInfo) -> type[Config] | None:
    for choice in _alternatives(field.annotation):
        if isinstance(choice, type) and issubclass(choice, Config):
            return choice
    return None


def _base(annotation: Any) -> Any:
    chosen = next((a for a in _alternatives(annotation) if a is not type(None)), annotation)
    return typing.get_origin(chosen) or chosen


_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a mapping",
    tuple: "a list",
}
_BOUNDS = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}", "pattern": "matching {}"}
_LENGTHS = {"min_length": "of at least {} items", "max_length": "of at most {} items"}


def _allowed(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    base = _base(field.annotation)
    if base is Literal:
        chosen = next(a for a in _alternatives(field.annotation) if typing.get_origin(a) is Literal)
        kind = "one of " + ", ".join(map(str, typing.get_args(chosen)))
    elif isinstance(base, type) and issubclass(base, Config):
        kind = "a mapping with keys " + ", ".join(base.model_fields)
    else:
        kind = _KINDS.get(base, "valid")
    words = _LENGTHS if base is tuple else _BOUNDS
    bounds = [
        words[name].format(value)
        for item in field.metadata
        for name in words
        if (value := getattr(item, name, None)) is not None
    ]
    null = " or null" if type(None) in _alternatives(field.annotation) else ""
    return " ".join([kind, *bounds]) + null


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


# ---- resolved dump ---------------------------------------------------------------------------------------------------


def dump_json(config: Config) -> str:
    """Every key with its value, defaults included, as JSON."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def dump_yaml(config: Config) -> str:
    """Every key with its value, defaults included, as YAML that load() reads back."""
    return yaml_text.dump(config.model_dump(mode="json"))
