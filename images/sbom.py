"""`python images/sbom.py IMAGE VERSION CREATED` prints what an image (agent, controller) installs, as SPDX 2.3 JSON.

It is made of what the build pins: Python packages with their digests, and CRIU's source. Debian's packages are those of
the base image's sources: they are named, and their versions are in the image itself (/var/lib/dpkg/status).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from packaging.markers import Marker

IMAGES = Path(__file__).parent
NAMES = ("agent", "controller")
PYTHON = {
    "python_version": "3.14", "python_full_version": "3.14.0", "sys_platform": "linux", "platform_machine": "x86_64",
    "platform_system": "Linux", "platform_python_implementation": "CPython", "implementation_name": "cpython",
}  # fmt: skip
"""Of Debian forky, for the markers of the lock files."""
_DESCRIBES, _CONTAINS = "DESCRIBES", "CONTAINS"
_NOWHERE = "NOASSERTION"


def pins(lock: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 digests of each package that a lock file has for the image's Python."""
    found = []
    for part in re.split(r"(?m)^(?=[A-Za-z0-9])", lock)[1:]:
        named = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", part)
        if named is None:
            raise ValueError(f"{part.splitlines()[0]!r} pins no version; make the file with `make lock`")
        marker = part.splitlines()[0].partition(";")[2].rstrip("\\ ")
        if marker and not Marker(marker).evaluate(PYTHON):
            continue
        found.append((named[1], named[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", part)))
    return found


def debian(dockerfile: str) -> list[str]:
    """The packages that a Dockerfile installs from Debian."""
    joined = dockerfile.replace("\\\n", " ")
    lists = re.findall(r"apt-get install -y --no-install-recommends ([a-z0-9. +-]+?) +&&", joined)
    return sorted({name for each in lists for name in each.split()})


def criu(script: str) -> tuple[str, str]:
    """Version and digest of CRIU's source."""
    version, digest = (re.search(rf"(?m)^{name}=(\S+)$", script) for name in ("VERSION", "SHA256"))
    if version is None or digest is None:
        raise ValueError("images/build-criu has no VERSION or no SHA256")
    return version[1], digest[1]


def _package(kind: str, name: str, version: str, digests: list[str]) -> dict[str, Any]:
    spdx = re.sub(r"[^A-Za-z0-9.-]", "-", f"SPDXRef-{kind}-{name}-{version}")
    made: dict[str, Any] = {
        "SPDXID": spdx, "name": name, "versionInfo": version, "downloadLocation": _NOWHERE, "filesAnalyzed": False,
        "licenseConcluded": _NOWHERE, "licenseDeclared": _NOWHERE, "copyrightText": _NOWHERE,
    }  # fmt: skip
    if kind != "image":
        at = "" if version == _NOWHERE else f"@{version}"
        purl = {"pypi": f"pkg:pypi/{name}{at}", "deb": f"pkg:deb/debian/{name}{at}"}[kind]
        where = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        made["externalRefs"] = [where]
    if len(digests) == 1:
        made["checksums"] = [{"algorithm": "SHA256", "checksumValue": digests[0]}]
    elif digests:
        # The file that is taken depends on the machine: each is one of these.
        made["comment"] = f"sha256 of one of: {' '.join(digests)}"
    return made


def document(image: str, version: str, created: str) -> dict[str, Any]:
    """The document of one image. Raises ValueError, OSError.

    :param created: time of the commit, RFC 3339: two builds of it are the same text
    """
    lock = (IMAGES / f"{image}.lock").read_text()
    files = [lock, (IMAGES / f"{image}.Dockerfile").read_text()]
    whole = _package("image", f"singularity-{image}", version, [])
    parts = [_package("pypi", *pin) for pin in pins(lock)]
    parts += [_package("deb", name, _NOWHERE, []) for name in debian(files[1])]
    if image == "agent":
        files.append((IMAGES / "build-criu").read_text())
        number, digest = criu(files[2])
        parts.append({**_package("deb", "criu", number, [digest]), "comment": "built from source, with images/criu"})
    digest = hashlib.sha256("\0".join([*files, version, created]).encode()).hexdigest()
    related = [("SPDXRef-DOCUMENT", _DESCRIBES, whole), *((whole["SPDXID"], _CONTAINS, each) for each in parts)]
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"singularity-{image}-{version}",
        "documentNamespace": f"https://singularity.dev/spdx/{image}-{version}-{digest[:32]}",
        "creationInfo": {"created": created, "creators": ["Tool: images/sbom.py"]},
        "packages": [whole, *parts],
        "relationships": [
            {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other["SPDXID"]}
            for one, how, other in related
        ],
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in NAMES:
        sys.exit(f"usage: sbom.py {'|'.join(NAMES)} VERSION CREATED")
    print(json.dumps(document(*sys.argv[1:]), indent=1))
