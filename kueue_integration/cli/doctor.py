"""`doctor`: is this cluster ready for training jobs, and what is to be done if not."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Sequence

import click

from .. import doctor as library
from . import EXIT_PLATFORM, formats, tables
from .common import cluster_options, open_cluster
from .output import echo

_INDENT = "      "


@click.command()
@cluster_options
@click.option(
    "-o", "--output", type=formats.Output(("table", "wide", "json", "yaml")), default="table", show_default=True
)
@click.option(
    "--platform", is_flag=True, help="Only the parts that the platform team installs: nothing of a namespace."
)
@click.option("--probe", is_flag=True, help="Also try store and CRIU in a short-lived pod per flavor.")
@click.option("--gpus", is_flag=True, help="With --probe: also move a GPU's memory, on each flavor with GPUs.")
@click.option("--image", default="", help="With --gpus: an image with torch, default the platform's training image.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="With --probe: seconds for a pod.")
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    output: str,
    platform: bool,
    probe: bool,
    gpus: bool,
    image: str,
    timeout: float,
) -> None:
    """Check the cluster, Kueue, the chart and a namespace; say what to do about each finding. Changes nothing.

    \b
    Examples:
      singularityctl doctor
      singularityctl doctor -n research
      singularityctl doctor --platform
      singularityctl doctor --probe
      singularityctl doctor --probe --gpus --timeout 600
      singularityctl doctor -o json | python3 -m json.tool

    \b
    Exit codes:
      0 nothing fails (there may be warnings)   3 something fails, or there is no cluster
    """
    kube = open_cluster(kubeconfig, context)
    if platform and probe:
        raise click.UsageError("--probe starts pods in a namespace: leave --platform out")
    if (gpus and not probe) or (image and not gpus):
        raise click.UsageError("--gpus needs --probe, and --image needs --gpus: doctor --probe --gpus --image IMAGE")
    checks = library.run(kube, None if platform else namespace, time.time())
    if probe:
        checks += library.run_probe(kube, namespace, timeout)
    if gpus:
        checks += library.run_gpu_probe(kube, namespace, image, timeout)
    failed = sum(check.status == library.FAIL for check in checks)
    if output not in ("table", "wide"):
        echo(formats.listed("Check", map(dataclasses.asdict, checks), output))
    else:
        warned = sum(check.status == library.WARN for check in checks)
        echo(render(checks, wide=output == "wide"))
        echo(f"\n{len(checks)} checks: {failed} failed, {warned} warnings")
    ctx.exit(EXIT_PLATFORM if failed else 0)


def render(checks: Sequence[library.Check], wide: bool = False) -> str:
    """One line per check; below a finding its fix. Commands are never wrapped: they are there to be copied."""
    width = 10_000 if wide else tables.WIDTH
    rows = [(check.status.upper().ljust(4), check.name, " ".join(check.message.split())) for check in checks]
    head, *lines = tables.table(["", "CHECK", "FINDING"], rows, width).splitlines()
    shown = [head]
    for check, line in zip(checks, lines, strict=True):
        shown.append(line)
        sentence, *commands = check.fix.splitlines() or [""]
        if line.endswith("…") and check.fix:  # the end of a message is often what matters
            shown += _wrapped(" ".join(check.message.split()), "", width)
        if sentence:
            shown += _wrapped(sentence, "fix: ", width)
        shown += [f"{_INDENT}     {command}" for command in commands]
    return "\n".join(shown)


def _wrapped(text: str, prefix: str, width: int) -> list[str]:
    return textwrap.wrap(
        prefix + text,
        width,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT + " " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
    )
