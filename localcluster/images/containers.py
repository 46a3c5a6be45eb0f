"""Our container images, built by buildah from the checkout's Dockerfiles, without a daemon.

Results are OCI images in one layout folder of the cache, which shares layers between versions. An image is built again
when a file that goes into it has changed. Then buildah repeats only the steps from the first changed file on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cache import Progress, tree_digest
from ..errors import BuildError, CommandError
from ..locks import locked
from ..shell import run, run_logged
from . import rootfs
from .oci import Image, ImageStore

CHECKOUT = Path(__file__).resolve().parents[2]
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CA_IN_BUILD = "/run/build-ca.crt"
KEPT_VERSIONS = 3


@dataclass(frozen=True)
class Recipe:
    """One image.

    :param sources: files and folders of the checkout that the Dockerfile copies
    """

    name: str
    dockerfile: str
    sources: Sequence[str]

    @property
    def tag(self) -> str:
        return f"localhost/{self.name}:dev"


AGENT = Recipe(
    "singularity-agent",
    "images/agent.Dockerfile",
    ["proxy/singularity_proxy", "singularity_train", "images/agent.lock"]
    + [f"images/{name}" for name in ("add-code", "build-criu", "collect-launcher", "criu", "install-agent")]
    + ["images/install-locked", "images/start"],
)
CONTROLLER = Recipe(
    "singularity-controller",
    "images/controller.Dockerfile",
    ["kueue_integration", "images/controller.lock", "images/install-locked"]
    + [f"proxy/singularity_proxy/{name}" for name in ("__init__.py", "protocol")],
)
TRAIN = Recipe("singularity-train", "images/train.Dockerfile", [])
RECIPES = (AGENT, CONTROLLER, TRAIN)


def available(checkout: Path = CHECKOUT) -> bool:
    """False for an installed wheel, which has no Dockerfiles."""
    return (checkout / AGENT.dockerfile).exists()


def build_all(cache: Path, progress: Progress, checkout: Path = CHECKOUT) -> dict[str, Image]:
    """Every image by its recipe's name, built now where something in it changed.

    :raises BuildError, CommandError: the message names the log
    """
    base = rootfs.debian(cache, progress)
    folder = cache / "images"
    store = ImageStore(folder / "store")
    with locked(folder / ".images.lock", timeout=3600, on_wait=lambda: progress("waiting for another image build")):
        images = {recipe.name: _image(recipe, base, cache, store, checkout, progress) for recipe in RECIPES}
        store.prune([recipe.name for recipe in RECIPES], KEPT_VERSIONS)
    return images


def _image(recipe: Recipe, base: Path, cache: Path, store: ImageStore, checkout: Path, progress: Progress) -> Image:
    reference = f"{recipe.name}-{image_key(recipe, base.name, checkout)}"
    image = store.find(reference, recipe.tag)
    if image is not None:
        return image
    progress(f"building image {recipe.tag}")
    pushed = cache / "images" / f".{recipe.name}.push"
    shutil.rmtree(pushed, ignore_errors=True)
    try:
        _build(recipe, base, cache, pushed, checkout)
        store.adopt(reference, pushed)
    finally:
        shutil.rmtree(pushed, ignore_errors=True)
    image = store.find(reference, recipe.tag)
    if image is None:
        raise BuildError(f"image {recipe.tag} was built and is not in {cache / 'images'}")
    return image


def image_key(recipe: Recipe, base: str, checkout: Path) -> str:
    """Changes with the base and every file that goes into the image.

    :raises BuildError: a file is not there
    """
    paths = [checkout / source for source in (recipe.dockerfile, *recipe.sources)]
    for path in paths:
        if not path.exists():
            raise BuildError(f"image {recipe.tag}: {path} is missing from the checkout")
    return tree_digest(checkout, paths, base)


def _build(recipe: Recipe, base: Path, cache: Path, target: Path, checkout: Path) -> None:
    tool = Buildah(cache)
    base_tag = tool.base(base)
    log = cache / "logs" / f"image-{recipe.name}.log"
    log.unlink(missing_ok=True)
    options = ["--layers", "--isolation", "chroot", "--network", "host", "--format", "oci", "--pull-never"]
    arguments = build_arguments(os.environ, base_tag)
    if CA_BUNDLE.exists():
        options += ["--volume", f"{CA_BUNDLE}:{CA_IN_BUILD}:ro"]
        arguments["PIP_CERT"] = CA_IN_BUILD
    for name, value in arguments.items():
        options += ["--build-arg", f"{name}={value}"]
    command = ["build", *options, "--file", str(checkout / recipe.dockerfile), "--tag", recipe.tag, str(checkout)]
    try:
        tool.logged(command, log)
        # The `dir` transport keeps layers as they are; `oci` would compress hundreds of megabytes each time.
        tool.logged(["push", "--disable-compression", recipe.tag, f"dir:{target}"], log)
        # What the tag named before, unless its layers serve as a cache for the next build.
        tool.run("rmi", "--prune", "--force")
    except CommandError as error:
        raise BuildError(f"image {recipe.tag} could not be built: {error}") from error


def build_arguments(environ: Mapping[str, str], base_tag: str) -> dict[str, str]:
    """Build arguments: the base, and how this machine reaches the package index."""
    arguments = {"BASE": base_tag}
    for name in ("PIP_INDEX_URL", "HTTPS_PROXY"):
        value = environ.get(name) or environ.get(name.lower())
        if value:
            arguments[name] = value
    return arguments


class Buildah:
    """buildah with a storage of its own in the cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        folder = cache / "containers"
        folder.mkdir(parents=True, exist_ok=True)
        self._options = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._options += ["--storage-driver", _driver(folder)]

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["buildah", *self._options, *arguments]

    def run(self, *arguments: str) -> str:
        """:raises CommandError: see `shell.run`"""
        return run(self._command(arguments), timeout=300)

    def logged(self, arguments: Sequence[str], log: Path) -> None:
        """:raises CommandError: see `shell.run_logged`"""
        run_logged(self._command(arguments), log, timeout=1800)

    def base(self, folder: Path) -> str:
        """Tag of the image that holds `folder` as its only layer; made when it is not there."""
        tag = f"localhost/debian:{folder.name}"
        known = {name for image in json.loads(self.run("images", "--json") or "[]") for name in image["names"] or []}
        if tag in known:
            return tag
        container = self.run("from", "scratch").strip()
        try:
            self.run("copy", "--quiet", container, str(folder), "/")
            self.run("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
            self.run("commit", "--quiet", container, tag)
        finally:
            self.run("rm", container)
        return tag


def _driver(folder: Path) -> str:
    """overlay, where the kernel mounts it here; else vfs, which copies every layer."""
    probe = folder / "probe"
    for name in ("lower", "upper", "work", "merged"):
        (probe / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
    # In a mount namespace of its own: it is gone when the program has ended.
    command = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, str(probe / "merged")]
    try:
        run(command, timeout=30)
    except CommandError:
        return "vfs"
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    return "overlay"
