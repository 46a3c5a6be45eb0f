"""`python -m singularity_proxy.store ls|show|verify|pin|unpin|prune|gc|rewrap|export|import --store URL`.

Looks after a store. Runs where it is reachable, for example in a pod. `--json`: one JSON document on standard output.
Exit status: 0 done, 1 the store or the checkpoint is at fault (the reason on standard error, or in the document), 2
wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..errors import StoreError
from ..protocol.manifest import Manifest
from . import admin, catalog, keys
from .admin import content_size
from .catalog import Listing
from .progress import Progress, ignore
from .store import Store

Answer = tuple[int, dict[str, Any], list[str]]
"""Exit status, document for --json, lines for people."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    args = _parser().parse_args(argv)
    if args.command == "gc" and bool(args.namespace) != bool(args.job):
        print("gc: give --namespace and --job, or neither for all jobs", file=sys.stderr)
        return 2
    if args.command == "gc" and args.ended and not args.job:
        print("gc: --ended is said of one job: give --namespace and --job", file=sys.stderr)
        return 2
    try:
        status, document, lines = _COMMANDS[args.command](
            Store(args.store, patience_s=args.patience, keys=keys.from_env()), args
        )
    except (StoreError, OSError) as error:
        if args.json:
            print(json.dumps({"error": str(error)}))
        print(error, file=sys.stderr)
        return 1
    # An export uses standard output for its data, so texts cannot go there.
    out = sys.stderr if args.command == "export" and args.file == "-" else sys.stdout
    print(json.dumps(document) if args.json else "\n".join(lines), file=out)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Look after a checkpoint store.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "ls": "checkpoints of all jobs, of a namespace, or of a job",
        "show": "one checkpoint: ranks, sizes, requirements",
        "verify": "read everything a checkpoint needs and check every byte",
        "pin": "keep a checkpoint from being pruned",
        "unpin": "let a checkpoint be pruned again",
        "prune": "delete all but the newest and the pinned checkpoints of a job",
        "gc": "delete content that no checkpoint needs any more",
        "rewrap": "wrap data keys by the namespace's newest key alone: older ones are not needed any more",
        "export": "write a checkpoint as one tar archive",
        "import": "take in an archive, verified",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--store", required=True, metavar="URL", help="for example file:///mnt/checkpoints")
        required = name in ("show", "verify", "pin", "unpin", "prune", "export")
        command.add_argument("--namespace", required=required or name == "rewrap", default="", help="of the job")
        command.add_argument("--job", required=required, default="", help="name of the job")
        command.add_argument("--json", action="store_true", help="one JSON document")
        command.add_argument("--patience", type=float, default=30.0, metavar="S", help="seconds to try again")
        if name in ("show", "verify", "pin", "unpin", "export"):
            command.add_argument("id", help="of the checkpoint; `latest`: the newest that is complete")
        if name in ("export", "import"):
            command.add_argument("file", help="the archive; - is standard output or input")
        if name == "gc":
            ended = (
                "no pod of the job runs any more, in no cluster, and no import: uploads that never said so have ended"
            )
            command.add_argument("--ended", action="store_true", help=ended)
        if name == "prune":
            command.add_argument("--keep", type=int, default=3, help="how many of the newest stay")
    return parser


def _ls(store: Store, args: argparse.Namespace) -> Answer:
    found = [
        (ns, job)
        for ns, job in store.jobs()
        if (not args.namespace or ns == args.namespace) and (not args.job or job == args.job)
    ]
    rows: list[dict[str, Any]] = []
    for namespace, job in found:
        rows += [_row(namespace, job, listing) for listing in store.list_checkpoints(namespace, job)]
    lines = [f"{'CHECKPOINT':<32} {'JOB':<32} {'STEP':>8} {'RANKS':>5} {'SIZE':>12}  MADE"]
    for row in rows:
        if row["problem"]:
            lines.append(f"{row['id']:<32} {row['namespace'] + '/' + row['job']:<32} cannot be used: {row['problem']}")
        else:
            made = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["created_at"]))
            lines.append(
                f"{row['id']:<32} {row['namespace'] + '/' + row['job']:<32} {row['step']:>8} {row['world_size']:>5} "
                f"{row['bytes'] / 2**20:>8.1f} MiB  {made}{'  pinned' if row['pinned'] else ''}"
            )
    return 0, {"checkpoints": rows}, lines


def _row(namespace: str, job: str, listing: Listing) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": listing.id, "namespace": namespace, "job": job, "pinned": listing.pinned, "problem": listing.problem,
    }  # fmt: skip
    if listing.manifest is not None:
        row |= _summary(listing.manifest)
    return row


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "attempt": manifest.attempt,
        "generation": manifest.generation,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "engine": manifest.engine,
        "created_at": manifest.created_at,
        "bytes": content_size(manifest),
        "bytes_in_store": sum(catalog.objects(manifest).values()),
        "format": manifest.format,
    }


def _show(store: Store, args: argparse.Namespace) -> Answer:
    manifest = _manifest(store, args)
    files = store.backend.find(f"jobs/{manifest.namespace}/{manifest.job}")
    problem = catalog.missing(manifest, files)
    document: dict[str, Any] = {
        "id": manifest.id,
        "namespace": manifest.namespace,
        "job": manifest.job,
        "problem": problem,
        "pinned": f"jobs/{manifest.namespace}/{manifest.job}/pins/{manifest.id}" in files,
        **_summary(manifest),
        "requirements": asdict(manifest.requirements),
        "labels": manifest.labels,
        "ranks": [
            {
                "rank": r.rank,
                "files": len(r.files),
                "bytes": sum(f.size for f in r.files),
                "packs": len(r.packs),
                "bytes_in_store": sum(p.size for p in r.packs) + r.recipe.size,
            }
            for r in manifest.ranks
        ],
    }
    lines = [f"{key}: {value}" for key, value in document.items() if key != "ranks" and value not in ("", {})]
    for rank in document["ranks"]:
        lines.append(f"rank {rank['rank']}: {rank['files']} files, {rank['bytes']} bytes in {rank['packs']} packs")
    return (1 if problem else 0), document, lines


def _verify(store: Store, args: argparse.Namespace) -> Answer:
    manifest = _manifest(store, args)
    problems = store.verify(manifest, _bar("verified"))
    count = len(catalog.objects(manifest))
    document = {"id": manifest.id, "objects": count, "problems": problems}
    return (1 if problems else 0), document, problems or [f"{manifest.id}: all {count} objects are intact"]


def _pin(store: Store, args: argparse.Namespace) -> Answer:
    manifest = _manifest(store, args) if args.command == "pin" or args.id == "latest" else None
    checkpoint = manifest.id if manifest else args.id
    store.pin(args.namespace, args.job, checkpoint, args.command == "pin")
    return 0, {"id": checkpoint, "pinned": args.command == "pin"}, [f"{checkpoint}: {args.command}ned"]


def _prune(store: Store, args: argparse.Namespace) -> Answer:
    deleted = store.prune(args.namespace, args.job, args.keep)
    return 0, {"deleted": deleted}, [f"deleted {name}" for name in deleted] or ["nothing to delete"]


def _gc(store: Store, args: argparse.Namespace) -> Answer:
    found = [(args.namespace, args.job)] if args.job else store.jobs()
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for namespace, job in found:
        try:
            if args.ended:
                store.end_all_uploads(namespace, job)
            done = store.collect_garbage(namespace, job)
        except StoreError as error:
            rows.append({"namespace": namespace, "job": job, "error": str(error)})
            lines.append(f"{namespace}/{job}: {error}")
            continue
        rows.append(
            {"namespace": namespace, "job": job, "deleted": done.deleted, "freed": done.freed,
             "uploads_running": done.running, "unfinished": done.unfinished}
        )  # fmt: skip
        busy = f"nothing deleted, {len(done.running)} uploads are under way" if done.running else ""
        lines.append(f"{namespace}/{job}: {busy or f'{done.deleted} objects deleted, {done.freed} bytes freed'}")
    return (1 if any("error" in row for row in rows) else 0), {"jobs": rows}, lines


def _rewrap(store: Store, args: argparse.Namespace) -> Answer:
    """Of one job, or of all jobs of the namespace, for each has the same keys."""
    jobs = [job for ns, job in store.jobs() if ns == args.namespace and args.job in ("", job)]
    found: dict[str, list[str]] = {}
    problems: dict[str, str] = {}
    for job in jobs:
        try:
            found[job] = store.keys(args.namespace, job).rewrap()
        except StoreError as error:
            problems[job] = str(error)
    lines = [f"{args.namespace}/{job}: {len(done)} data keys are wrapped anew" for job, done in found.items()]
    lines += [f"{args.namespace}/{job}: {problem}" for job, problem in problems.items()]
    return (1 if problems else 0), {"jobs": found, "problems": problems}, lines or ["no job has anything here"]


def _export(store: Store, args: argparse.Namespace) -> Answer:
    manifest = _manifest(store, args)
    if args.file == "-":
        size = store.export(manifest, sys.stdout.buffer, _bar("exported"))
        document: dict[str, Any] = {"id": manifest.id, "file": args.file, "bytes": size}
    else:
        document = admin.export(store, args.namespace, args.job, manifest.id, args.file, _bar("exported"))
    return 0, document, [f"{manifest.id}: {document['bytes']} bytes to {args.file}"]


def _import(store: Store, args: argparse.Namespace) -> Answer:
    if args.file == "-":
        manifest = store.import_(sys.stdin.buffer, args.namespace, args.job, _bar("imported"))
        document = {"id": manifest.id, "namespace": manifest.namespace, "job": manifest.job}
    else:
        document = admin.take(store, args.namespace, args.job, args.file, _bar("imported"))
    return 0, document, [f"imported {document['id']} of {document['namespace']}/{document['job']}"]


def _bar(what: str) -> Progress:
    """A line on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        return ignore

    def show(done: int, total: int) -> None:
        share = done / total if total else 1.0
        line = f"{what} {done >> 20} of {total >> 20} MiB [{'#' * int(30 * share):30}] {share:4.0%}"
        print(f"\r{line}", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return show


def _manifest(store: Store, args: argparse.Namespace) -> Manifest:
    if args.id != "latest":
        return store.read_manifest(args.namespace, args.job, args.id)
    manifest, skipped = store.latest_valid(args.namespace, args.job)
    if manifest is None:
        why = f": {skipped[0].id}: {skipped[0].problem}" if skipped else ""
        raise StoreError(f"job {args.namespace}/{args.job} has no checkpoint that can be used{why}")
    return manifest


_COMMANDS: dict[str, Callable[[Store, argparse.Namespace], Answer]] = {
    "ls": _ls, "show": _show, "verify": _verify, "pin": _pin, "unpin": _pin, "prune": _prune, "gc": _gc,
    "rewrap": _rewrap, "export": _export, "import": _import,
}  # fmt: skip
