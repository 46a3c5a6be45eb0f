"""The image store and the archives that go to the nodes."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from localcluster.images.oci import Image, ImageStore, add_busybox, write_archive


def pushed(folder: Path, layers: list[bytes]) -> Path:
    """What a push to the `dir:` transport leaves."""
    folder.mkdir()

    def put(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    manifest = {"schemaVersion": 2, "config": put(b"{}" + layers[-1]), "layers": [put(layer) for layer in layers]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    return folder


def found(store: ImageStore, reference: str) -> Image:
    image = store.find(reference, "localhost/x:dev")
    assert image is not None
    return image


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return set(opened.getnames())


def test_versions_share_layers_and_old_ones_go(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    for number in range(4):
        store.adopt(f"x-{number}", pushed(tmp_path / f"push{number}", [b"base", f"top {number}".encode()]))
    blobs = tmp_path / "store" / "blobs"
    assert len(list(blobs.iterdir())) == 1 + 4 * 3
    store.prune(["x"], 2)
    assert store.find("x-1", "n") is None
    assert len(list(blobs.iterdir())) == 1 + 2 * 3
    assert all(path.exists() for number in (2, 3) for image in [found(store, f"x-{number}")]
               for path in map(image.blob, image.blobs()))  # fmt: skip


def test_rebuilt_version_counts_as_new(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    for push, reference in enumerate(["x-a", "x-b", "x-a"]):
        store.adopt(reference, pushed(tmp_path / f"push{push}", [reference.encode()]))
    store.prune(["x"], 1)
    assert store.find("x-a", "n") is not None
    assert store.find("x-b", "n") is None


def test_archive_leaves_out_what_the_node_has(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    store.adopt("x-1", pushed(tmp_path / "push", [b"base", b"top"]))
    image = found(store, "x-1")
    base = "sha256:" + hashlib.sha256(b"base").hexdigest()
    with open(tmp_path / "full.tar", "wb") as full, open(tmp_path / "delta.tar", "wb") as delta:
        write_archive(image, full)
        write_archive(image, delta, {base})
    assert names(tmp_path / "full.tar") - names(tmp_path / "delta.tar") == {"blobs/sha256/" + base[7:]}
    with tarfile.open(tmp_path / "delta.tar") as archive:
        for member in archive.getmembers():
            data = archive.extractfile(member)
            assert data is not None
            if member.name.startswith("blobs/"):
                assert hashlib.sha256(data.read()).hexdigest() == member.name.rpartition("/")[2]
        index = archive.extractfile("index.json")
        assert index is not None
        entry = json.load(index)["manifests"][0]
    assert entry["digest"] == image.manifest
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:dev"


def test_busybox_image_runs_what_it_contains(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    add_busybox(store, "pause", b"\x7fELF busybox")
    image = found(store, "pause")
    manifest, configuration, layer = (image.blob(digest) for digest in image.blobs())
    assert json.loads(manifest.read_bytes())["layers"][0]["size"] == layer.stat().st_size
    document = json.loads(configuration.read_bytes())
    assert document["rootfs"]["diff_ids"] == ["sha256:" + layer.name]
    with tarfile.open(layer) as archive:
        program = archive.getmember(document["config"]["Entrypoint"][0].lstrip("/"))
        assert program.mode & 0o111
