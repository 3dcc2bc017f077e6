"""Click groups that several packages use for their commands: one that helps with a wrong name, one with a default."""

import difflib
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem


class CommandGroup(click.Group):
    """A command group that answers an unknown name with the command that is nearest, or with all of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line. Raises: click.UsageError if there is none of that name."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.65)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            ctx.fail(f"No such command {name!r}{self._what_else_is_unknown()}; {hint}")
        return super().resolve_command(ctx, args)

    def _what_else_is_unknown(self) -> str:
        """Return the end of the message about an unknown name: what it was looked up as besides a command."""
        return ""


class DefaultGroup(CommandGroup):
    """A command group with a default command: `periplus agent --region X` means `periplus agent run --region X`.

    A command line that is empty or begins with an option goes to the default command. `takes` decides whether one that
    begins with a word that is not a command goes there too; without it none does.
    """

    def __init__(self, *args: Any, default: str, takes: Callable[[str], bool] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default
        self._takes = takes

    def _what_else_is_unknown(self) -> str:
        return ", and no such file" if self._takes else ""

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
        # `periplus agent --help` is about the group, not about its default command.
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0] not in self.commands):
            is_default = not args or args[0].startswith("-") or (self._takes is not None and self._takes(args[0]))
            args = [self._default, *args] if is_default else args
        return super().parse_args(ctx, args)
