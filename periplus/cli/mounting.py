"""A click group with a default command, which several packages use for their commands."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem


class DefaultGroup(click.Group):
    """A command group with a default command: `periplus agent --region X` means `periplus agent run --region X`.

    A command line that is empty or begins with an option goes to the default command. `takes` decides whether one that
    begins with a word that is not a command goes there too.
    """

    def __init__(
        self, *args: Any, default: str, takes: Callable[[str], bool] = lambda word: False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._default = default
        self._takes = takes

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add the options of the default command to the group's help, because users look for them there."""
        super().format_options(ctx, formatter)
        command, inner = self._default_command(ctx)
        own = (param for param in command.params if isinstance(param, click.Option))
        rows = [record for param in own if (record := param.get_help_record(inner))]
        with formatter.section(f"Options of {self._default}, the default command"):
            formatter.write_dl(rows)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add a usage line for the default command called without its name."""
        super().format_usage(ctx, formatter)
        command, inner = self._default_command(ctx)
        formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(inner)), prefix="or:    ")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and options; complete files if none matches and the default command takes an argument."""
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
