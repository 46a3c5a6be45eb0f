"""`logs`: what the ranks print, from every pod of the job, and with --follow across its attempts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import click

from ..contract import attempt_records, job_names, kinds
from ..errors import Invalid, NotFound, SpecError
from ..job.pods import Pod
from ..jobs import status as library
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector
from .common import cluster_options, job_argument, open_cluster
from .follow import Follower
from .output import echo

_RANK = re.compile(r"\[rank (\d+)\] ")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


@click.command()
@job_argument
@cluster_options
@click.option("--rank", type=click.IntRange(min=0), help="Only lines of this rank.")
@click.option("--all-ranks", is_flag=True, help="Only lines of ranks, without the launcher's own.")
@click.option("-f", "--follow", is_flag=True, help="Continue through all attempts until the job has ended.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines, of each pod that is there now.")
@click.option("--since", help="Only lines that are younger, for example 90s, 10m, 2h.")
@click.option("--container", help="Container of the pods; by default the one that trains.")
def logs(
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    rank: int | None,
    all_ranks: bool,
    follow: bool,
    tail: int | None,
    since: str | None,
    container: str | None,
) -> None:
    """Print the output of the ranks, from all pods; by default the launcher's lines too.

    Pods of earlier attempts are gone, and their lines with them: follow from the start to see all. A note on standard
    error says where lines are or may be missing.

    \b
    Examples:
      singularityctl logs digits --rank 0
      singularityctl logs digits --follow --since 10m
      singularityctl logs digits --all-ranks --tail 20

    \b
    Exit codes:
      0 printed   2 no such job, bad option   3 cluster problem
    """
    if rank is not None and all_ranks:
        raise SpecError([("--rank", rank, "and --all-ranks exclude each other; give one of them")])
    seconds = None if since is None else duration(since)
    kube = open_cluster(kubeconfig, context)
    name = library.describe(kube, namespace, name).name  # a sentence if there is no such job
    container = container or kinds.train_container(name)
    if follow:
        lines = Follower(kube, namespace, name, container, _say, tail, seconds).lines()
    else:
        lines = _once(kube, namespace, name, container, tail, seconds)
    for line in lines:
        if wanted(line, rank, all_ranks):
            click.echo(line)  # a program's own output, with the colours that it has


def duration(text: str, option: str = "--since") -> float:
    """Seconds of `90s`, `10m`, `2h`, `1d` or a plain number. Raises SpecError."""
    found = _DURATION.fullmatch(text)
    if found is None or not float(found.group(1)):
        raise SpecError([(option, text, "is not a time span; write 90s, 10m, 2h or 1d")])
    return float(found.group(1)) * _UNITS[found.group(2)]


def wanted(line: str, rank: int | None, all_ranks: bool = False) -> bool:
    """Whether to show a line; lines without a rank are the launcher's and belong to nobody."""
    if rank is None and not all_ranks:
        return True
    found = _RANK.match(line)
    return found is not None and (rank is None or int(found.group(1)) == rank)


def _say(text: str) -> None:
    echo(f"singularityctl: {text}", err=True)


def _once(
    kube: Kube, namespace: str, name: str, container: str, tail: int | None, since_s: float | None
) -> Iterator[str]:
    pods = pods_of(kube, namespace, name)
    _tell_gone(kinds.find(kube, namespace, name), pods, _say)
    for pod in pods:
        try:
            yield from kube.pod_logs(namespace, pod["metadata"]["name"], container, tail=tail, since_s=since_s)
        except (NotFound, Invalid):  # it has just gone, or has not started
            continue


def pods_of(kube: Kube, namespace: str, name: str) -> list[Object]:
    """The job's pods, oldest first."""
    pods = kube.list(POD, namespace, selector({job_names.LABEL_JOB: name}))
    return sorted(pods, key=lambda pod: (str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["name"])))


def _tell_gone(job: Object | None, pods: list[Object], say: Callable[[str], None]) -> None:
    there = {Pod.parse(pod).attempt_word for pod in pods}
    gone = [str(a.attempt) for a in attempt_records.history(job) if a.ended_by and str(a.attempt) not in there]
    if gone:
        which = f"attempt {gone[0]}" if len(gone) == 1 else f"attempts {gone[0]}-{gone[-1]}"
        say(f"lines of {which} are not shown: the pods are gone")
