"""Shapes of commands that several packages mount."""

from typing import Any

import click


class DefaultGroup(click.Group):
    """A group with a default verb: `periplus agent --region X` is `periplus agent run --region X`."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0] not in self.commands):
            args = [self._default, *args] if not args or args[0].startswith("-") else args
        return super().parse_args(ctx, args)
