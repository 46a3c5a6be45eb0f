"""`make release BASE=debian:forky-slim@sha256:...` makes what a release consists of, in build/release.

    airflow_provider_singularity-*.whl, *.tar.gz      the wheel and its source
    singularity-VERSION.tgz                           the chart, to be pushed as an OCI artefact
    agent.spdx.json, controller.spdx.json             what the images contain
    NOTES.md                                          the release's part of the changelog, with the upgrade notes
    SHA256SUMS, publish                               digests of all that; what is left to do with a registry

Nothing is published: `publish` is a script that .github/workflows/release.yml runs, with Docker, cosign and a registry.
It has never been run.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"[a-z0-9][a-z0-9./:_-]*@sha256:[0-9a-f]{64}")
UNRELEASED = "Unreleased"
PUBLISH = """#!/bin/sh
# usage: publish REGISTRY
# Needs Docker with buildx, cosign and Helm, all logged in. This part of a release has never been run.
set -eu
registry=$1
cd "$(dirname "$0")"
sha256sum --check SHA256SUMS
for image in agent controller; do
    docker buildx build --push --provenance=mode=max --metadata-file "$image.json" \\
        --build-arg BASE={base} -f "../../images/$image.Dockerfile" -t "$registry/singularity-$image:{version}" ../..
    digest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$image.json")
    cosign sign --yes "$registry/singularity-$image@$digest"
    cosign attest --yes --type spdxjson --predicate "$image.spdx.json" "$registry/singularity-$image@$digest"
    echo "images.$image=$registry/singularity-$image@$digest"
done
helm push singularity-{version}.tgz "oci://$registry/charts"
cosign sign-blob --yes --bundle SHA256SUMS.sigstore SHA256SUMS
"""


class ReleaseError(Exception):
    """The release cannot be made. The message names what is wrong and the fix."""


def notes(changelog: str, version: str) -> str:
    """The changelog's part for this version; what is unreleased while there is none."""
    for title in (version, UNRELEASED):
        found = re.search(rf"(?ms)^## \[?{re.escape(title)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog)
        if found is not None:
            upgrade = "See docs/administration/upgrade.md before an upgrade: the controller goes first.\n"
            return f"# {version}\n\n{upgrade}\n{found[1].strip()}\n"
    raise ReleaseError(f"CHANGELOG.md has neither a part {version} nor {UNRELEASED}")


def check(base: str, versions: dict[str, str]) -> str:
    """Return the one version of all parts. Raises ReleaseError."""
    if not PINNED.fullmatch(base):
        raise ReleaseError(
            f"BASE = {base!r}: a release is built on a base image by digest, NAME:TAG@sha256:...; "
            "`docker buildx imagetools inspect debian:forky-slim` prints it"
        )
    if len(set(versions.values())) != 1:
        raise ReleaseError(f"the parts have different versions: {versions}; make them the same")
    return next(iter(versions.values()))


def versions() -> dict[str, str]:
    """Of the code and of the chart."""
    module = (ROOT / "proxy/singularity_proxy/protocol/__init__.py").read_text()
    chart = (ROOT / "charts/singularity/Chart.yaml").read_text()
    found = {
        "wheel and images": re.search(r'(?m)^VERSION = "([^"]+)"', module),
        "chart": re.search(r"(?m)^version: (\S+)", chart),
        "appVersion": re.search(r'(?m)^appVersion: "([^"]+)"', chart),
    }
    return {name: each[1] if each else "" for name, each in found.items()}


def make(target: Path, base: str, helm: str, uv: str) -> None:
    """Make all that needs no registry. Raises ReleaseError, CalledProcessError."""
    version = check(base, versions())
    target.mkdir(parents=True)
    _run(uv, "build", "-q", "--out-dir", str(target), str(ROOT))
    (target / ".gitignore").unlink(missing_ok=True)
    _run(helm, "package", str(ROOT / "charts/singularity"), "--destination", str(target))
    seconds = int(_run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    created = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for image in ("agent", "controller"):
        text = _run(sys.executable, str(Path(__file__).with_name("sbom.py")), image, version, created)
        (target / f"{image}.spdx.json").write_text(text)
    (target / "NOTES.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), version))
    publish = target / "publish"
    publish.write_text(PUBLISH.format(base=base, version=version))
    publish.chmod(0o755)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(target.iterdir())]
    (target / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="base image by digest")
    parser.add_argument("--show-version", action="store_true", help="print the version and make nothing")
    parser.add_argument("--helm", default="helm")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--target", type=Path, default=ROOT / "build/release", help="a folder that does not exist")
    given = parser.parse_args()
    try:
        if given.show_version:
            print(versions()["chart"])
            return 0
        make(given.target, given.base, given.helm, given.uv)
    except (ReleaseError, FileExistsError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{given.target}: nothing is published; {given.target}/publish REGISTRY would do that, and has never been run"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
