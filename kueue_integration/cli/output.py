"""What the commands print: texts of jobs and other people's objects cannot move the cursor or set the clipboard."""

from __future__ import annotations

import click


def printable(text: str) -> str:
    """Return one line without what would move a terminal's cursor or break the line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def echo(text: str = "", err: bool = False, nl: bool = True) -> None:
    """Print lines to standard output or, with `err`, standard error. Control characters become `?`."""
    click.echo("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")), err=err, nl=nl)
