"""A release is made as far as that needs no registry: wheel, chart, what the images contain, notes, digests."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendered import HELM, NO_HELM

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
BASE = f"debian:forky-slim@sha256:{'0a' * 32}"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"images/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sbom, release = loaded("sbom"), loaded("release")


# --- what the images contain ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("image", sbom.NAMES)
def test_the_list_has_each_pin_of_the_image_with_its_digest(image: str) -> None:
    made = sbom.document(image, "1.2.3", "2026-01-01T00:00:00Z")
    lock = (ROOT / f"images/{image}.lock").read_text()
    packages = {each["name"]: each for each in made["packages"]}
    lock = re.sub(r"(?m)^\S+ ; python_full_version < .*\n(?: +--hash.*\n)*", "", lock)  # of older Pythons
    wanted = re.findall(r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock)
    assert len(wanted) > 15
    for name, version in wanted:
        assert packages[name]["versionInfo"] == version
        digests = json.dumps([packages[name].get("checksums"), packages[name].get("comment")])
        assert re.search(r"[0-9a-f]{64}", digests), name
    assert "python3" in packages and ("criu" in packages) == ("busybox-static" in packages) == (image == "agent")


@pytest.mark.parametrize("image", sbom.NAMES)
def test_it_is_a_document_of_spdx_and_two_are_the_same(image: str) -> None:
    made = sbom.document(image, "1.2.3", "2026-01-01T00:00:00Z")
    assert made == sbom.document(image, "1.2.3", "2026-01-01T00:00:00Z")
    assert (made["spdxVersion"], made["dataLicense"], made["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert made["creationInfo"]["creators"] and made["documentNamespace"].startswith("https://")
    ids = [each["SPDXID"] for each in made["packages"]]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", each) for each in ids)
    needed = {"name", "downloadLocation", "filesAnalyzed", "versionInfo"}
    assert all(needed <= each.keys() for each in made["packages"])
    ends = {"SPDXRef-DOCUMENT", *ids}
    assert {r["relatedSpdxElement"] for r in made["relationships"]} == set(ids)
    assert {r["spdxElementId"] for r in made["relationships"]} <= ends


def test_a_lock_without_a_version_is_no_list() -> None:
    with pytest.raises(ValueError, match=r"'aiohttp>=3' pins no version"):
        sbom.pins("# made by hand\naiohttp>=3\n")


# --- the release ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if HELM is None:
        pytest.skip(NO_HELM)
    if not UV.exists():
        pytest.skip("uv is not beside this Python: use the environment of make")
    target: Path = tmp_path_factory.mktemp("release") / "made"
    words = ["--base", BASE, "--helm", str(HELM), "--uv", str(UV), "--target", str(target)]
    done = subprocess.run(
        [sys.executable, ROOT / "images/release.py", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is published" in done.stdout
    return target


def test_all_parts_are_there_with_their_digests(made: Path) -> None:
    version = release.versions()["chart"]
    assert {path.name for path in made.iterdir()} == {
        f"airflow_provider_singularity-{version}-py3-none-any.whl", f"airflow_provider_singularity-{version}.tar.gz",
        f"singularity-{version}.tgz", "agent.spdx.json", "controller.spdx.json", "NOTES.md", "publish", "SHA256SUMS",
    }  # fmt: skip
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=made, check=True, timeout=120)
    with tarfile.open(made / f"singularity-{version}.tgz") as chart:
        assert "singularity/templates/rbac.yaml" in chart.getnames()
    assert json.loads((made / "agent.spdx.json").read_text())["packages"]


def test_what_would_be_published_is_built_on_the_base_by_digest_and_signed_by_digest(made: Path) -> None:
    script = (made / "publish").read_text()
    subprocess.run(["sh", "-n", made / "publish"], check=True, timeout=120)
    assert f"BASE={BASE}" in script and "never been run" in script
    assert 'cosign sign --yes "$registry/singularity-$image@$digest"' in script
    for name in re.findall(r"images/\$image\.Dockerfile|singularity-[0-9.]+\.tgz", script):
        each = name.replace("$image", "agent")
        assert (ROOT / each).exists() or (made / each).exists(), name


@pytest.mark.parametrize("base", ["", "debian:forky-slim", "debian@sha256:12", "debian:forky-slim@sha256:" + "z" * 64])
def test_a_base_without_a_digest_makes_no_release(base: str) -> None:
    with pytest.raises(release.ReleaseError, match=r"BASE = .*: a release is built on a base image by digest"):
        release.check(base, {"a": "1"})


def test_parts_of_different_versions_make_no_release() -> None:
    with pytest.raises(release.ReleaseError, match="different versions"):
        release.check(BASE, {"a": "1", "b": "2"})
    assert len(set(release.versions().values())) == 1


def test_the_notes_are_the_changelogs_part_with_a_word_about_the_upgrade() -> None:
    text = "# Changelog\n\n## Unreleased\n- new\n\n## 1.0.0\n- first\n"
    assert "- first" in release.notes(text, "1.0.0") and "- new" not in release.notes(text, "1.0.0")
    assert "- new" in release.notes(text, "2.0.0") and "upgrade.md" in release.notes(text, "2.0.0")
    with pytest.raises(release.ReleaseError, match="neither a part 2"):
        release.notes("# Changelog\n", "2.0.0")


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_use_actions_by_commit(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used)
