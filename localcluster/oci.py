"""OCI image layouts and archives (image-spec 1.1): the pod sandbox image, and archives with only the missing blobs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
REFERENCE = "org.opencontainers.image.ref.name"
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Image:
    """One image on disk: its manifest's digest and where its blobs are (`blobs/sha256/HEX`)."""

    name: str
    layout: Path
    manifest: str

    def blob(self, digest: str) -> Path:
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def blobs(self) -> list[str]:
        """Digests of the manifest, the configuration and the layers."""
        document = json.loads(self.blob(self.manifest).read_bytes())
        return [self.manifest, document["config"]["digest"], *(layer["digest"] for layer in document["layers"])]


def find_image(layout: Path, name: str, reference: str = "") -> Image:
    """The image that an OCI layout folder holds under `reference`.

    :raises KeyError: none
    """
    for descriptor in _read_index(layout)["manifests"]:
        if descriptor.get("annotations", {}).get(REFERENCE, "") == reference:
            return Image(name, layout, descriptor["digest"])
    raise KeyError(reference)


def prune(layout: Path, names: Iterable[str], keep: int) -> None:
    """Keep the newest `keep` references `NAME-...` of each name, drop the others and every blob that nothing uses."""
    index = _read_index(layout)
    kept: list[dict[str, Any]] = []
    for name in names:
        own = [entry for entry in index["manifests"] if entry["annotations"][REFERENCE].startswith(f"{name}-")]
        own.sort(key=lambda entry: Image("", layout, entry["digest"]).blob(entry["digest"]).stat().st_mtime)
        kept += own[-keep:]
    used = {digest for entry in kept for digest in Image("", layout, entry["digest"]).blobs()}
    draft = layout / "index.tmp"
    draft.write_text(json.dumps({**index, "manifests": kept}))
    draft.rename(layout / "index.json")
    for blob in (layout / "blobs" / "sha256").iterdir():
        if f"sha256:{blob.name}" not in used:
            blob.unlink()


def _read_index(layout: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((layout / "index.json").read_bytes())
    except FileNotFoundError:
        return {"schemaVersion": 2, "manifests": []}
    return index


def write_archive(image: Image, target: Path, present: Collection[str] = ()) -> None:
    """OCI archive of `image` without the blobs in `present`.

    containerd's import takes blobs that its content store has from there, so a changed top layer need not drag the
    hundreds of megabytes below it along.
    """
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", LAYOUT)
        _add(archive, "index.json", _index(image.name, image.manifest, image.blob(image.manifest).stat().st_size))
        for digest in dict.fromkeys(image.blobs()):
            if digest not in present:
                archive.add(image.blob(digest), f"blobs/sha256/{digest.removeprefix('sha256:')}")


def write_busybox_layout(busybox: Path, layout: Path) -> None:
    """Layout folder of an image that holds one static busybox and sleeps: the pod sandbox container."""
    layer = _busybox_layer(busybox)
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]},
    }
    write_layout(layout, layer, configuration)


def write_layout(layout: Path, layer: bytes, configuration: Mapping[str, Any]) -> None:
    """Layout folder of an image with one uncompressed layer."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def store(data: bytes) -> dict[str, Any]:
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha256(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, **store(json.dumps(configuration).encode())},
        "layers": [{"mediaType": LAYER_TYPE, **store(layer)}],
    }
    descriptor = store(json.dumps(manifest).encode())
    (layout / "oci-layout").write_bytes(LAYOUT)
    (layout / "index.json").write_bytes(_index("", descriptor["digest"], descriptor["size"]))


def _index(name: str, digest: str, size: int) -> bytes:
    descriptor = {
        "mediaType": MANIFEST_TYPE,
        "digest": digest,
        "size": size,
        "annotations": {"io.containerd.image.name": name, REFERENCE: name.rpartition(":")[2]},
    }
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor]}).encode()


def _busybox_layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(directory)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in ("sh", "sleep"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
