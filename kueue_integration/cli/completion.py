"""`completion`: the script that teaches a shell the commands, options and the names of jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "singularityctl"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. Names of jobs are asked from the cluster of the current context.

    \b
    Examples:
      source <(singularityctl completion bash)
      singularityctl completion zsh > "${fpath[1]}/_singularityctl"
      singularityctl completion fish > ~/.config/fish/completions/singularityctl.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # the choices above are click's own
    # Not `source()`: bash's would start a bash to look at its version, and print a warning into the script.
    script = found(ctx.find_root().command, {}, PROGRAM, "_SINGULARITYCTL_COMPLETE")
    click.echo(script.source_template % script.source_vars())
