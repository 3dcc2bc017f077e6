"""Listings of values for the option `-o` of commands: trees for programs, aligned columns for people.

A tree is a dictionary of JSON values. The forms `json` and `yaml` print it whole, `table` shows some of its values,
`wide` more of them, and `name` the names only. Control characters in text are replaced before it reaches a terminal.
The module is pure; the time comes in as an argument.
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
    """Form in which a command prints its result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def output_option(*choices: Output) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `-o` of a command, with these forms or all; the first one is the default."""
    names = [choice.value for choice in choices or tuple(Output)]
    return click.option(
        "-o", "--output", type=click.Choice(names), default=names[0], show_default=True, help="Form of the result."
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing: its heading, and a function from a tree and the current time to a cell's text.

    A `wide` column is shown in that form only. `right` aligns the column to the right. An `optional` one is left out if
    it is empty in every row.
    """

    heading: str
    cell: Callable[[Tree, float], str]
    wide: bool = False
    right: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a list of regions, links or jobs is printed: its columns, and the names that a program finds it by.

    `key` is the plural under which a program finds the trees. `name` holds the fields that make a tree's name. `empty`
    is the text for an empty listing, which the caller prints.
    """

    key: str
    name: tuple[str, ...]
    columns: tuple[Column, ...]
    empty: str


def render(listing: Listing, trees: Sequence[Tree], output: Output, now_s: float) -> str:
    """Return the text for standard output. It is empty if a listing for people has no entries."""
    match output:
        case Output.JSON | Output.YAML:
            return render_tree({"schema": f"periplus.{listing.key}/1", listing.key: list(trees)}, output)
        case Output.NAME:
            return "\n".join(" ".join(str(tree[field]) for field in listing.name) for tree in trees)
    columns = [column for column in listing.columns if output is Output.WIDE or not column.wide]
    return columns_of(columns, trees, now_s) if trees else ""


def render_tree(tree: Tree, output: Output) -> str:
    """Return one tree as JSON or YAML."""
    return finite_json.dumps(tree, indent=2) if output is Output.JSON else dump(tree).rstrip("\n")


def columns_of(columns: Sequence[Column], trees: Sequence[Tree], now_s: float) -> str:
    """Return the trees as aligned columns under their headings. No cell is cut."""
    columns = [each for each in columns if not each.optional or any(each.cell(tree, now_s) for tree in trees)]
    rows = [[column.heading for column in columns]]
    # `printable` keeps text from a user's file from controlling the terminal.
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
