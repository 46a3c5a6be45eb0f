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
