"""Container images on disk (OCI image-spec 1.1): a folder of blobs with named versions, and archives for containerd."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Image:
    """One image.

    :param name: as containers name it, with its tag
    :param folder: holds its blobs, each in a file named by the hex digits of its digest
    :param manifest: digest of its manifest
    """

    name: str
    folder: Path
    manifest: str

    def blob(self, digest: str) -> Path:
        return self.folder / digest.removeprefix("sha256:")

    def blobs(self) -> list[str]:
        """Digests of the manifest, the configuration and the layers."""
        document = json.loads(self.blob(self.manifest).read_bytes())
        return [self.manifest, document["config"]["digest"], *(layer["digest"] for layer in document["layers"])]


class ImageStore:
    """A folder of images that share blobs. A reference names one version of one image. Callers lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"

    def find(self, reference: str, name: str) -> Image | None:
        """The image under `reference`, to be called `name`."""
        manifest = self._references().get(reference)
        return None if manifest is None else Image(name, self._blobs, manifest)

    def adopt(self, reference: str, source: Path) -> None:
        """Take the blobs over from `source`, which a push to containers/image's `dir:` transport has filled."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        manifest = (source / "manifest.json").read_bytes()
        for entry in source.iterdir():
            if len(entry.name) == hashlib.sha256().digest_size * 2 and not (self._blobs / entry.name).exists():
                entry.rename(self._blobs / entry.name)
        self._name(reference, self._store(manifest)["digest"])

    def add(self, reference: str, layer: bytes, configuration: Mapping[str, Any]) -> None:
        """An image of one uncompressed layer."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, **self._store(json.dumps(configuration).encode())},
            "layers": [{"mediaType": LAYER_TYPE, **self._store(layer)}],
        }
        self._name(reference, self._store(json.dumps(manifest).encode())["digest"])

    def prune(self, names: Iterable[str], keep: int) -> None:
        """Keep the last `keep` references `NAME-...` of each name; drop the others and every blob that nothing uses."""
        known = self._references()
        kept: dict[str, str] = {}
        for name in names:
            own = [reference for reference in known if reference.startswith(f"{name}-")]
            kept |= {reference: known[reference] for reference in own[-keep:]}
        self._write(kept)
        used = {digest for manifest in kept.values() for digest in Image("", self._blobs, manifest).blobs()}
        for blob in self._blobs.iterdir():
            if f"sha256:{blob.name}" not in used:
                blob.unlink()

    def _store(self, data: bytes) -> dict[str, Any]:
        digest = sha256(data)
        path = self._blobs / digest.removeprefix("sha256:")
        if not path.exists():
            draft = path.with_suffix(".draft")
            draft.write_bytes(data)
            draft.rename(path)
        return {"digest": digest, "size": len(data)}

    def _name(self, reference: str, manifest: str) -> None:
        known = self._references()
        known.pop(reference, None)
        self._write({**known, reference: manifest})

    def _references(self) -> dict[str, str]:
        """Oldest first."""
        try:
            data: dict[str, str] = json.loads((self._folder / "references.json").read_bytes())
        except FileNotFoundError:
            return {}
        return data

    def _write(self, references: Mapping[str, str]) -> None:
        draft = self._folder / "references.tmp"
        draft.write_text(json.dumps(references, indent=1))
        draft.rename(self._folder / "references.json")


def write_archive(image: Image, target: IO[bytes], present: Collection[str] = ()) -> None:
    """Write an OCI archive of `image`, without the blobs in `present`, to `target`, which need not be seekable.

    containerd's import takes blobs from its content store if they are there. So a changed top layer does not need the
    hundreds of megabytes below it.
    """
    descriptor = {
        "mediaType": MANIFEST_TYPE,
        "digest": image.manifest,
        "size": image.blob(image.manifest).stat().st_size,
        "annotations": {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        },
    }
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor]}
    with tarfile.open(fileobj=target, mode="w|") as archive:
        _add(archive, "oci-layout", LAYOUT)
        _add(archive, "index.json", json.dumps(index).encode())
        for digest in dict.fromkeys(image.blobs()):
            if digest not in present:
                archive.add(image.blob(digest), f"blobs/sha256/{digest.removeprefix('sha256:')}")


def add_busybox(store: ImageStore, reference: str, busybox: bytes) -> None:
    """An image that holds one static busybox and sleeps: the pod sandbox container."""
    layer = _busybox_layer(busybox)
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]},
    }
    store.add(reference, layer, configuration)


def _busybox_layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(directory)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox, 0o755)
        for applet in ("sh", "sleep"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
