"""The pages of `singularityctl`: one for each command, with an anchor for each option, from click's own description."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

FOLDER = "cli"
NOT_SHIPPED = ("local", "demo")
"""Commands of the checkout: the wheel does not have them."""


def commands() -> dict[str, click.Command]:
    """Commands of the wheel by name, in the order of `singularityctl --help`."""
    import click

    from kueue_integration.cli import main

    context = click.Context(main, info_name="singularityctl")
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None and name not in NOT_SHIPPED}


def summary(command: click.Command) -> str:
    """The first sentence of the help."""
    return command.get_short_help_str(limit=200)


def _paragraphs(text: str) -> Iterator[str]:
    """Markdown of a help text: examples are a block of commands, exit codes a list."""
    for part in re.split(r"\n\s*\n", cleandoc(text.replace("\f", ""))):
        as_it_stands = part.strip("\n ").startswith("\b")
        part = part.replace("\b\n", "").replace("\b", "")
        head, _, rest = part.strip("\n").partition("\n")
        if head.strip() == "Examples:" or head.strip() == "Example:":
            yield f"```sh\n{cleandoc(chr(10) + rest)}\n```"
        elif head.strip() == "Exit codes:":
            codes = re.split(r"\s{3,}|\n", rest.strip())
            yield "Exit codes:\n\n" + "\n".join(f"- `{code[:1]}`{code[1:]}" for code in map(str.strip, codes) if code)
        elif as_it_stands:
            yield f"```text\n{cleandoc(part)}\n```"
        else:
            yield " ".join(part.split()).replace("|", "\\|").replace("<", "&lt;")


def _options(command: click.Command, context: click.Context, prefix: str) -> Iterator[str]:
    """Rows of the table of options. The anchor is the option's name."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        shown, text = record
        option = parameter.param_type_name == "option"
        name = prefix + (max(parameter.opts, key=len).lstrip("-") if option else str(parameter.name).upper())
        meaning = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
        yield f"| [`{' '.join(shown.split())}`](#{name}){{#{name}}} | {meaning} |"


def _page(path: str, command: click.Command, level: int, prefix: str = "") -> Iterator[str]:
    import click

    context = click.Context(command, info_name=path)
    yield f"{'#' * level} {path}"
    yield from _paragraphs(command.help or "")
    yield "```text\n" + " ".join(command.get_usage(context).split()) + "\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _page(f"{path} {name}", below, level + 1, f"{prefix}{name}-")
    else:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *_options(command, context, prefix)])


def page(name: str) -> str:
    """The generated part of the page of a command."""
    return "\n\n".join(_page(f"singularityctl {name}", commands()[name], 1)) + "\n"


def overview() -> str:
    """A table of all commands."""
    rows = [f"| [`{name}`](cli/{name}.md) | {summary(command)} |" for name, command in commands().items()]
    return "\n".join(["| command | |", "| --- | --- |", *rows])
