"""When an image is built again, and what the chart is told about it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from localcluster.addons import chart
from localcluster.config import ClusterConfig
from localcluster.errors import BuildError
from localcluster.images import containers
from localcluster.images.oci import Image


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("images/x.Dockerfile", "src/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


RECIPE = containers.Recipe("x", "images/x.Dockerfile", ["src"])


def test_key_follows_base_dockerfile_and_sources(checkout: Path) -> None:
    keys = [containers.image_key(RECIPE, "base-1", checkout), containers.image_key(RECIPE, "base-2", checkout)]
    (checkout / "src" / "a.py").write_text("changed")
    keys.append(containers.image_key(RECIPE, "base-1", checkout))
    (checkout / "images" / "x.Dockerfile").write_text("changed")
    keys.append(containers.image_key(RECIPE, "base-1", checkout))
    assert len(set(keys)) == 4
    (checkout / "unrelated").write_text("x")
    assert containers.image_key(RECIPE, "base-1", checkout) == keys[-1]


def test_missing_source_is_named(checkout: Path) -> None:
    with pytest.raises(BuildError, match=r"localhost/x:dev: .*nowhere is missing"):
        containers.image_key(dataclasses.replace(RECIPE, sources=["nowhere"]), "base", checkout)


@pytest.mark.parametrize("recipe", containers.RECIPES, ids=lambda recipe: recipe.name)
def test_sources_are_what_the_dockerfile_copies(recipe: containers.Recipe) -> None:
    """A source that is not in the key would change without a new image."""
    copied = set()
    for line in (containers.CHECKOUT / recipe.dockerfile).read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:  # of another stage
            copied |= set(line.split()[1:-1])
    assert copied == set(recipe.sources)


def test_docker_is_given_what_the_dockerfiles_copy() -> None:
    allowed = [line[1:] for line in (containers.CHECKOUT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    for recipe in containers.RECIPES:
        for source in (recipe.dockerfile, *recipe.sources):
            assert any(Path(source).is_relative_to(entry) for entry in allowed), source


def test_index_and_proxy_of_this_machine_reach_the_build() -> None:
    assert containers.build_arguments({}, "b") == {"BASE": "b"}
    given = {"PIP_INDEX_URL": "https://index.example", "https_proxy": "http://proxy.example"}
    assert containers.build_arguments(given, "b") == {
        "BASE": "b",
        "PIP_INDEX_URL": "https://index.example",
        "HTTPS_PROXY": "http://proxy.example",
    }


def test_chart_values_mount_what_the_pods_need() -> None:
    config = ClusterConfig("unit", 0)
    made = {recipe.name: Image(recipe.tag, Path("/"), f"sha256:{recipe.name}") for recipe in containers.RECIPES}
    values = chart.local_values(config, Path("/cache/torch/x"), made)
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in values["pods"]["volumes"]}
    assert sources == {"shared": str(config.shared), "torch": "/cache/torch/x"}
    mounts = {mount["name"]: mount["mountPath"] for mount in values["pods"]["volumeMounts"]}
    assert mounts.keys() == sources.keys()
    assert values["store"]["url"].startswith(f"file://{mounts['shared']}/")
    assert values["pods"]["env"]["PYTHONPATH"] == mounts["torch"]
    assert "replicas" not in values, "two, as everywhere: the chart's default"


def test_a_rebuilt_controller_changes_the_values() -> None:
    config = ClusterConfig("unit", 0)
    made = {recipe.name: Image(recipe.tag, Path("/"), "sha256:1") for recipe in containers.RECIPES}
    again = {**made, containers.CONTROLLER.name: Image(containers.CONTROLLER.tag, Path("/"), "sha256:2")}
    torch = Path("/torch")
    assert chart.local_values(config, torch, made) != chart.local_values(config, torch, again)
