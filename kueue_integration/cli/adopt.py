"""`adopt`: a plain Job becomes one that is preempted, moved and resumed without losing a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from ..adoption import recreate as live
from ..contract.kinds import KINDS
from ..errors import SpecError
from ..spec import platform_config
from .common import cluster_options, open_cluster
from .output import echo


@click.command()
@click.argument("name", required=False)
@cluster_options
@click.option(
    "-f", "--file", "file", type=click.File("r"), help="Manifest of a Job, JobSet or TrainJob; '-': stdin."
)
@click.option("--recreate", is_flag=True, help="Replace the existing Job NAME, which must never have started.")
@click.option("--dry-run", is_flag=True, help="Print the manifest, change nothing.")
@click.option(
    "--platform",
    "platform_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --dry-run: platform.json to use instead of asking the cluster.",
)
def adopt(
    name: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    file: Any,
    recreate: bool,
    dry_run: bool,
    platform_file: Path | None,
) -> None:
    """Give a plain Job the parts of a managed one and create it: `-f FILE`, or NAME for a Job that waits in its queue.

    The Job must be Indexed, with completions equal to parallelism, one container with its `command`, and restartPolicy
    Never. A Job that exists in the cluster cannot be changed. With --recreate, a Job that has never started is created
    again under its name, and goes to the end of its queue.

    The API server judges the manifest by the chart's rules, before anything is made. With --platform nothing does.

    \b
    Examples:
      singularityctl adopt -f job.yaml
      singularityctl adopt -f job.yaml --dry-run | kubectl apply -f -
      singularityctl adopt digits --recreate

    \b
    Exit codes:
      0 done   2 bad input   3 cluster or platform problem
    """
    if (name is None) == (file is None):
        raise click.UsageError("give either the NAME of a Job or -f FILE")
    if platform_file is not None and not dry_run:
        raise click.UsageError("--platform needs --dry-run: a Job is created with the platform of its cluster")
    kube = None if platform_file is not None and file is not None else open_cluster(kubeconfig, context)
    if platform_file is not None:
        config = platform_config.from_json(platform_file.read_text(encoding="utf-8"))
    else:
        assert kube is not None
        config = platform_config.load(kube)
    if file is not None:
        job = read(file, namespace)
        if dry_run:
            made = live.unjudged(job, config) if kube is None else live.made_of(kube, job, config)
            echo(yaml.safe_dump(made, sort_keys=False), nl=False)
            if kube is None:
                echo("no cluster was asked: nothing has judged this manifest", err=True)
            return
        assert kube is not None
        made = live.create(kube, job, config)
        where = f"{made['metadata']['namespace']}/{made['metadata']['name']}"
        echo(f"{made['kind'].lower()} {where} adopted and created")
        return
    assert kube is not None and name is not None
    if dry_run:
        echo(yaml.safe_dump(live.preview(kube, namespace, name, config), sort_keys=False), nl=False)
        return
    if not recreate:
        live.preview(kube, namespace, name, config)
        raise click.UsageError(
            f"Job {name!r} exists, and the pod template of a Job cannot be changed: give --recreate to delete it and "
            "make it anew, or --dry-run to see the result"
        )
    made = live.recreate(kube, namespace, name, config)
    echo(f"job {namespace}/{made['metadata']['name']} adopted: made anew, and queued again")


def read(file: Any, namespace: str) -> dict[str, Any]:
    """The one job of a manifest, of any kind; its namespace is the manifest's, else `namespace`. Raises SpecError."""
    try:
        documents = [d for d in yaml.safe_load_all(file.read()) if d is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError([("file", file.name, f"is not YAML: {error}")]) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise SpecError(
            [("file", file.name, f"has {len(documents)} documents; give exactly one, a Job, JobSet or TrainJob")]
        )
    job: dict[str, Any] = documents[0]
    known = {(kind.api_version, kind.name) for kind in KINDS}
    if (job.get("apiVersion"), job.get("kind")) not in known:
        kind = f"{job.get('apiVersion')}/{job.get('kind')}"
        every = ", ".join("/".join(pair) for pair in sorted(known))
        fix = f"is none of {every}; see docs/workload-kinds.md for the others"
        raise SpecError([("kind", kind, fix)])
    for field in ("metadata", "spec"):
        if not isinstance(job.get(field), dict):
            raise SpecError([(field, job.get(field), "is missing; give a complete Job")])
    job["metadata"].setdefault("namespace", namespace)
    return job
