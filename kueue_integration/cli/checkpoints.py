"""`checkpoints jobs|ls|show|verify|gc|rewrap|pin|export|import`: what the store holds of a job, which may be long gone.

The one module of this package that imports `singularity_proxy.store`: a store that the user's machine reaches needs no
pod.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from singularity_proxy.protocol import names

from ..contract import attempt_records, branches, job_names, kinds
from ..errors import PlatformError, SpecError, StoreSaidNo
from ..job.pods import Pod
from ..job.view import Job
from ..jobs import export as framework_files
from ..jobs import store_pod
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector
from ..spec import platform_config, store_access
from . import EXIT_FAILED, formats, tables
from .common import cluster_options, complete_jobs, job_argument, open_cluster
from .output import echo

F = TypeVar("F", bound=Callable[..., Any])
_OUTPUT = click.option(
    "-o", "--output", type=formats.Output(("table", "json", "yaml")), default="table", show_default=True
)
_NAMES = click.option(
    "-o", "--output", type=formats.Output(("table", "json", "yaml", "name")), default="table", show_default=True
)


@click.group()
def checkpoints() -> None:
    """The checkpoints of a job in the store: list, show, verify, remove old ones, take one elsewhere.

    \b
    Examples:
      singularityctl checkpoints ls digits
      singularityctl checkpoints verify digits digits-a1-g1
      singularityctl checkpoints gc digits --keep 2 --yes

    A store that this machine reaches is read from here. A file:// URL is a path of the nodes: a short-lived pod in the
    job's namespace reads it. Where the cluster is gone: --no-cluster --store URL.
    """


def place_options(function: F) -> F:
    """`--store`, `--where` and the cluster options."""
    for option in (
        click.option(
            "--where",
            type=click.Choice(["auto", "here", "pod"]),
            default="auto",
            show_default=True,
            help="Read the store from this machine, or in a pod; auto: a pod for file://.",
        ),
        click.option("--store", help="URL of the store. Default: the job's, else the platform's."),
    ):
        function = option(function)
    return cluster_options(function)


def store_options(function: F) -> F:
    """The same with `--timeout`."""
    return place_options(
        click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds for the pod to answer.")(
            function
        )
    )


def options_alone(function: F) -> F:
    """The same with `--no-cluster`."""
    alone = click.option(
        "--no-cluster",
        is_flag=True,
        help="Ask no cluster, only the store at --store, from here. Nothing is known to be in use then.",
    )
    return alone(store_options(function))


@checkpoints.command()
@options_alone
def jobs(**options: Any) -> None:
    """List the jobs of the namespace that the store has anything of, also those that are gone.

    \b
    Example:
      singularityctl checkpoints jobs --namespace team-a
    """
    asker = Asker("", **options)
    for name in asker.ask("jobs", asker.namespace):
        echo(name)


@checkpoints.command()
@job_argument
@options_alone
@_NAMES
def ls(name: str, output: str, **options: Any) -> None:
    """List the checkpoints of a job, newest first.

    \b
    Example:
      singularityctl checkpoints ls digits -o json
      singularityctl checkpoints ls digits -o jsonpath={.items[0].id}
    """
    asker = Asker(name, **options)
    found = asker.listed()
    live = asker.live()
    aside = asker.aside()
    shown = [{**e, "in_use": e["id"] in live, "side_branch": e["id"] in aside} for e in found]
    if output == "name":
        echo("\n".join(str(each["id"]) for each in shown), nl=bool(shown))
    elif output != "table":
        echo(formats.listed("Checkpoint", shown, output))
    elif not shown:
        echo(f"no checkpoints of job {asker.namespace}/{asker.name} in {asker.url}")
    else:
        echo(tables.checkpoints_table(shown))
        for checkpoint, holder in asker.forgotten(found):
            echo(
                f"{checkpoint} is held for job {holder}, which is not there. If nobody is about to make it: "
                f"singularityctl checkpoints pin {asker.name} {checkpoint} --remove"
            )


@checkpoints.command()
@job_argument
@click.argument("checkpoint")
@options_alone
@_OUTPUT
def show(name: str, checkpoint: str, output: str, **options: Any) -> None:
    """Show one checkpoint: step, sizes per rank, requirements of a machine that restores it.

    \b
    Example:
      singularityctl checkpoints show digits digits-a1-g1 -o yaml
    """
    asker = Asker(name, **options)
    found = asker.ask("show", asker.namespace, asker.maker(checkpoint), checkpoint, *asker.digest(checkpoint))
    echo(formats.shown("Checkpoint", found, "yaml" if output == "table" else output))


@checkpoints.command()
@job_argument
@click.argument("checkpoint", required=False)
@options_alone
@_OUTPUT
@click.pass_context
def verify(ctx: click.Context, /, name: str, checkpoint: str | None, output: str, **options: Any) -> None:
    """Read back every byte of a checkpoint (default: the newest) and compare it with its digests.

    \b
    Example:
      singularityctl checkpoints verify digits

    \b
    Exit codes:
      0 all there   1 some bytes are missing or altered   2 bad input   3 no answer from the store
    """
    asker = Asker(name, **options)
    if checkpoint is None:
        usable = [entry["id"] for entry in asker.listed() if not entry["problem"]]
        if not usable:
            raise SpecError([("NAME", name, f"has no readable checkpoint in {asker.url}")])
        checkpoint = str(usable[0])
    question = ("verify", asker.namespace, asker.maker(checkpoint), checkpoint, *asker.digest(checkpoint))
    found = asker.ask(*question, progress=_bar("verified"))
    if output != "table":
        echo(formats.shown("Verification", found, output))
    else:
        verdict = f"{len(found['problems'])} PROBLEMS" if found["problems"] else "all there"
        echo(f"{checkpoint}: {found['objects']} objects, {found['bytes'] / 1e6:.1f} MB, {verdict}")
        for problem in found["problems"]:
            echo(f"  {problem}")
    ctx.exit(EXIT_FAILED if found["problems"] else 0)


@checkpoints.command()
@job_argument
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="Newest checkpoints that stay.")
@click.option("--yes", is_flag=True, help="Delete. Without it: only say what would go.")
@click.option(
    "--ended",
    is_flag=True,
    help="The job runs nowhere any more, and nothing is imported into it: uploads that broke off have ended.",
)
@options_alone
@_OUTPUT
def gc(name: str, keep: int, yes: bool, ended: bool, output: str, **options: Any) -> None:
    """Remove old checkpoints of a job, then data that no checkpoint of it needs.

    Checkpoints that a live job refers to (the committed one, one that it is being restored from) stay whatever --keep
    says.

    \b
    Examples:
      singularityctl checkpoints gc digits --keep 2
      singularityctl checkpoints gc digits --keep 2 --yes
    """
    asker = Asker(name, **options)
    live = sorted(asker.live())
    if ended and asker.runs():
        raise SpecError([("--ended", name, "has pods that run: wait until they are gone")])
    what = "plan" if not yes else "delete-ended" if ended else "delete"
    found = asker.ask("gc", asker.namespace, asker.name, str(keep), what, *live)
    if output != "table":
        echo(formats.shown("Collection", found, output))
        return
    gone, stay = found["checkpoints"], found["stay"]
    echo(f"{'deleted' if yes else 'would delete'} {len(gone)} checkpoints: {', '.join(gone) or '-'}")
    echo(f"stay: {', '.join(f'{i} (in use)' if i in live else i for i in stay) or '-'}")
    if yes:
        echo(f"freed {found['bytes_freed'] / 1e6:.1f} MB")
        if found["uploads"]:
            echo(f"{len(found['uploads'])} uploads are under way: their data, and all else, stays for now")
            echo("if the job runs nowhere any more, in no cluster: add --ended")
    elif gone:
        echo("nothing was deleted: add --yes")


@checkpoints.command()
@click.argument("name", required=False, shell_complete=complete_jobs)
@options_alone
@click.pass_context
def rewrap(ctx: click.Context, /, name: str | None, **options: Any) -> None:
    """Wrap the data keys of a job's encrypted checkpoints by the newest key of the namespace alone.

    Nothing is stored again, and older keys of the namespace are not needed for them any more. Without NAME: of all jobs
    of the namespace that the store has anything of.

    \b
    Examples:
      singularityctl checkpoints rewrap digits --where pod
      singularityctl checkpoints rewrap --namespace team-a

    \b
    Exit codes:
      0 all done   1 some job's could not be unwrapped   2 bad input   3 no answer from the store
    """
    asker = Asker(name or "", **options)
    failed = False
    for job in [asker.name] if name else asker.ask("jobs", asker.namespace):
        try:
            echo(f"{job}: {len(asker.ask('rewrap', asker.namespace, job)['data_keys'])} data keys are wrapped anew")
        except StoreSaidNo as error:
            if name:
                raise
            failed = True
            echo(f"{job}: {error}")
    ctx.exit(EXIT_FAILED if failed else 0)


@checkpoints.command()
@job_argument
@click.argument("checkpoint")
@click.option("--remove", is_flag=True, help="Take the pin away again.")
@options_alone
def pin(name: str, checkpoint: str, remove: bool, **options: Any) -> None:
    """Keep a checkpoint from retention and gc, until the pin is taken away.

    \b
    Examples:
      singularityctl checkpoints pin digits digits-a1-g1
      singularityctl checkpoints pin digits digits-a1-g1 --remove
    """
    asker = Asker(name, **options)
    asker.ask("unpin" if remove else "pin", asker.namespace, asker.maker(checkpoint), checkpoint)
    echo(f"{checkpoint} is {'no longer pinned' if remove else 'pinned'}")


@checkpoints.command()
@job_argument
@click.argument("checkpoint")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--format",
    type=click.Choice(["archive", *framework_files.FORMATS]),
    default="archive",
    show_default=True,
    help="All but archive: of a checkpoint of the state engine, for other programs.",
)
@click.option(
    "--only", default="", metavar="KEY", help="With a format: only the content below this key, such as models."
)
@click.option("--python", default="", metavar="PROGRAM", help="With a format: a Python that has torch.")
@options_alone
def export(
    name: str, checkpoint: str, file: str, format: str, only: str, python: str, timeout: float, **options: Any
) -> None:
    """Write a checkpoint to FILE, every byte verified: one tar archive, or what a framework loads by itself.

    FILE - is standard output, for an archive.

    \b
      safetensors  a file of tensors             torch      a file for torch.load
      trainer      resume_from_checkpoint        lightning  a file for ckpt_path
                   of Hugging Face, a folder     dcp        a folder for torch.distributed.checkpoint

    With a format FILE is new. A store that only the nodes reach is read in a pod with the job's image and volumes: FILE
    is a path of that pod then, below one of the volumes.

    \b
    Examples:
      singularityctl checkpoints export digits digits-a1-g1 digits.tar
      singularityctl checkpoints export digits digits-a1-g1 digits.tar \\
          --store file:///mnt/checkpoints --where here
      singularityctl checkpoints export digits digits-a1-g1 /shared/digits.safetensors \\
          --format safetensors --only models
      singularityctl checkpoints export digits digits-a1-g1 last.ckpt --format lightning \\
          --store gs://bucket/checkpoints --python /opt/torch/bin/python
    """
    asker = Asker(name, timeout=timeout, **options)
    if format != "archive":
        wanted = framework_files.Wanted(format, file, only, python)
        done = asker.framework_files(checkpoint, wanted)
        echo(f"{checkpoint} (step {done.step}): {done.tensors} tensors in {file}")
        if done.left_out:
            echo(f"left out, as {format} has no place for it: {', '.join(done.left_out)}", err=True)
        return
    for option, value in (("--only", only), ("--python", python)):
        if value:
            raise SpecError([(option, value, "is for the formats of frameworks: add --format")])
    asker.require_here()
    question = ("export", asker.namespace, asker.maker(checkpoint), checkpoint, file, *asker.digest(checkpoint))
    found = asker.ask(*question, progress=_bar("exported"))
    echo(f"{checkpoint}: {found['bytes'] / 1e6:.1f} MB in {file}", err=file == "-")


@checkpoints.command("import")
@job_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@options_alone
def import_(name: str, file: str, **options: Any) -> None:
    """Take in the archive FILE (- is standard input) as a checkpoint of job NAME, which need not be there.

    \b
    Example:
      singularityctl checkpoints import digits digits.tar --store gs://bucket/checkpoints
    """
    asker = Asker(name, **options)
    asker.require_here()
    found = asker.ask("import", asker.namespace, asker.name, file, progress=_bar("imported"))
    echo(f"imported {found['id']} of {found['namespace']}/{found['job']}")


def _bar(what: str) -> Callable[[int, int], None] | None:
    """A progress bar on a terminal's standard error; None elsewhere."""
    if not sys.stderr.isatty():
        return None
    bars: list[Any] = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(click.progressbar(length=max(1, total), label=what, file=sys.stderr))
        bar = bars[0]
        bar.label = f"{what} {done >> 20} of {total >> 20} MiB"
        bar.update(done - bar.pos)
        if done >= total:
            bar.render_finish()

    return show


class Asker:
    """Where the store of a job is, and how to ask it. Raises PlatformError for what makes that impossible."""

    def __init__(
        self,
        job: str,
        *,
        kubeconfig: str | None,
        context: str | None,
        namespace: str,
        store: str | None,
        where: str,
        timeout: float,
        no_cluster: bool = False,
    ) -> None:
        self.namespace = namespace
        self._where, self._timeout = where, timeout
        if no_cluster and (store is None or where == "pod"):
            raise SpecError([("--no-cluster", True, "needs --store URL, and cannot make a pod: leave out --where pod")])
        self._kube: Kube | None = None if no_cluster else open_cluster(kubeconfig, context)
        self._job = kinds.named(self._kube, namespace, job) if self._kube and job else None
        self.name = job if self._job is None else kinds.job_key(self._job)
        self._platform: platform_config.PlatformConfig | None = None
        saved = attempt_records.checkpoint(self._job)
        self._committed = {ref.id: ref for ref in (*attempt_records.checkpoints(self._job), saved) if ref is not None}
        own = (self._job and Job.parse(self._job).store) or (saved.url if saved else "")
        self.url = store or own or store_access.of(self._config(), namespace).url
        if not self.url:
            raise SpecError(
                [("store", store, "the platform has no default and the job is not there: give --store URL")]
            )

    @property
    def kube(self) -> Kube:
        """The cluster's."""
        assert self._kube is not None, "--no-cluster is no option of what needs one"
        return self._kube

    def _config(self) -> platform_config.PlatformConfig:
        if self._platform is None:
            self._platform = platform_config.load(self.kube)
        return self._platform

    def live(self) -> set[str]:
        """Ids that the job needs while it is there."""
        return referred(self._job, self._pods() if self._job is not None else ())

    def runs(self) -> bool:
        """Whether a pod of the job, of whichever cluster this is, has not ended."""
        return any((pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for pod in self._pods())

    def _pods(self) -> Iterable[Object]:
        if self._kube is None:
            return ()
        return self.kube.list(POD, self.namespace, selector({job_names.LABEL_JOB: self.name}))

    def maker(self, checkpoint: str) -> str:
        """The job in whose folder of the store it lies: another one for what a forked job began with."""
        return branches.maker(self._job, self.name, checkpoint)

    def aside(self) -> set[str]:
        """Ids that the job knows and that are not on the branch that it is on."""
        return {ref.id for ref in branches.known(self._job)} - {ref.id for ref in branches.line(self._job)}

    def forgotten(self, entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """`(checkpoint, job)` of what is held for jobs that are not there: deleted before they had one of their own."""
        held = [(str(e["id"]), str(job)) for e in entries for job in e.get("held_by") or () if job != names.HOLD_REWIND]
        if not held or self._kube is None:
            return []
        there = {kinds.job_key(job) for job in kinds.list_managed(self._kube, self.namespace)}
        return [(checkpoint, job) for checkpoint, job in held if job not in there]

    def digest(self, checkpoint: str) -> list[str]:
        """What the job says of the checkpoint's manifest, as the last part of a question; empty if it says nothing."""
        return [self._committed[checkpoint].sha256] if checkpoint in self._committed else []

    def listed(self) -> list[dict[str, Any]]:
        """What the store has of the job; `problem` also says what the job knows of it."""
        found: list[dict[str, Any]] = self.ask("ls", self.namespace, self.name)
        for entry in found:
            ref = self._committed.get(entry["id"])
            if ref is not None and ref.failed:
                entry["failed_restores"] = len(ref.failed)
            if ref is not None and not entry["problem"]:
                same = entry["sha256"] == ref.sha256
                entry["problem"] = ref.unusable if same else "not the manifest that was committed"
        return found

    def require_here(self) -> None:
        """An archive is a file of this machine, so the store has to be read here. Raises SpecError."""
        if self._in_a_pod():
            fix = (
                "is read in a pod, and the archive is a file here: run this where the store's folder is mounted, with "
            )
            raise SpecError([("--store", self.url, f"{fix}--where here --store file:///where/it/is/here")])

    def framework_files(self, checkpoint: str, wanted: framework_files.Wanted) -> framework_files.Exported:
        """Export it there where the store is read. Raises as `jobs.export`."""
        digest = "".join(self.digest(checkpoint))
        found = framework_files.Stored(self.namespace, self.maker(checkpoint), checkpoint, self.url, digest, self._job)
        if self._in_a_pod():
            echo(f"exporting from {self.url} in a pod of namespace {self.namespace}", err=True)
            return framework_files.in_pod(self.kube, found, wanted, self._timeout)
        return framework_files.here(found, wanted, self._timeout)

    def _in_a_pod(self) -> bool:
        auto = self._where == "auto" and self._kube is not None and store_pod.needed(self.url)
        return self._where == "pod" or auto

    def ask(self, *question: str, progress: Callable[[int, int], None] | None = None) -> Any:
        """The store's answer. Raises StoreSaidNo, PlatformError."""
        if self._in_a_pod():
            pod = store_pod.manifest(self.namespace, self._config(), self.url, question, self._timeout, self._job)
            echo(f"asking {self.url} in pod {self.namespace}/{pod['metadata']['name']}", err=True)
            return store_pod.ask(self.kube, pod, self._timeout, progress)
        try:
            from singularity_proxy.store import admin
        except ImportError as error:
            fix = "install airflow-provider-singularity[proxy], or ask in a pod: --where pod"
            raise PlatformError(f"the store cannot be read from here ({error}): {fix}") from error
        return store_pod.unpacked(admin.answer(self.url, question, progress))

    def question(self, job: Object, url: str, question: Sequence[str]) -> Any:
        """For `jobs.time_travel`: what a job says of its store does not count against `--store`."""
        return self.ask(*question)


def referred(job: Object | None, pods: Iterable[Object] = ()) -> set[str]:
    """Checkpoints that a job cannot do without: committed, being restored from, named by its pods. Pure."""
    if job is None:
        return set()
    saved, attempts = attempt_records.checkpoint(job), attempt_records.history(job)
    found = {saved.id} if saved else set()
    found |= {attempts[-1].restored_from or ""} if attempts and attempts[-1].ended_by is None else set()
    return (found | {Pod.parse(pod).checkpoint for pod in pods}) - {""}
