"""Reads and writes YAML by the core schema of YAML 1.2: `1e-3` is a number, `no` is text, `010` is ten.

PyYAML alone reads YAML 1.1, where these three are a text, false and eight. Keys must be text, and a key that is given
twice is an error. The result holds only values that JSON can hold; any other tag is refused.

The cost of reading an untrusted text is bounded. A text has at most `MAX_CHARACTERS` characters; lists and mappings are
nested at most `MAX_DEPTH` deep; and there are at most `MAX_VALUES` values. An alias counts as all values that it refers
to, so that a few lines of aliases cannot expand to millions of values. JSON is also valid YAML; it is read by Python's
JSON parser, which is twenty times faster, and so it may be longer.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from periplus.errors import ConfigError, shortened

MAX_CHARACTERS = 8_000_000
"""Largest number of characters of a YAML text. Chosen by hand: libyaml takes about two seconds for it."""

MAX_JSON_CHARACTERS = 32_000_000
"""Largest number of characters of a JSON text. Chosen by hand: reading it takes about a second."""

MAX_DEPTH = 64
"""Largest depth of nested lists and mappings. Chosen by hand: our files need fewer than ten, and Python's recursion
limit is near a thousand."""

MAX_VALUES = 1_000_000
"""Largest number of keys, values, lists and mappings of one text together. Chosen by hand."""


def parse(text: str, source: str) -> Any:
    """Return the value of a YAML text, or None for an empty one. Raises: ConfigError with `source` and the line."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _json_value(text, source)
        except ValueError:
            pass  # YAML's flow style allows more than JSON, and the YAML reader has better messages
    _check_length(text, MAX_CHARACTERS, "YAML", source)
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error


def parse_json(text: str, source: str) -> Any:
    """Return the value of a JSON text. Raises: ConfigError with `source` and, where it is known, the line."""
    try:
        return _json_value(text, source)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{source}: not valid JSON: {error}") from error


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _json_value(text: str, source: str) -> Any:
    """Return the value of a JSON text. Raises: ValueError if it is not JSON, ConfigError if it exceeds a limit."""
    _check_length(text, MAX_JSON_CHARACTERS, "JSON", source)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise ConfigError(_too_deep(source)) from error
    _check_size(value, source)
    if r"\ud" in text.lower():  # refuse the escape of half a surrogate pair, which cannot be written as UTF-8
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {again!r} is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_size(value: Any, source: str) -> None:
    """Check the depth and the number of values. Raises: ConfigError if either exceeds its limit."""
    # Level by level and without recursion, since the depth is what is to be limited.
    level, depth, num = [value], 0, 1
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        # A mapping's keys count as values too.
        num += sum(len(each) * (2 if isinstance(each, dict) else 1) for each in level)
        if depth > MAX_DEPTH:
            raise ConfigError(_too_deep(source))
        if num > MAX_VALUES:
            raise ConfigError(_too_many(source))
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]


def _check_length(text: str, most: int, form: str, source: str) -> None:
    if len(text) > most:
        raise ConfigError(
            f"{source}: has {len(text):,} characters, but {form} may have at most {most:,}; leave out what is not used"
            + (", or write it as JSON" if form == "YAML" else "")
        )


def _too_deep(source: str) -> str:
    return f"{source}: lists and mappings are nested more than {MAX_DEPTH} deep; no file of Periplus needs that"


def _too_many(source: str) -> str:
    return (
        f"{source}: has more than {MAX_VALUES:,} keys and values, where an alias counts as all values that it refers "
        "to; leave out what is not used"
    )


# ---- YAML ------------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
"""The plain scalars that are not text: tag, pattern, and the characters with which such a scalar may begin."""


class _CoreResolver(yaml.resolver.BaseResolver):
    """Resolves the tag of a plain scalar by the core schema of YAML 1.2."""


for _name, _pattern, _first in _SCALARS:
    _CoreResolver.add_implicit_resolver(
        _TAG + _name, re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )


class _Reader:
    """Builds the value of one text from its parsing events.

    The events come from libyaml if PyYAML was built with it, which is ten times faster.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        self._resolver = _CoreResolver()
        self._anchors: dict[str, tuple[Any, int, int] | None] = {}
        """Anchor -> (its value, the number of values in it, their depth); None while its value is being read."""
        self._num = 0

    def document(self) -> Any:
        """Return the value of the only document of the text, or None if there is no document."""
        self._next(yaml.StreamStartEvent)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value, _ = self._value(next(self._events), 0)
        self._next(yaml.DocumentEndEvent)
        if not isinstance(event := next(self._events), yaml.StreamEndEvent):
            _refuse("there is more than one document", event)
        return value

    def _next(self, kind: type[Any]) -> None:
        event = next(self._events)
        assert isinstance(event, kind), event

    def _value(self, event: Any, depth: int) -> tuple[Any, int]:
        """Return the value that begins with this event, and its number of nested levels of lists and mappings."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        # Every value counts, so that a text with repeated aliases cannot grow without bound.
        self._count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            scalar = self._scalar(event)
            if event.anchor is not None:
                self._anchors[event.anchor] = (scalar, 1, 0)
            return scalar, 0
        if depth >= MAX_DEPTH:
            _refuse(f"lists and mappings are nested more than {MAX_DEPTH} deep", event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        # The number of values below is kept with the anchor, so that each alias costs as many as it stands for.
        begun = self._num
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if event.tag not in (None, "!", _TAG + ("seq" if is_list else "map")):
            _refuse(f"the tag {event.tag} is none of JSON's kinds of values", event)
        value, height = self._list(depth) if is_list else self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._num - begun + 1, height)
        return value, height

    def _alias(self, event: Any, depth: int) -> tuple[Any, int]:
        if event.anchor not in self._anchors:
            _refuse(f"the alias {event.anchor!r} has no anchor before it", event)
        found = self._anchors[event.anchor]
        if found is None:
            _refuse(f"the alias {event.anchor!r} refers to the value that contains it", event)
        # An alias costs as much as a copy would: this bounds the "billion laughs" attack.
        value, num, height = found
        self._count(num, event)
        if depth + height > MAX_DEPTH:
            _refuse(f"lists and mappings are nested more than {MAX_DEPTH} deep", event)
        return value, height

    def _count(self, num: int, event: Any) -> None:
        self._num += num
        if self._num > MAX_VALUES:
            _refuse(
                f"more than {MAX_VALUES:,} keys and values, where an alias counts as all values that it refers to",
                event,
            )

    def _list(self, depth: int) -> tuple[list[Any], int]:
        found, height = [], 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, under = self._value(event, depth + 1)
            found.append(value)
            height = max(height, under)
        return found, height + 1

    def _mapping(self, depth: int) -> tuple[dict[str, Any], int]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        height, has_merged = 0, False
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            value_event = next(self._events)
            value, under = self._value(value_event, depth + 1)
            height = max(height, under)
            if key is None:
                if has_merged:
                    _refuse("the key '<<' is given twice", event)
                has_merged, merged = True, _merged(value, value_event)
            elif key in own:
                _refuse(f"the key {key!r} is given twice", event)
            else:
                own[key] = value
        # A mapping's own keys win over merged ones, wherever `<<` stands.
        return {**merged, **own}, height + 1

    def _key(self, event: Any) -> str | None:
        """Return the text of a key, or None for the merge key `<<`."""
        if isinstance(event, yaml.AliasEvent):
            key, _ = self._alias(event, 0)
        elif isinstance(event, yaml.ScalarEvent):
            # A plain `<<` merges; in quotes it is an ordinary key.
            if self._tag(event) == _TAG + "merge":
                return None
            key, _ = self._value(event, 0)
        else:
            key = None
        if not isinstance(key, str):
            _refuse("a key must be text", event)
        return key

    def _tag(self, event: Any) -> str:
        if event.tag in (None, "!"):
            implicit = event.implicit if event.tag is None else (False, True)
            return str(self._resolver.resolve(yaml.ScalarNode, event.value, implicit))  # type: ignore[no-untyped-call]
        return str(event.tag)

    def _scalar(self, event: Any) -> Any:
        text, tag = event.value, self._tag(event)
        try:
            match tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
                case "float":
                    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                case "str" | "merge":
                    text.encode()  # raises ValueError for half a surrogate pair
                    return text
                case _:
                    return _refuse(f"the tag {tag} is none of JSON's kinds of values", event)
        except (KeyError, ValueError):
            _refuse(f"{shortened(text)!r} cannot be read as {tag.removeprefix(_TAG)}", event)


def _merged(value: Any, event: Any) -> dict[str, Any]:
    """Return the keys that `<<: value` adds. Of several mappings, the first one with a key gives its value."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        _refuse("'<<' takes a mapping or a list of mappings", event)
    return {key: each for part in reversed(parts) for key, each in part.items()}


def _refuse(problem: str, event: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(None, None, problem, event.start_mark)


# ---- writing ---------------------------------------------------------------------------------------------------------


class _CoreDumper(yaml.SafeDumper):
    """A YAML dumper that quotes exactly the texts that `parse` would not read as text."""

    yaml_implicit_resolvers = _CoreResolver.yaml_implicit_resolvers


def dump(tree: Any) -> str:
    """Return YAML text that `parse` reads back as the same tree, with the keys in their order."""
    return str(yaml.dump(tree, Dumper=_CoreDumper, sort_keys=False, width=120))
