"""Shapes of commands that several packages mount."""

from collections.abc import Callable
from typing import Any

import click


class DefaultGroup(click.Group):
    """A group with a default verb: `periplus agent --region X` is `periplus agent run --region X`.

    `takes`: which first words, of those that are no verb, are the default verb's.
    """

    def __init__(
        self, *args: Any, default: str, takes: Callable[[str], bool] = lambda word: False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._default = default
        self._takes = takes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0] not in self.commands):
            is_default = not args or args[0].startswith("-") or self._takes(args[0])
            args = [self._default, *args] if is_default else args
        return super().parse_args(ctx, args)
