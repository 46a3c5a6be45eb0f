"""What administrators break by hand `doctor` names, and the commands that it prints mend it: on a real API server.

The end-to-end tests do the same over jobs that train.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest
from rendered import HELM, NO_HELM
from typed_cluster import Cluster, cluster_in
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.guard import names as guards
from kueue_integration.kube.resources import (
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CONFIG_MAP,
    LEASE,
    SECRET,
    Kind,
    selector,
)

pytestmark = [pytest.mark.long, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
SYSTEM = job_names.SYSTEM_NAMESPACE
UPGRADE = f"helm upgrade --no-hooks singularity charts/singularity -n {SYSTEM} --reuse-values"
"""Nothing runs pods here, so no hook ends."""
PENDING = selector({"owner": "helm", "name": "singularity", "status": "pending-upgrade"})
WAIT_S = 60.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("repairs")) as cluster:
        cluster.type(f"helm install --no-hooks singularity charts/singularity -n {SYSTEM} --create-namespace")
        authority = certificates.authority(time.time(), 365)[0]
        told = {"agent_image": "agent:1", "controller_url": "https://x.svc:443", "controller_ca": authority}
        filled = {"data": {"platform.json": json.dumps(told)}}  # as a controller does
        cluster.kube.patch(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP, filled)
        yield cluster


def findings(cluster: Cluster) -> dict[str, dict[str, str]]:
    """What `doctor --platform` says, by the name of the check."""
    told = json.loads(cluster.type("singularityctl doctor --platform -o json", codes=(0, 3)))
    return {check["name"]: check for check in told}


def follow(cluster: Cluster, finding: dict[str, str]) -> None:
    """Type the commands of its fix."""
    commands = "\n".join(finding["fix"].splitlines()[1:])
    assert "helm upgrade " in commands, finding
    cluster.type(commands.replace("helm upgrade ", "helm upgrade --no-hooks "))


def test_what_is_deleted_by_hand_is_named_and_comes_back(installed: Cluster) -> None:
    """No controller runs here, which would make its Lease again."""
    hold, pods = job_names.HOLD_LEASE, guards.PODS
    deleted: list[tuple[Kind, str | None, str, str, str]] = [
        (ADMISSION_POLICY, None, hold, "hold policy", f"no {ADMISSION_POLICY.name} "),
        (ADMISSION_POLICY_BINDING, None, hold, "hold policy", f"no {ADMISSION_POLICY_BINDING.name} {hold}"),
        (ADMISSION_POLICY_BINDING, None, pods, "guard policies", f"no {ADMISSION_POLICY_BINDING.name} {pods}"),
        (LEASE, SYSTEM, hold, "lease", f"no Lease {hold}"),
        (SECRET, SYSTEM, job_names.KEYS_SECRET, "keys", "is gone"),
    ]
    for kind, namespace, name, _, _ in deleted:
        installed.kube.delete(kind, namespace, name)
    before = findings(installed)
    for _, _, _, check, words in deleted:
        assert words in before[check]["message"], before[check]
    fixes = {before[check]["fix"].splitlines()[-1] for _, _, _, check, _ in deleted}
    assert len(fixes) == 1, "one command mends all of it"
    follow(installed, before["hold policy"])
    after = findings(installed)
    for kind, namespace, name, check, words in deleted:
        assert installed.kube.find(kind, namespace, name) is not None and words not in after[check]["message"]


def test_an_upgrade_that_is_killed_in_the_middle_is_named_and_done_again(installed: Cluster) -> None:
    process = installed.start("bash", "-c", f"exec {UPGRADE} --set regrow.minRunSeconds=77")
    pending = lambda: installed.kube.list(SECRET, SYSTEM, PENDING)  # noqa: E731
    until(lambda: pending() or process.poll() is not None, "Helm has begun", pace_s=0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(120) == -signal.SIGKILL and pending(), "the fault did not fire"
    assert "another operation" in installed.type(f"{UPGRADE} 2>&1", codes=(1,))
    told = findings(installed)["release"]
    assert "pending-upgrade" in told["message"]
    follow(installed, told)
    assert "release" not in findings(installed) and not pending()
