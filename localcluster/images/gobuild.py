"""The programs of a cluster, built from Go modules (`go/PART/go.mod` names the versions) into the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..cache import Progress, digest, made_once
from ..errors import CommandError, HostError
from ..shell import run, run_logged

SOURCES = Path(__file__).parents[1] / "go"
KUBERNETES_VERSION = "v1.36.3"
STRIP = "-s -w"
# Clients parse the version that these variables hold; without them they refuse to talk.
VERSIONED = (
    f"{STRIP} -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
    " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
    f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"
)
KUEUE_MODULE = "sigs.k8s.io/kueue"
_TRAINER_KINDS = ("clustertrainingruntimes", "trainingruntimes", "trainjobs")


@dataclass(frozen=True)
class GoPart:
    """One Go module.

    :param binaries: what the build makes, `(name that Go gives, name that we use)`
    :param command: arguments of `go`; `{bin}` stands for the target folder
    :param manifests: `(file or folder below the module `module`, name)` copied beside the binaries
    """

    name: str
    binaries: Sequence[tuple[str, str]]
    command: Sequence[str]
    ldflags: str = STRIP
    module: str = ""
    manifests: Sequence[tuple[str, str]] = ()
    note: str = ""
    env: dict[str, str] = field(default_factory=lambda: {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"})


def _same(*names: str) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


KUBERNETES = GoPart(
    "kubernetes",
    _same("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
    ["install", "tool"],
    VERSIONED,
    note="about 5 minutes on 2 cores",
)
ETCD = GoPart("etcd", [("server", "etcd")], ["install", "tool"])
CONTAINERD = GoPart(
    "containerd",
    _same("containerd", "containerd-shim-runc-v2", "ctr"),
    ["install", "-tags", "no_btrfs,no_devmapper,no_zfs", "tool"],
)
KUEUE = GoPart(
    "kueue",
    _same("kueue"),
    ["install", "tool"],
    VERSIONED,
    module=KUEUE_MODULE,
    manifests=[
        ("config/components/crd/bases", "crds"),
        ("config/components/rbac", "rbac"),
        ("config/components/webhook/manifests.yaml", "webhooks.yaml"),
    ],
    note="about 3 minutes on 2 cores",
)
RUNC = GoPart(
    "runc",
    _same("runc"),
    ["install", "-tags", "seccomp", "tool"],
    note="needs a C compiler and libseccomp",
    env={"CGO_ENABLED": "1", "GOFLAGS": "-buildvcs=false"},
)
"""Debian 12's is too old for pods with a user namespace of their own."""
COREDNS = GoPart("coredns", _same("coredns"), ["build", "-o", "{bin}/coredns", "."])
HELM = GoPart("helm", _same("helm"), ["install", "tool"])
KWOK = GoPart(
    "kwok",
    _same("kwok"),
    ["install", "tool"],
    module="sigs.k8s.io/kwok",
    manifests=[
        ("kustomize/stage/node/fast/node-initialize.yaml", "node-initialize.yaml"),
        ("kustomize/stage/pod/fast/pod-ready.yaml", "pod-ready.yaml"),
        ("kustomize/stage/pod/fast/pod-delete.yaml", "pod-delete.yaml"),
    ],
    note="about a minute on 2 cores",
)
"""Fakes nodes and pods; only benchmarks want it."""
JOBSET = GoPart(
    "jobset",
    _same("jobset"),
    ["install", "tool"],
    module="sigs.k8s.io/jobset",
    manifests=[("config/components/crd/bases", "crds"), ("config/components/webhook/manifests.yaml", "webhooks.yaml")],
    note="about 2 minutes on 2 cores",
)
"""Not of every cluster: see `jobset`."""
TRAINER = GoPart(
    "trainer",
    [("trainer-controller-manager", "trainer")],
    ["install", "tool"],
    module="github.com/kubeflow/trainer/v2",
    manifests=[
        (f"manifests/base/crds/trainer.kubeflow.org_{kind}.yaml", f"crds/{kind}.yaml") for kind in _TRAINER_KINDS
    ]
    + [("manifests/base/webhook/manifests.yaml", "webhooks.yaml")],
    note="about 3 minutes on 2 cores",
)
"""Not of every cluster: see `trainer`."""
DRA_DRIVER = GoPart(
    "dradriver",
    [("dra-example-kubeletplugin", "dra-driver")],
    ["install", "tool"],
    note="about 2 minutes on 2 cores",
)
"""Not of every cluster: see `dra`."""
FAKE_GCS = GoPart(
    "fakegcs", _same("fake-gcs-server"), ["build", "-o", "{bin}/fake-gcs-server", "."], note="about a minute on 2 cores"
)
"""Speaks Google Cloud Storage; of no cluster, the store is tested against it."""
PARTS = (ETCD, KUBERNETES, CONTAINERD, RUNC, COREDNS, KUEUE, HELM)


@dataclass(frozen=True)
class Binaries:
    """Where the programs are."""

    folders: dict[str, Path]
    files: dict[str, Path]

    def __getitem__(self, name: str) -> str:
        return str(self.files[name])


def part_key(part: GoPart, sources: Path = SOURCES) -> str:
    """Changes with the module's files and the way we build it."""
    own = sources / part.name
    files = [own / "go.mod", own / "go.sum", *sorted(own.glob("*.go"))]
    texts = [file.read_bytes() for file in files if file.exists()]
    flags = [part.ldflags, *part.command, *(f"{key}={value}" for key, value in sorted(part.env.items()))]
    layout = [f"{source}>{target}" for source, target in (*part.binaries, *part.manifests)]
    return digest([*texts, *flags, *layout])


def folder(part: GoPart, cache: Path) -> Path:
    return cache / "bin" / f"{part.name}-{part_key(part)}"


def missing(cache: Path) -> list[GoPart]:
    return [part for part in PARTS if not folder(part, cache).exists()]


def build_all(cache: Path, progress: Progress) -> Binaries:
    """Every program, built now where it is not in the cache.

    :raises BuildError, CommandError, HostError: the message names the log
    """
    folders = {part.name: build(part, cache, progress) for part in PARTS}
    files = {ours: folders[part.name] / ours for part in PARTS for _, ours in part.binaries}
    return Binaries(folders, files)


def build(part: GoPart, cache: Path, progress: Progress) -> Path:
    """Folder with the programs of `part`. Raises as `build_all`."""
    what = f"{part.name} from its Go module" + (f" ({part.note})" if part.note else "")
    log = cache / "logs" / f"build-{part.name}.log"
    return made_once(folder(part, cache), lambda draft: _build(part, draft, log), what=what, progress=progress)


def _build(part: GoPart, draft: Path, log: Path) -> None:
    go = find_go()
    env = {**os.environ, **part.env, "GOBIN": str(draft)}
    action, *rest = [word.replace("{bin}", str(draft)) for word in part.command]
    log.unlink(missing_ok=True)
    directory = SOURCES / part.name
    try:
        run_logged([go, action, "-ldflags", part.ldflags, *rest], log, env=env, cwd=directory, timeout=3600)
    except CommandError as error:
        if "no space left" in str(error).lower():
            raise HostError(f"the disk is full while {part.name} is built: {error}") from error
        raise
    for theirs, ours in part.binaries:
        if theirs != ours:
            (draft / theirs).rename(draft / ours)
    if part.module:
        source = Path(run([go, "list", "-m", "-f", "{{.Dir}}", part.module], env=env, cwd=directory).strip())
        for below, name in part.manifests:
            _copy(source / below, draft / name)


def _copy(source: Path, target: Path) -> None:
    """Go's module cache is read-only; what we keep must be removable."""
    if source.is_dir():
        target.mkdir(parents=True)
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def find_go() -> str:
    """:raises HostError: no Go here"""
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if found is None:
        raise HostError(
            "Go is not installed and programs of the cluster have to be built: install Go 1.26 or newer from "
            "https://go.dev/dl and put it on the PATH"
        )
    return found
