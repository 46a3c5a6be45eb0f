"""Commands that the documentation shows exist as they stand there: words of `singularityctl`, targets of make.

What changes a cluster runs end to end (`tests/e2e/test_e2e_cli.py` plays the runbooks'). Here the command line is read
as the program reads it, and nothing is run.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import click
import pytest
from shell_blocks import ROOT, calls, words_after

from kueue_integration import cli
from localcluster.cli import demo, local

NUMBERS = {"N": "1", "M": "1"}
"""Placeholders of numbers; those of names are read as names."""


def read(words: list[str]) -> None:
    """As `singularityctl` reads its command line. Raises click.UsageError."""
    command: click.Command = cli.main
    context = click.Context(command, info_name="singularityctl")
    rest = [NUMBERS.get(word, word) for word in words]
    while isinstance(command, click.Group) and rest and rest[0] != "--help":
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            found = {"local": local, "demo": demo}.get(name) if command is cli.main else None
        if found is None:
            raise click.UsageError(f"no command {name!r}")
        command, context = found, click.Context(found, info_name=name, parent=context)
    if "--help" not in rest and not isinstance(command, click.Group):
        command.make_context(str(command.name), rest)


def named(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(("page", "words"), calls("singularityctl"), ids=named)
def test_singularityctl_takes_what_a_page_shows(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dags").symlink_to(ROOT / "dags")
    for flag, value in pairwise(words):
        if flag == "--workdir":
            Path(value).mkdir(parents=True, exist_ok=True)
    for word in words:
        if Path(word).suffix in (".yaml", ".py", ".tar"):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).touch()
    read(words)


@pytest.mark.parametrize(("page", "words"), calls("make"), ids=named)
def test_make_has_the_target_that_a_page_shows(page: str, words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert [word for word in words if "=" not in word and word not in targets] == []


def test_pages_show_commands() -> None:
    assert len(calls("singularityctl")) > 30 and len(calls("make")) > 5


@pytest.mark.parametrize("words", [["stat"], ["status", "a", "--no-such"], ["resize", "a", "--workers", "many"]])
def test_what_does_not_exist_is_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        read(words)


def test_what_is_a_command() -> None:
    block = "export A=$(singularityctl local kubeconfig)\nB=1 singularityctl status x \\\n  -n y  # why\nmake it\n"
    page = f"```sh\n{block}```\n"
    assert list(words_after("singularityctl", page)) == [["local", "kubeconfig"], ["status", "x", "-n", "y"]]
    assert list(words_after("make", page)) == [["it"]]
