"""The wheel and the sdist, built and installed as a user would, into an environment without the checkout."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from shell_blocks import scripts

import airflow_provider

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
PUBLIC = (
    "from airflow_provider.operators import SingularityTrainOperator\n"
    "from airflow_provider.sensors import SingularityCheckpointSensor\n"
    "from airflow_provider.assets import SingularityCheckpointTrigger\n"
    "from airflow_provider.verbs import JobVerbs\n"
    "from airflow_provider.plugin import SingularityPlugin\n"
    "import airflow_provider; print(airflow_provider.__file__)\n"
)

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv is not beside this Python: use the environment of make")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--quiet", "--out-dir", folder, ".", cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of a new environment, in which nothing but the wheel was asked for."""
    folder = tmp_path_factory.mktemp("fresh")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    run(UV, "pip", "install", "--quiet", wheel, cwd=folder, VIRTUAL_ENV=str(folder / "venv"))
    return folder / "venv" / "bin"


def test_the_wheel_has_the_packages_and_the_examples_and_no_local_cluster(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"airflow_provider", "kueue_integration", "singularity_proxy", "singularity_train"}
    parts = {name.split("/")[1] for name in names if name.startswith("singularity_proxy/")}
    assert {"protocol", "store"} <= parts and not parts & {"agent", "launcher", "sidecar"}
    for example in (ROOT / "dags").rglob("*.py"):
        assert f"airflow_provider/example_dags/{example.relative_to(ROOT / 'dags')}" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_wheel_lives_beside_the_package_that_owns_the_name_proxy(
    wheel: Path, tmp_path: Path, ours_first: bool
) -> None:
    """Both install the folders that they list, and nothing warns of one file that two packages have."""
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    wheels = (wheel, "proxy.py") if ours_first else ("proxy.py", wheel)
    for one in wheels:
        run(UV, "pip", "install", "--quiet", "--no-deps", one, cwd=tmp_path, VIRTUAL_ENV=str(tmp_path / "venv"))
    code = (
        "import proxy, singularity_proxy.protocol as ours\n"
        "from proxy.http.parser import HttpParser\n"
        "from singularity_proxy.protocol.messages import Hello\n"
        "print(proxy.__file__, ours.VERSION)"
    )
    said = run(tmp_path / "venv/bin/python", "-I", "-c", code, cwd=tmp_path)
    assert said.split()[0].startswith(str(tmp_path)) and said.split()[1] == airflow_provider.VERSION


def test_the_sdist_has_the_chart_and_builds_the_wheel(built: Path, wheel: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "charts/singularity/Chart.yaml"} <= names
    assert not [name for name in names if name.startswith(("localcluster/", "tests/", "benchmarks/"))]
    assert wheel.exists()


def test_the_public_names_import_without_the_checkout(fresh: Path, tmp_path: Path) -> None:
    where = run(fresh / "python", "-c", PUBLIC, cwd=tmp_path, AIRFLOW_HOME=str(tmp_path))
    assert str(ROOT) not in where


def test_airflow_lists_the_provider(fresh: Path, tmp_path: Path) -> None:
    out = run(fresh / "airflow", "providers", "list", "--output", "json", cwd=tmp_path, AIRFLOW_HOME=str(tmp_path))
    shown = {entry["package_name"]: entry for entry in json.loads(out[out.index("[{") :])}
    assert shown[airflow_provider.PACKAGE]["version"] == airflow_provider.VERSION


def test_singularityctl_runs_and_offers_nothing_that_is_not_there(fresh: Path, tmp_path: Path) -> None:
    assert airflow_provider.VERSION in run(fresh / "singularityctl", "--version", cwd=tmp_path)
    lines = run(fresh / "singularityctl", "--help", cwd=tmp_path).splitlines()
    listed = [line.split()[0] for line in lines if line.strip()]
    assert "submit" in listed
    assert "local" not in listed
    assert "demo" not in listed


@pytest.mark.full
def test_the_commands_of_the_pages_build_the_wheel_and_install_it(fresh: Path, tmp_path: Path) -> None:
    """Typed as they stand, with a pip of its own, in a copy of what the wheel is built from."""
    run(UV, "pip", "install", "--quiet", "pip", cwd=tmp_path, VIRTUAL_ENV=str(fresh.parent))
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    files = run("git", "ls-files", "-z", cwd=ROOT).strip("\0").split("\0")
    for name in (name for name in files if (ROOT / name).is_file()):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    path = f"{fresh}:{os.environ['PATH']}"
    for page, heading in (
        ("administration/images.md", "The wheel"),
        ("start/command-line.md", "Install the command"),
        ("start/first-dag.md", "Before you start"),
    ):
        script = scripts((ROOT / "docs" / page).read_text(), "sh")[heading]
        said = run("bash", "-euc", script, cwd=checkout, PATH=path, AIRFLOW_HOME=str(tmp_path))
    assert said.splitlines()[-1] == "airflow-provider-singularity"


def test_the_chart_has_the_version_of_the_wheel() -> None:
    chart = yaml.safe_load((ROOT / "charts/singularity/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (airflow_provider.VERSION, airflow_provider.VERSION)


# --- the plugin of kubectl ----------------------------------------------------------------------------------------
def krew_refuses(manifest: dict[str, Any]) -> list[str]:
    """What krew itself would say (`ValidatePlugin`, krew 0.4), and what its index asks for beside."""
    spec, platforms = manifest["spec"], manifest["spec"]["platforms"]
    rules = {
        "apiVersion": manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
        "kind": manifest["kind"] == "Plugin",
        "name": re.fullmatch(r"[\w-]+", manifest["metadata"]["name"]),
        "version": re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", spec["version"]),
        "shortDescription": 0 < len(spec["shortDescription"]) <= 50 and len(spec["shortDescription"].splitlines()) == 1,
        "platforms": platforms,
        "known fields": spec.keys()
        <= {"version", "shortDescription", "description", "caveats", "homepage", "platforms"},
    }
    for number, each in enumerate(platforms):
        rules[f"uri {number}"] = each["uri"].startswith("https://") and each["uri"].endswith(".tar.gz")
        rules[f"sha256 {number}"] = re.fullmatch("[a-f0-9]{64}", each["sha256"])
        rules[f"bin {number}"] = each["bin"]
        labels = each["selector"]["matchLabels"]
        rules[f"selector {number}"] = labels and labels.keys() <= {"os", "arch"}
    return [name for name, holds in rules.items() if not holds]


def test_krew_takes_the_manifest_and_its_archive_runs(wheel: Path, tmp_path: Path) -> None:
    program = ROOT / "images" / "krew.py"
    for name in ("first", "second"):
        run(sys.executable, program, wheel, "https://downloads.example.com/", tmp_path / name, cwd=tmp_path)
    manifest = yaml.safe_load((tmp_path / "first" / "singularity.yaml").read_text())
    assert krew_refuses(manifest) == [] and manifest["spec"]["version"] == f"v{airflow_provider.VERSION}"
    (archive, again) = (next((tmp_path / name).glob("*.tar.gz")).read_bytes() for name in ("first", "second"))
    assert archive == again, "the archive is not the same when it is made again"
    platform = manifest["spec"]["platforms"][0]
    assert platform["sha256"] == hashlib.sha256(archive).hexdigest()
    assert platform["uri"].rpartition("/")[2] == next((tmp_path / "first").glob("*.tar.gz")).name
    # As krew installs it: unpacked, and a link in a folder of the PATH.
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path / "store", filter="data")
    link = tmp_path / "bin" / "kubectl-singularity"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "store" / platform["bin"])
    said = run(link, "version", "--client", cwd=tmp_path, PATH=f"{UV.parent}:/usr/bin:/bin")
    assert said.split() == ["Client:", airflow_provider.VERSION]
    without = subprocess.run([link], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120)
    assert without.returncode == 3 and "needs uv: https://" in without.stderr
    bad = subprocess.run(
        [sys.executable, program, wheel, "http://x", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert bad.returncode == 2 and "url = 'http://x': krew downloads by https" in bad.stderr
