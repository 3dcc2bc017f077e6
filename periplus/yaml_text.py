"""YAML by the core schema of YAML 1.2, in both directions: `1e-3` is a number, `no` is a word, `010` is ten.

PyYAML alone reads YAML 1.1, where these are a text, false and eight. Keys are text, and a key that is given twice is an
error, not a silent choice of the last. No tag makes an object.
"""

import re
from typing import Any

import yaml

from periplus.errors import ConfigError


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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).replace(".inf", "inf").replace(".nan", "nan"))


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
_CoreLoader.add_constructor(_TAG + "int", _integer)
_CoreLoader.add_constructor(_TAG + "float", _number)


class _CoreDumper(yaml.SafeDumper):
    """Quotes exactly the texts that _CoreLoader would read as something else."""

    yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


def dump(tree: Any) -> str:
    """Text that parse() reads back as the same tree, keys in their order."""
    return str(yaml.dump(tree, Dumper=_CoreDumper, sort_keys=False, width=120))
