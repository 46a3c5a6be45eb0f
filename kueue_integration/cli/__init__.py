"""`singularityctl`. One module per command, loaded when it is used. Nothing here decides: it calls the library.

Exit codes: 0 done; 1 the job failed; 2 bad input; 3 the cluster or the platform is not as it must be.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

import click

from ..errors import ConflictError, JobNotFoundError, RequestRefusedError, SingularityError, SpecError
from .output import echo

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_PLATFORM = 3

_COMMANDS = {
    "submit": ("submit:submit", "Submit a training job to a Kueue queue."),
    "status": ("status:status", "Show jobs, or one job with its attempts and checkpoints."),
    "top": (
        "top:top",
        "Show quota, the jobs that hold it or wait for it, goodput, cost, and the actions of the planner.",
    ),
    "report": ("report:report", "Show the promised and the delivered share of device time, per job and tenant."),
    "trace": ("trace:trace", "Show where the seconds of a move went."),
    "logs": ("logs:logs", "Print what the ranks print, across attempts."),
    "resize": ("resize:resize", "Give a job more or fewer pods."),
    "migrate": ("migrate:migrate", "Move a job to another flavor, or away from a node."),
    "drain": ("drain:drain", "Move all training jobs away from nodes."),
    "checkpoint": ("checkpoint:checkpoint", "Save a checkpoint of a running job, which trains on."),
    "pause": ("pause:pause", "Stop a job with a checkpoint and give its quota back."),
    "resume": ("resume:resume", "Queue a paused job again."),
    "rewind": ("rewind:rewind", "Go on from an older checkpoint of a job."),
    "fork": ("fork:fork", "Start a second job from a checkpoint of a job."),
    "render": ("submit:render", "Print the Kubernetes objects of a job without creating them."),
    "adopt": ("adopt:adopt", "Make a managed job out of a plain Job."),
    "delete": ("delete:delete", "Delete a job with everything that belongs to it."),
    "checkpoints": ("checkpoints:checkpoints", "The checkpoints of a job: ls, show, verify, gc."),
    "cells": ("cells:cells", "Affinity cells: objects for Kueue, and whether their promise was kept."),
    "fence": ("fence:fence", "Let training jobs into ClusterQueues: add our admission check, keep the others."),
    "unfence": ("fence:unfence", "Take our admission check off ClusterQueues, before an uninstall."),
    "backup": ("backup:backup", "Print all unfinished jobs with their history, to restore them one day."),
    "restore": ("backup:restore", "Create the jobs of a backup, which go on from their last checkpoints."),
    "version": ("version:version", "Show the versions of this program, the controller, Kueue and Kubernetes."),
    "doctor": ("doctor:doctor", "Check cluster, Kueue and chart; say how to fix what is wrong."),
    "completion": ("completion:completion", "Print the completion script for bash, zsh or fish."),
}
_GROUPS = ("checkpoints", "cells")
PLUGINS = "singularityctl.commands"
"""Entry point group: another distribution adds a command by an entry point that names a `click.Command`."""


def _plugins() -> dict[str, EntryPoint]:
    """Commands of other distributions, by name. A name of our own cannot be taken."""
    return {point.name: point for point in entry_points(group=PLUGINS) if point.name not in _COMMANDS}


def complain(error: SingularityError, of: str = "") -> int:
    """Print it, after the words `of` what; the exit code that stands for it."""
    if isinstance(error, SpecError):
        for field, value, text in error.problems:
            echo(f"error: {of}{field} = {value!r}: {text}", err=True)
        return EXIT_BAD_INPUT
    echo(f"error: {of}{error}", err=True)
    return (
        EXIT_BAD_INPUT if isinstance(error, (ConflictError, JobNotFoundError, RequestRefusedError)) else EXIT_PLATFORM
    )


_ANYWHERE = ("-n", "--namespace", "--context", "--kubeconfig")
"""Options of nearly every command, which kubectl takes before the verb, too."""


def _options_last(args: Sequence[str]) -> list[str]:
    """Return `args` with these options behind the verb, where they are read."""
    front: list[str] = []
    rest = [*args]
    while rest and (rest[0].partition("=")[0] in _ANYWHERE or re.match("-n.", rest[0])):
        taken = 2 if rest[0] in _ANYWHERE else 1
        front, rest = [*front, *rest[:taken]], rest[taken:]
    if not front or not rest or rest[0].startswith("-"):
        return [*args]
    below = 2 if rest[0] in _GROUPS and len(rest) > 1 else 1
    return [*rest[:below], *front, *rest[below:]]


class _LazyGroup(click.Group):
    """Loads a command when it is called: `singularityctl status` need not import what `local` needs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _options_last(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
            command = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        elif cmd_name in (plugins := _plugins()):
            command = plugins[cmd_name].load()
        else:
            return None
        if not isinstance(command, click.Command):
            raise TypeError(f"command {cmd_name}: {command!r} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
        for name in _plugins():
            command = self.get_command(ctx, name)
            rows.append((name, command.get_short_help_str(limit=80) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SingularityError as error:
            ctx.exit(complain(error))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="airflow-provider-singularity")
def main() -> None:
    """Training jobs on Kueue that can be preempted, moved and resized without losing a step.

    \b
    Examples:
      singularityctl submit --name digits --queue training --workers 4 --min-workers 2 \\
          --workdir ./src --cpu 250m --wait -- python3 train.py --steps 900
      singularityctl status digits -w
      singularityctl logs digits --follow --rank 0
      singularityctl pause -l team=vision --wait

    \b
    Exit codes:
      0 done   1 the job failed   2 bad input   3 the cluster or the platform is not as it must be
    """
