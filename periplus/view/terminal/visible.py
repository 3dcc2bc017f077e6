"""Text of others, made safe to show: whatever is not a visible character becomes a visible escape.

Completions, error messages, logs and names of regions are hostile text. Control characters can command a terminal, and
marks of direction can make a text read otherwise than it is. They are shown as escapes, such as `\\x1b` or `\\u202e`.
Line breaks stay, and tabs become spaces. Commands print by `say`; JSON and YAML have escapes of their own.
"""

import click

TAB = "    "
"""What stands for a tab."""


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line on standard output, or standard error, with visible escapes."""
    click.echo(visible_text(text), err=err)


def visible_text(text: str) -> str:
    """Return the text with visible escapes in place of control, format and unassigned characters and surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else TAB if c == "\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def without_middle(text: str, most: int) -> str:
    """Return a text of at most about `most` characters: of a longer one, beginning, end, and how much is missing."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters are not shown]\n{text[-half:]}"
