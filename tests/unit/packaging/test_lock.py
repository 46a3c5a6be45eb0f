"""The lock file has everything that pyproject.toml asks for, in a version that it allows, with digests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
PINNED = re.compile(r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)")


THE_USERS_OWN = "train"
"""Extra with torch alone: which build is right depends on the user's devices."""


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [needs for extra, needs in project["optional-dependencies"].items() if extra != THE_USERS_OWN]
    return [Requirement(text) for text in [*project["dependencies"], *(text for extra in extras for text in extra)]]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_each_dependency_is_pinned_to_a_version_that_is_allowed(requirement: Requirement) -> None:
    wanted_name = canonicalize_name(requirement.name)
    pins = [version for name, version in PINNED.findall(LOCK) if canonicalize_name(name) == wanted_name]
    assert pins, f"{requirement.name} is not in requirements.lock: run `make lock`"
    assert all(requirement.specifier.contains(pin, prereleases=True) for pin in pins), "run `make lock`"


def test_every_package_has_digests_and_no_address() -> None:
    packages = re.split(r"(?m)^(?=[A-Za-z0-9])", LOCK)[1:]
    assert len(packages) > 100
    assert not [package.split()[0] for package in packages if "--hash=sha256:" not in package]
    assert "://" not in LOCK


@pytest.mark.parametrize(("image", "extra"), [("agent", "proxy"), ("controller", "kueue")])
def test_an_image_installs_the_same_pins_by_digest(image: str, extra: str) -> None:
    def packages(text: str) -> dict[str, str]:
        found = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
        return {one.split(";")[0].split()[0]: "\n".join(sorted(re.findall("--hash=\\S+", one))) for one in found}

    lock = (ROOT / f"images/{image}.lock").read_text()
    pins, whole = packages(lock), packages(LOCK)
    assert pins and pins.items() <= whole.items(), "run `make lock`"
    assert all(pins.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = {canonicalize_name(Requirement(text).name) for text in project["optional-dependencies"][extra]}
    assert needs <= {canonicalize_name(name.split("==")[0]) for name in pins}, "run `make lock`"
