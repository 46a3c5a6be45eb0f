"""Make the archive and the manifest of the kubectl plugin for krew, from the wheel.

    python images/krew.py dist/airflow_provider_singularity-0.1.0-py3-none-any.whl https://downloads.example.com krew

The archive is the same, byte for byte, whenever it is made of the same wheel. Upload it to the URL, then
`kubectl krew install --manifest=krew/singularity.yaml`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import yaml

NAME = "singularity"
LAUNCHER = Path(__file__).with_name(f"kubectl-{NAME}")
LICENSE = Path(__file__).resolve().parents[1] / "LICENSE"
EXTRA = "kueue"
PACKAGES = ("kueue_integration", "singularity_proxy")
"""Of the wheel: what the command line is made of."""
SYSTEMS = ("linux", "darwin")


def made(wheel: bytes) -> tuple[str, bytes]:
    """Return the version of the wheel and the archive of its command line."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as parts:
        (about,) = [name for name in parts.namelist() if name.endswith(".dist-info/METADATA")]
        meta = Parser().parsestr(parts.read(about).decode())
        kept = [n for n in parts.namelist() if n.startswith((*(f"{p}/" for p in PACKAGES), about)) and n[-1] != "/"]
        files = {f"lib/{name}": parts.read(name) for name in kept}
    files["requirements.txt"] = ("\n".join(requirements(meta.get_all("Requires-Dist") or [])) + "\n").encode()
    files["LICENSE"] = LICENSE.read_bytes()
    files[LAUNCHER.name] = LAUNCHER.read_bytes()
    return str(meta["Version"]), _archive(files)


def requirements(lines: list[str]) -> list[str]:
    """Return what the extra of the command line needs, of the wheel's `Requires-Dist`."""
    mark = f'extra == "{EXTRA}"'
    found = [line.replace("'", '"').partition(";") for line in lines]
    return sorted(need.strip() for need, _, condition in found if mark in condition)


def manifest(version: str, url: str, archive: bytes) -> dict[str, Any]:
    """Return krew's manifest of the archive at `url`."""
    platform = {
        "uri": f"{url.rstrip('/')}/{file_name(version)}",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "bin": LAUNCHER.name,
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": url,
            "shortDescription": "Move and resize training jobs without loss",
            "description": (
                "Submit, watch, pause, resize, move and save training jobs on Kueue that can be preempted at any time\n"
                "and go on bit-identically elsewhere. The cluster needs the chart `singularity`.\n"
            ),
            "caveats": "It needs uv (https://docs.astral.sh/uv), which brings Python and libraries.\n",
            "platforms": [{"selector": {"matchLabels": {"os": system}}, **platform} for system in SYSTEMS],
        },
    }


def file_name(version: str) -> str:
    return f"kubectl-{NAME}-{version}.tar.gz"


def _archive(files: dict[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name == LAUNCHER.name else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("url", help="where the archive will be: https://...")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if not given.url.startswith("https://"):
        parser.error(f"url = {given.url!r}: krew downloads by https; give https://...")
    version, archive = made(given.wheel.read_bytes())
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / file_name(version)).write_bytes(archive)
    text = yaml.safe_dump(manifest(version, given.url, archive), sort_keys=False)
    (given.folder / f"{NAME}.yaml").write_text(text)


if __name__ == "__main__":
    main()
