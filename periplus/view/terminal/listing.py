"""Listings of values: as trees for programs, and as aligned columns for people. Pure: time comes in.

A tree holds JSON values; `json` and `yaml` print it whole, a table shows some of it, `wide` more of it, `name` the
names alone. Text from elsewhere is freed of control characters before it meets a terminal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import click

from periplus.config import finite_json
from periplus.config.yaml_text import dump
from periplus.view.state import printable

Tree = dict[str, Any]


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def output_option(*choices: Output) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `-o` of a command; of a listing it has every form, which is the default."""
    names = [choice.value for choice in choices or tuple(Output)]
    return click.option(
        "-o", "--output", type=click.Choice(names), default=names[0], show_default=True, help="Form of the result."
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and, for a tree and the present time, the text below it. `wide` columns show in that form alone."""

    heading: str
    cell: Callable[[Tree, float], str]
    wide: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """`key` is the plural under which a program finds the trees; `name` is a tree's field, or a pair's two."""

    key: str
    name: tuple[str, ...]
    columns: tuple[Column, ...]
    empty: str


def render(listing: Listing, trees: Sequence[Tree], output: Output, now_s: float) -> str:
    """The text for standard output, empty when a person has nothing to see."""
    match output:
        case Output.JSON | Output.YAML:
            return render_tree({"schema": f"periplus.{listing.key}/1", listing.key: list(trees)}, output)
        case Output.NAME:
            return "\n".join(" ".join(str(tree[field]) for field in listing.name) for tree in trees)
    columns = [column for column in listing.columns if output is Output.WIDE or not column.wide]
    return columns_of(columns, trees, now_s) if trees else ""


def render_tree(tree: Tree, output: Output) -> str:
    """One tree for a program."""
    return finite_json.dumps(tree, indent=2) if output is Output.JSON else dump(tree).rstrip("\n")


def columns_of(columns: Sequence[Column], trees: Sequence[Tree], now_s: float) -> str:
    """Aligned text; the last column may be long, and is not cut."""
    rows = [[column.heading for column in columns]]
    rows += [[printable(column.cell(tree, now_s)) or "-" for column in columns] for tree in trees]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = (
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)
