"""YAML by the core schema of YAML 1.2, in both directions: `1e-3` is a number, `no` is a word, `010` is ten.

PyYAML alone reads YAML 1.1, where these are a text, false and eight. Keys are text, and a key that is given twice is an
error, not a silent choice of the last. Values are what JSON has: no tag makes another object. A text that is small but
stands for something huge is refused before that is built: aliases of aliases, deep nesting, numbers of many digits.
"""

import re
from typing import Any, ClassVar

import yaml

from periplus.errors import ConfigError

MAX_DEPTH = 64
"""Levels of nesting: files of ours have under ten, and PyYAML's own recursion ends at about 300."""

MAX_VALUES = 1_000_000
"""Values that a text may stand for once its aliases are written out: ten times what the largest fleet has."""

MAX_DIGITS = 400
"""Digits of a whole number; no finite float has more, and reading a number takes the square of its digits."""


def parse(text: str, source: str) -> Any:
    """The value that a YAML text stands for. Raises: ConfigError naming `source` and the line."""
    try:
        return yaml.load(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error


class _CoreLoader(yaml.SafeLoader):
    """YAML 1.2 core schema; keys are text and occur once."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own registry
    yaml_constructors: ClassVar[dict[Any, Any]] = {  # PyYAML's own registry, without what JSON lacks
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("null", "str", "seq", "map")))
    }
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _refusal(f"more than {MAX_DEPTH} levels of nesting", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count_values(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            seen: set[str] = set()
            for key_node, _ in node.value:
                if key_node.tag != "tag:yaml.org,2002:str":
                    raise _refusal("a key must be text", key_node.start_mark)
                if key_node.value in seen:
                    raise _refusal(f"the key {key_node.value!r} is given twice", key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _refusal(problem: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def _count_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Values below and with a node, an aliased one counted wherever it stands; 0 in `counted`: on the way to it."""
    if id(node) in counted:
        if counted[id(node)] == 0:
            raise _refusal("an alias stands for something that it is a part of", node.start_mark)
        return counted[id(node)]
    counted[id(node)] = 0
    below: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        below = [each for pair in node.value for each in pair]
    elif isinstance(node, yaml.SequenceNode):
        below = node.value
    total = 1 + sum(_count_values(each, counted) for each in below)
    if total > MAX_VALUES:
        raise _refusal(f"more than {MAX_VALUES} values, aliases written out", node.start_mark)
    counted[id(node)] = total
    return total


def _boolean(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    text = str(loader.construct_scalar(node))
    if text not in ("true", "false"):
        raise _refusal(f"{text[:80]!r} is neither true nor false", node.start_mark)
    return text == "true"


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    if len(text) > MAX_DIGITS:
        raise _refusal(f"a whole number of {len(text)} characters", node.start_mark)
    try:
        return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
    except ValueError as error:
        raise _refusal(f"{text!r} is no whole number", node.start_mark) from error


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node))
    try:
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError as error:
        raise _refusal(f"{text[:80]!r} is no number", node.start_mark) from error


_TAG = "tag:yaml.org,2002:"
for _tag, _pattern, _first in (
    ("null", r"~|null|", "~n\0"),
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _CoreLoader.add_implicit_resolver(
        _TAG + _tag, re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )
_CoreLoader.add_constructor(_TAG + "bool", _boolean)
_CoreLoader.add_constructor(_TAG + "int", _integer)
_CoreLoader.add_constructor(_TAG + "float", _number)


class _CoreDumper(yaml.SafeDumper):
    """Quotes exactly the texts that _CoreLoader would read as something else."""

    yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


def dump(tree: Any) -> str:
    """Text that parse() reads back as the same tree, keys in their order."""
    return str(yaml.dump(tree, Dumper=_CoreDumper, sort_keys=False, width=120))
