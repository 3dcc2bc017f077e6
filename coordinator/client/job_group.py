"""The group `periplus job`, which loads a command only when it is called.

Most commands talk to a coordinator and load gRPC, the job file and the planner's files, which takes half a second.
Those in `ALONE` read a run directory and need none of it, so each is loaded from a module of its own.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType

import click

from periplus.cli.command_groups import CommandGroup

ALONE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "samples": ("coordinator.client.samples", "samples_command"),
        "audit": ("coordinator.client.audit", "audit_command"),
        "report": ("coordinator.client.report", "report_command"),
    }
)
"""Commands that need no coordinator: their module, and their name in it."""

REST = ("coordinator.client.commands", "job")
"""The group that has all commands."""


class JobGroup(CommandGroup):
    """The commands of `periplus job`, loaded when they are called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return _loaded(*REST).list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in ALONE:
            command = getattr(importlib.import_module(ALONE[cmd_name][0]), ALONE[cmd_name][1])
            assert isinstance(command, click.Command)
            return command
        return _loaded(*REST).get_command(ctx, cmd_name)


def _loaded(module: str, name: str) -> click.Group:
    group = getattr(importlib.import_module(module), name)
    assert isinstance(group, click.Group)
    return group


@click.group(cls=JobGroup)
def job() -> None:
    """Submit jobs, watch them and check their results."""
