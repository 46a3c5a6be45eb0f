"""`apiserver`: a kube-apiserver of another Kubernetes than the cluster's, for tests of the chart's policies.

    env $(python -m localcluster.prepare --env --kubernetes v1.33.13) pytest tests/unit/kueue/test_policy_*.py

Its Go module is made from the version alone: Kubernetes' own module names its parts, which have the same number.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ..cache import Progress, made_once
from ..errors import HostError
from ..shell import run, run_logged
from .gobuild import STRIP, find_go

_VERSION = re.compile(r"v1\.(\d+)\.\d+")
_PART = re.compile(r"(?m)^\s*(?:replace\s+)?(k8s\.io/[a-z0-9-]+) (?:=> \./staging/|v0\.0\.0$)")
_NAMES = "k8s.io/component-base/version"


def apiserver(version: str, cache: Path, progress: Progress) -> Path:
    """The program, built now where it is not in the cache: ten minutes on two cores. Raises HostError, CommandError."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise HostError(f"Kubernetes {version!r} is no version: give one such as v1.33.13")
    log = cache / "logs" / f"build-kubernetes-{version}.log"
    made = made_once(
        cache / "bin" / f"kube-apiserver-{version}",
        lambda draft: _build(version, found[1], draft, log),
        what=f"kube-apiserver {version} from its Go module",
        progress=progress,
    )
    return made / "kube-apiserver"


def _build(version: str, minor: str, draft: Path, log: Path) -> None:
    go, parts = find_go(), version.replace("v1.", "v0.", 1)
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=mod"}
    (draft / "go.mod").write_text("module localcluster/kubernetes\n")
    (draft / "tools.go").write_text('package main\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n')

    def edit(*words: str) -> str:
        return run([go, *words], env=env, cwd=draft, timeout=900)

    theirs = json.loads(edit("mod", "download", "-json", f"k8s.io/kubernetes@{version}"))
    text = Path(theirs["GoMod"]).read_text()
    language = re.search(r"(?m)^go (\S+)", text)
    replaced = [f"-replace={name}={name}@{parts}" for name in sorted({*_PART.findall(text)})]
    wanted = [f"-require=k8s.io/kubernetes@{version}", *([f"-go={language[1]}"] if language else [])]
    edit("mod", "edit", *wanted, *replaced)
    flags = f"{STRIP} -X {_NAMES}.gitVersion={version} -X {_NAMES}.gitMajor=1 -X {_NAMES}.gitMinor={minor}"
    program = draft / "kube-apiserver"
    words = [go, "build", "-ldflags", flags, "-o", str(program), "k8s.io/kubernetes/cmd/kube-apiserver"]
    run_logged(words, log, env=env, cwd=draft, timeout=3600)
