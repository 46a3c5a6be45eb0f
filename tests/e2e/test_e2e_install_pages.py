"""The pages that install, upgrade, roll back and remove, block by block as they stand, on a real cluster.

A block keeps all of its text but names in capitals and versions. Helm is given one file more, with the volumes that the
local cluster keeps its store in.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import releases
from releases import Release
from rows import TIMEOUT_S, Rows, Training
from shell import Shell
from shell_blocks import scripts

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import CLUSTER_QUEUE, NAMESPACE, Object
from kueue_integration.spec.platform_config import load
from localcluster.addons.chart import local_values
from localcluster.config import cache_dir
from localcluster.demo.stage import CHECKOUT, Stage
from localcluster.demo.wait import wait_for
from localcluster.images import rootfs
from localcluster.images.containers import CONTROLLER, TRAIN

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
OWN = "pages"
PAGES = CHECKOUT / "docs/administration"
SYSTEM = job_names.SYSTEM_NAMESPACE
KEPT = {f"secret/{job_names.CONTROLLER_NAME}", f"secret/{job_names.KEYS_SECRET}"}
"""Left behind, as the page says; the first one only where the cluster was upgraded from 0.1.0."""
SERVER = f"{job_names.CONTROLLER_NAME}.{SYSTEM}.svc"


class Reader:
    """Somebody who types what a page says."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self.shell, self._say = Shell(stage.cluster), say

    def play(
        self, page: str, heading: str, names: Mapping[str, str], folder: Path = CHECKOUT, codes: tuple[int, ...] = (0,)
    ) -> str:
        """Type the blocks below a heading in `folder`, each of `names` replaced by its value; what they print."""
        script = scripts((PAGES / page).read_text(), "sh", "console")[heading]
        for name, value in names.items():
            assert name in script, f"{page}, {heading}: no {name}"
            script = script.replace(name, value)
        left = re.findall(r"\b(?:NAMESPACE|QUEUE|REGISTRY|NEW|OLD)\b(?!:\.)", script)
        assert not left, f"{page}, {heading}: no value for {left}"
        said = self.shell.type(f"cd {folder}\n{script}", codes)
        self._say(f"--> {page}, {heading}\n{said}")
        return said


@pytest.fixture
def reader(stage: Stage, say: Callable[[str], None]) -> Reader:
    return Reader(stage, say)


@pytest.fixture
def rows(now: Release, stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    """A queue of our own, on a flavor of our own: the chart's go with the chart."""
    made = Rows(stage, OWN, say)
    made.make({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": OWN}})
    made.queue("own", {OWN: "1"})
    yield made
    made.close()


def upgraded(reader: Reader, older: Release, newer: Release) -> None:
    """By the page, in the checkout of the newer release."""
    names = {
        "REGISTRY/singularity-agent:NEW": newer.agent,
        "REGISTRY/singularity-controller:NEW": newer.images[CONTROLLER.name].name,
        "REGISTRY/singularity-agent:OLD": older.agent,
        "NAMESPACE": OWN,
    }
    reader.play("upgrade.md", "Upgrade", names, newer.tree)


def until_published(stage: Stage, release: Release) -> None:
    """Those who submit read that the platform is of this release."""
    wait_for(lambda: load(stage.kube).agent_image == release.agent, f"release {release.version} published", TIMEOUT_S)
    stage.look_again()


def moved(rows: Rows, job: Training) -> None:
    """Evicted and admitted again: the next attempt has pods that were made now."""
    number = job.look().attempt
    rows.activate(job.name, False)
    assert job.until_ended(number).checkpoint is not None
    rows.activate(job.name, True)
    job.until_attempt(number + 1)


def test_upgrade_and_roll_back(
    rows: Rows, reader: Reader, stage: Stage, now: Release, say: Callable[[str], None]
) -> None:
    """From 0.1.0, whose jobs go on because the page names their image; then to a release to come, and back."""
    before, after = releases.before(stage, say), releases.after(stage, say)
    before.install()
    rows.submit = before.submit
    kept = rows.train("kept", "own")
    kept.until_steps()
    reader.shell.type(f"kubectl label namespace {OWN} {job_names.LABEL_TRAINING}-")

    listed = reader.play("upgrade.md", "Before the upgrade", {"label namespace NAMESPACE": f"label namespace {OWN}"})
    (ended,) = re.findall(rf"^{OWN} +kept +(\S+) +{before.agent}$", listed, re.MULTILINE)
    assert "Complete" not in ended and "Failed" not in ended
    assert re.search(rf"^{OWN} +Active", listed, re.MULTILINE) and "USER-SUPPLIED VALUES" in listed
    upgraded(reader, before, now)
    until_published(stage, now)
    moved(rows, kept)
    kept.assert_exact(kept.finish())

    rows.submit = now.submit
    early = rows.train("early", "own")
    early.until_steps()
    upgraded(reader, now, after)
    until_published(stage, after)
    rows.submit = after.submit
    late = rows.train("late", "own")
    late.until_steps()
    moved(rows, early)

    reader.play("upgrade.md", "Roll back", {"NAMESPACE": OWN})
    until_published(stage, now)
    for job in (early, late):
        moved(rows, job)
        job.assert_exact(job.finish())


def test_keys_of_an_authority_of_ours(rows: Rows, reader: Reader, stage: Stage, tmp_path: Path) -> None:
    authority = sign(tmp_path)
    (tmp_path / "charts").symlink_to(CHECKOUT / "charts")
    reader.play("keys.md", "Three ways to make them", {}, tmp_path)
    wait_for(lambda: authority in load(stage.kube).controller_ca, "our authority is published", TIMEOUT_S)
    stage.look_again()
    job = rows.train("trusts-ours", "own")
    job.until_steps()
    moved(rows, job)
    job.assert_exact(job.finish())


def sign(folder: Path) -> str:
    """Write `ca.crt`, `tls.crt`, `tls.key` and `peer-key`, for the one name that the page asks for; the authority."""
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    request += ["-days", "2", "-config", "openssl.cnf", "-addext", "subjectKeyIdentifier=hash"]
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = dn\n[dn]\n")
    usage = ["-addext", "keyUsage=critical,keyCertSign"]
    ca = [*usage, "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", "ca.key", "-out", "ca.crt"]
    leaf = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "authorityKeyIdentifier=keyid", "-addext"]
    leaf += [f"subjectAltName=DNS:{SERVER}", "-addext", "basicConstraints=critical,CA:FALSE"]
    leaf += ["-keyout", "tls.key", "-out", "tls.crt"]
    for command in ([*request, "-subj", "/CN=ours", *ca], [*request, "-subj", f"/CN={SERVER}", *leaf]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    (folder / "peer-key").write_text(secrets.token_hex(32))
    return (folder / "ca.crt").read_text().strip()


def test_remove_and_install_again(rows: Rows, reader: Reader, stage: Stage, now: Release) -> None:
    """Nobody else's job is in the way of a removal, and none is stopped by it."""
    queue = rows.cluster_queue("own")
    with pytest.raises(AssertionError, match="singularity-queues-are-still-fenced"):
        reader.shell.type(f"helm uninstall singularity -n {SYSTEM}")
    assert checks(stage, queue) == [job_names.ADMISSION_CHECK_NAME]

    reader.play("upgrade.md", "Remove", {"NAMESPACE": OWN})
    assert checks(stage, queue) == [] and job_names.LABEL_TRAINING not in labels(stage)
    left = reader.shell.type(f"kubectl get all,secrets,configmaps,leases -n {SYSTEM} -o name").split()
    assert {name for name in left if "singularity" in name} <= KEPT
    reader.shell.type(f"kubectl apply -n {OWN} -f - <<'EOF'\n{json.dumps(plain(stage.platform.train_image))}\nEOF")
    rows.until_admitted("plain")

    values = local_values(releases.config_of(stage), rootfs.torch(cache_dir(), lambda text: None), now.images)
    file = releases.config_of(stage).root / "values-pages.json"
    file.write_text(json.dumps({name: value for name, value in values.items() if name not in ("images", "store")}))
    own = {
        "REGISTRY/singularity-agent@sha256:...": now.agent,
        "REGISTRY/singularity-controller@sha256:...": now.images[CONTROLLER.name].name,
        "REGISTRY/your-torch-image:1": TRAIN.tag,
        "gs://bucket/checkpoints": values["store"]["url"],
        "--create-namespace": f"--create-namespace --values {file}",
    }
    assert "STATUS: deployed" in reader.play("install.md", "Install", own)
    reader.play("install.md", "Fence the queues", {"QUEUE": queue})
    assert checks(stage, queue) == [job_names.ADMISSION_CHECK_NAME]
    reader.play("install.md", "Prepare a namespace", {"NAMESPACE": OWN})
    until_published(stage, now)
    job = rows.train("first", "own")
    job.until_steps()
    moved(rows, job)
    job.assert_exact(job.finish())


def checks(stage: Stage, queue: str) -> list[str]:
    found: Object = stage.kube.get(CLUSTER_QUEUE, None, queue)["spec"].get("admissionChecksStrategy") or {}
    return [str(check["name"]) for check in found.get("admissionChecks") or []]


def labels(stage: Stage) -> Mapping[str, str]:
    found: Mapping[str, str] = stage.kube.get(NAMESPACE, None, OWN)["metadata"]["labels"]
    return found


def plain(image: str) -> Object:
    """Somebody else's Job."""
    meta = {"name": "plain", "labels": {job_names.KUEUE_QUEUE_LABEL: "own"}}
    resources = {"requests": {"cpu": "50m"}}
    container = {"name": "main", "image": image, "command": ["sleep", "600"], "resources": resources}
    spec = {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
