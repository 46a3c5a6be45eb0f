"""The cluster's own kubectl, as its administrator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ClusterConfig
from ..images.gobuild import Binaries
from ..shell import run, wait_until, without_proxies

KINDS_S = 60.0
FIELD_MANAGER = "singularity-local"
UNCHECKED = "--validate=false"
"""The API server itself refuses unknown fields of a server-side apply. Without this kubectl asks it for the OpenAPI
document of everything first, which a busy machine may not have made within kubectl's 32 seconds."""


@dataclass(frozen=True)
class Kubectl:
    """:param program: path of kubectl"""

    config: ClusterConfig
    program: str

    def __call__(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 60) -> str:
        """Standard output.

        :raises CommandError: see `shell.run`
        """
        base = [self.program, f"--kubeconfig={self.config.kubeconfig}", f"--cache-dir={self.config.root / 'kubectl'}"]
        return run([*base, *arguments], stdin=stdin, timeout=timeout, env=without_proxies(), cwd=Path("/"))

    def apply(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Server-side apply; ours wins conflicts."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self(*_apply(), "-f", "-", stdin=json.dumps(document))

    def apply_path(self, *arguments: str | Path) -> None:
        """Server-side apply of files: `-f PATH` or `-k PATH`."""
        self(*_apply(), *arguments, timeout=120)

    def documents(self, path: Path) -> list[dict[str, Any]]:
        """The objects of a YAML file, unchanged; the API server has to know their kinds."""
        return json_stream(self("create", "--dry-run=client", UNCHECKED, "-o", "json", "-f", path))

    def await_kinds(self, crds: Path) -> None:
        """Wait until the API server serves the custom resources that are defined in the folder.

        `kubectl wait` gives up on a definition that has no status yet.

        :raises NotReadyError: a minute has passed
        """
        what = f"the kinds of {crds} are served"
        wait_until(lambda: all(map(_established, self._items(crds))), what, timeout=KINDS_S, interval=0.2)

    def _items(self, path: Path) -> list[dict[str, Any]]:
        found: dict[str, Any] = self.json("get", "-f", str(path))
        return list(found["items"]) if found["kind"] == "List" else [found]

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


def _established(crd: Mapping[str, Any]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def json_stream(text: str) -> list[dict[str, Any]]:
    """The JSON documents that follow each other in `text`."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def _apply() -> Sequence[str]:
    return ("apply", "--server-side", "--force-conflicts", UNCHECKED, "--field-manager", FIELD_MANAGER)


def for_cluster(config: ClusterConfig, binaries: Binaries) -> Kubectl:
    return Kubectl(config, binaries["kubectl"])
