"""Shapes of commands that several packages mount."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem


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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Also the options of the default verb: `periplus agent --help` is where somebody looks for `--region`."""
        super().format_options(ctx, formatter)
        command, inner = self._default_command(ctx)
        own = (param for param in command.params if isinstance(param, click.Option))
        rows = [record for param in own if (record := param.get_help_record(inner))]
        with formatter.section(f"Options of {self._default}, the default command"):
            formatter.write_dl(rows)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Also how to call the default verb without naming it."""
        super().format_usage(ctx, formatter)
        command, inner = self._default_command(ctx)
        formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(inner)), prefix="or:    ")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs and options; and files, where no verb begins so and the default verb takes one."""
        found = super().shell_complete(ctx, incomplete)
        takes_file = any(isinstance(param, click.Argument) for param in self._default_command(ctx)[0].params)
        return found or ([CompletionItem(incomplete, type="file")] if takes_file else [])

    def _default_command(self, ctx: click.Context) -> tuple[click.Command, click.Context]:
        command = self.commands[self._default]
        return command, click.Context(command, info_name=self._default, parent=ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0] not in self.commands):
            is_default = not args or args[0].startswith("-") or self._takes(args[0])
            args = [self._default, *args] if is_default else args
        return super().parse_args(ctx, args)
