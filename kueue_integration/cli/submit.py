"""`submit` and `render`: the options of a TrainSpec, and the local directory that travels with the job."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from ..errors import SpecError
from ..jobs import lifecycle, start_point
from ..jobs.time_travel import Start
from ..manifests.job_manifests import render as render_objects
from ..spec import engine, platform_config
from ..spec.secret_text import SecretText
from ..spec.train_spec import TrainSpec
from ..spec.validate import validate
from ..spec.validation import MAX_FILES_BYTES
from . import formats, placement_options
from .common import cluster_options, open_cluster
from .output import echo
from .status import wait_until_final

F = TypeVar("F", bound=Callable[..., Any])

SKIPPED_DIRECTORIES = ("__pycache__", "node_modules", "venv")

_OPTIONS = (
    click.option("--name", default="", help="Name of the job: a DNS label, at most 52 characters."),
    click.option("--queue", default="", help="Kueue LocalQueue in the namespace."),
    click.option("--workers", type=int, default=1, show_default=True, help="Pods wanted."),
    click.option("--min-workers", type=int, help="Fewest pods the job accepts. Default: all of them."),
    click.option("--world-size", type=int, help="Ranks, constant for life; a multiple of workers. Default: workers."),
    click.option(
        "--engine",
        default="auto",
        show_default=True,
        help="process (torch 2.6 or newer); state, or both (the script uses singularity_train); auto: state if the "
        "script imports it.",
    ),
    click.option(
        "--workdir",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Local directory: its text files are shipped and become each rank's working directory.",
    ),
    click.option("--store", help="URL of the checkpoint store. Default: the platform's."),
    click.option("--outputs", metavar="URL", help="Where what the ranks write to $OUTPUTS is stored at the end."),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=URL",
        help="Folder that lies in $INPUTS/NAME of each pod before the ranks start; may be repeated.",
    ),
    click.option("--priority-class", help="Kueue WorkloadPriorityClass."),
    click.option("--image", help="Training image. Default: the platform's."),
    click.option("--env", multiple=True, metavar="K=V", help="Environment of the ranks; may be repeated."),
    click.option(
        "--secret-env",
        multiple=True,
        metavar="K[=V]",
        help="As --env, in a Secret that the job owns; without =V the value of your own variable K.",
    ),
    click.option("--cpu", help="CPU per worker, for example 500m."),
    click.option("--memory", help="Memory per worker, for example 2Gi."),
    click.option("--gpus", type=int, help="NVIDIA GPUs per worker."),
    *placement_options.OPTIONS,
    click.option("--no-hold", is_flag=True, help="Plain Kueue preemption: checkpoint within the grace period."),
    click.option("--budget", type=int, default=120, show_default=True, help="Seconds a preemption may be held."),
    click.option("--grace", type=int, default=90, show_default=True, help="Termination grace of the pods, seconds."),
    click.option(
        "--checkpoint-every",
        metavar="INTERVAL",
        help="Interval of checkpoints after which the job trains on: 300s, 10m, '500 steps' or auto. Default: off.",
    ),
    click.option("--label", multiple=True, metavar="K=V", help="Label of the Job and its pods; may be repeated."),
    click.option(
        "--pod-override",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="YAML or JSON file with a piece of a Pod (affinity, service account, volumes ...), merged into the pods.",
    ),
    click.option(
        "--checkpoint-disk",
        metavar="QUANTITY",
        help="Most disk for checkpoint images in a pod (50Gi), or `unlimited`. Default: the platform's, or by memory.",
    ),
    click.option(
        "--checkpoint-memory",
        metavar="QUANTITY",
        help="Memory of a pod for checkpoints from which the job trains on (4Gi). Default: the platform's, or none.",
    ),
    click.option(
        "--reproducible-layout",
        is_flag=True,
        help="No random addresses and hashes in ranks: they share more in the store, and are easier to attack.",
    ),
    click.option(
        "--privileges",
        metavar="LEVEL",
        help="Where the launcher's capabilities count: userns (in the pod), node or auto. Default: the platform's.",
    ),
    click.option(
        "--infrastructure-retries",
        type=int,
        help="Attempts that may be lost to nodes and killed pods. Default: nodes without limit, six killed pods.",
    ),
    click.option(
        "--resume-on-exit-code",
        type=int,
        multiple=True,
        help="The job continues from its last checkpoint after this exit code; may be repeated.",
    ),
    click.option(
        "--ttl",
        "ttl_s",
        type=int,
        metavar="SECONDS",
        help="Kubernetes deletes the Job so long after its end, with its record of checkpoints. Default: never.",
    ),
    click.option("--identity", help="Owner's identity: submitting twice with the same one makes one job."),
)


def spec_options(function: F) -> F:
    """The options of a job, and the command after `--`."""
    function = click.argument("command", nargs=-1, type=click.UNPROCESSED)(function)
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@spec_options
@cluster_options
@click.option(
    "--start-from",
    metavar="JOB|JOB/CHECKPOINT|CHECKPOINT",
    help="Begin with the newest checkpoint of that job, or with that one, instead of step 0.",
)
@click.option("--wait", is_flag=True, help="Stay until the job has ended; exit 1 if it failed.")
@click.option("--timeout", type=float, help="With --wait: give up after this many seconds (exit 1).")
@click.option("--dry-run", is_flag=True, help="Do every check, create nothing.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    kubeconfig: str | None,
    context: str | None,
    wait: bool,
    start_from: str | None,
    timeout: float | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Submit a training job. The command is what `torchrun` would be given: one process per rank.

    \b
    Examples:
      singularityctl submit --name digits --queue training --workers 4 --min-workers 2 \\
          --workdir ./src --cpu 250m --wait -- python3 train.py --steps 900
      singularityctl submit --name big --queue training --workers 8 --gpus 1 \\
          --image registry.example/train:1 --store gs://bucket/ckpt -- python3 -m mymodel.train
      singularityctl submit --name spot --queue training --workers 4 \\
          --toleration spot=true:NoSchedule --resume-on-exit-code 75 -- python3 train.py
      singularityctl submit --name digits-b --queue training --workers 4 \\
          --start-from digits/digits-a1-g4-5d0c12ab -- python3 train.py

    A job with --start-from continues from a checkpoint of another job of its namespace, which is held for it in the
    store. With engine process the saved processes continue, with the command that they were started with.

    \b
    Exit codes:
      0 submitted (with --wait: succeeded)   1 the job failed   2 bad input   3 cluster problem
    """
    spec = build_spec(**options)
    validate(spec)
    given = engine.chosen(spec)
    kube = open_cluster(kubeconfig, context)
    config = platform_config.load(kube)
    if dry_run:
        start = None
        if start_from is not None:
            start = start_point.find(kube, spec.namespace, start_from)
            start_point.require_fit(kube, start, spec, config)
        lifecycle.validate_only(kube, spec, config)
        echo(f"job {spec.namespace}/{spec.name} could be submitted; nothing was created")
        echo(f"engine {given.name}: {given.why}")
        _tell_start(start)
        return
    start = None
    if start_from is None:
        result = lifecycle.submit(kube, spec, config)
    else:
        result, start = start_point.submit(kube, spec, config, start_from)
    if output == "json":
        echo(json.dumps(formats.described("Submission", dataclasses.asdict(result))))
    else:
        verb = "adopted: it was there already" if result.adopted else f"submitted to queue {spec.queue}"
        pods = f"{spec.workers} workers" + (f" (at least {spec.min_workers})" if spec.min_workers else "")
        echo(f"job {result.namespace}/{result.name} {verb}: {pods}, {spec.ranks} ranks, engine {given.name}")
        _tell_start(start)
    if wait:
        ctx.exit(wait_until_final(kube, result.namespace, result.name, timeout, err=output == "json"))


def _tell_start(start: Start | None) -> None:
    if start is not None:
        echo(f"begins with checkpoint {start.ref.id} (step {start.ref.step}) of job {start.job}")


@click.command()
@spec_options
@cluster_options
@click.option(
    "--platform",
    "platform_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="platform.json to use instead of asking the cluster.",
)
def render(kubeconfig: str | None, context: str | None, platform_file: Path | None, **options: Any) -> None:
    """Print the objects of a job as YAML, exactly as `submit` with the same options would create them.

    \b
    Example:
      singularityctl render --name digits --queue training --workers 4 -- python3 train.py
    """
    spec = build_spec(**options)
    validate(spec)
    if platform_file is not None:
        config = platform_config.from_json(platform_file.read_text(encoding="utf-8"))
    else:
        config = platform_config.load(open_cluster(kubeconfig, context))
    echo(yaml.safe_dump_all(render_objects(spec, config), sort_keys=False), nl=False)


def build_spec(
    *,
    command: tuple[str, ...],
    workdir: Path | None,
    env: tuple[str, ...],
    secret_env: tuple[str, ...],
    inputs: tuple[str, ...],
    label: tuple[str, ...],
    pod_override: Path | None,
    resume_on_exit_code: tuple[int, ...],
    cpu: str | None,
    memory: str | None,
    gpus: int | None,
    no_hold: bool,
    budget: int,
    grace: int,
    resource: tuple[str, ...],
    **rest: Any,
) -> TrainSpec:
    """A TrainSpec from the options. Raises SpecError for what cannot even be read."""
    problems: list[tuple[str, object, str]] = []
    variables = _pairs("env", env, problems) | _secrets(secret_env, problems)
    labels = _pairs("label", label, problems)
    urls = _pairs("input", inputs, problems)
    more = _pairs("resource", resource, problems)
    place = placement_options.fields(rest, problems)
    override = _read_override(pod_override, problems) if pod_override else None
    files = read_directory(workdir, problems) if workdir else {}
    if problems:
        raise SpecError(problems)
    amounts = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": None if gpus is None else str(gpus), **more}
    return TrainSpec(
        command=command,
        env=variables,
        inputs=urls,
        labels=labels,
        pod_override=override,
        resume_on_exit_codes=resume_on_exit_code,
        files=files,
        resources={name: amount for name, amount in amounts.items() if amount is not None},
        hold=not no_hold,
        checkpoint_budget_s=budget,
        grace_period_s=grace,
        **place,
        **rest,
    )


def _pairs(field: str, items: tuple[str, ...], problems: list[tuple[str, object, str]]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if equals:
            pairs[key] = value
        else:
            problems.append((field, item, "must be NAME=VALUE"))
    return pairs


def _secrets(items: tuple[str, ...], problems: list[tuple[str, object, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in os.environ:
            problems.append(("secret_env", name, "is not a variable of yours; export it, or give NAME=VALUE"))
        found[name] = SecretText(value if equals else os.environ.get(name, ""))
    return found


def _read_override(path: Path, problems: list[tuple[str, object, str]]) -> dict[str, Any] | None:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(("pod_override", str(path), f"is not YAML: {' '.join(str(error).split())}"))
        return None
    if not isinstance(found, dict):
        problems.append(("pod_override", str(path), "must be a piece of a Pod: `spec: {...}` or `metadata: {...}`"))
        return None
    return found


def read_directory(root: Path, problems: list[tuple[str, object, str]]) -> dict[str, str]:
    """Relative path -> text of every file below `root`, without hidden ones and caches; adds to `problems`."""
    files: dict[str, str] = {}
    total = 0
    for folder, directories, names in os.walk(root):
        directories[:] = sorted(d for d in directories if not d.startswith(".") and d not in SKIPPED_DIRECTORIES)
        for name in sorted(n for n in names if not n.startswith(".") and not n.endswith(".pyc")):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            total += path.stat().st_size
            if total > MAX_FILES_BYTES:  # before reading: somebody may have named their home directory
                problems.append(
                    (
                        "workdir",
                        str(root),
                        f"has more than {MAX_FILES_BYTES} bytes; keep large files in the image or a volume",
                    )
                )
                return files
            try:
                files[relative] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                problems.append(("workdir", relative, "is not UTF-8 text; keep binary files in the image or a volume"))
            except OSError as error:
                problems.append(("workdir", relative, f"cannot be read: {error.strerror}"))
    return files
