"""`demo`: hands over to the demonstration, which lives with the local cluster."""

from __future__ import annotations

import importlib
from pathlib import Path

import click


@click.command()
@click.option("--keep", is_flag=True, help="Leave cluster and Airflow running at the end.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Directory of the report, the picture and the logs.",
)
@click.pass_context
def demo(ctx: click.Context, keep: bool, output: Path) -> None:
    """Run the demonstration: a training step in Airflow that Kueue preempts, moves, shrinks and grows.

    Needs root, Go and a checkout; exits 0 only if the verdict of the report is `pass`.
    """
    # By name: the library does not depend on the local cluster.
    run_demo = importlib.import_module("localcluster.demo.main").run_demo
    ctx.exit(run_demo(keep=keep, output=output))
