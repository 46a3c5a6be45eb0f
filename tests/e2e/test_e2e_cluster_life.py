"""A cluster from its beginning to its end.

What `doctor` says while a platform is being built: Kueue missing, then our chart missing, then all there. Then parts of
it are killed, and `local down` leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell import Shell

from localcluster import cluster, registry, status
from localcluster.config import ClusterConfig, cache_dir
from localcluster.control_plane.kubectl import Kubectl, for_cluster
from localcluster.images import gobuild
from localcluster.namespaces import processes, sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
VICTIMS = ("kubelet", "containerd", "kube-apiserver", "etcd", "kueue")
NAME = f"{os.environ.get('SINGULARITY_TEST_CLUSTER', 'test')}-bare"


@pytest.fixture(scope="module", autouse=True)
def gone_in_the_end(say: Callable[[str], None]) -> Iterator[None]:
    """The first test makes the cluster ready, the second takes it down: it is made once for both."""
    yield
    cluster.down(NAME, progress=say)


def found() -> ClusterConfig:
    config = registry.find(NAME)
    assert config is not None
    return config


def without_kueue(config: ClusterConfig, kubectl: Kubectl, manifests: Path) -> None:
    """As it was before anybody installed Kueue; the next `up` installs it again."""
    box = sandbox.find(config)
    assert box is not None
    processes.stop(box, "kueue")
    kubectl("delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "--all")
    for version in ("v1beta1", "v1beta2"):
        kubectl("delete", "apiservice", f"{version}.visibility.kueue.x-k8s.io")
    kubectl("delete", "-f", manifests / "crds", timeout=120)
    kubectl("delete", "namespace", "kueue-system", timeout=120)
    (config.root / f"applied-{manifests.name}").unlink()


def test_doctor_guides_from_a_bare_cluster_to_a_ready_one(say: Callable[[str], None]) -> None:
    """Each time it names just what is missing, and the way on."""
    cluster.down(NAME, progress=say)
    cluster.up(NAME, progress=say, only="cluster")
    config = found()
    shell, binaries = Shell(cluster.describe(config)), gobuild.build_all(cache_dir(), lambda text: None)
    kubectl = for_cluster(config, binaries)
    without_kueue(config, kubectl, binaries.folders["kueue"])
    bare = shell.doctor(code=3)
    say(shell.run("doctor", code=3))
    assert {name for name, check in bare.items() if check["status"] != "ok"} == {"Kueue", "chart"}
    assert "not installed: nobody serves kueue.x-k8s.io" in bare["Kueue"]["message"]
    assert "kubectl apply --server-side -f" in bare["Kueue"]["fix"]
    assert "rollout status deployment/kueue-controller-manager" in bare["Kueue"]["fix"]
    assert "(after Kueue)" in bare["chart"]["fix"]

    cluster.up(NAME, progress=say, only="cluster")  # what the fix says, from the cache of this machine
    chartless = shell.doctor(code=3)
    say(shell.run("doctor", code=3))
    wrong = {name: check["status"] for name, check in chartless.items() if check["status"] != "ok"}
    assert wrong == {"chart": "fail", "queue": "fail", "priority classes": "warn"}
    assert "not installed: no ConfigMap singularity-system/" in chartless["chart"]["message"]
    chart = chartless["chart"]["fix"]
    assert chart.index("docker build -f images/") < chart.index("helm upgrade --install singularity charts/singularity")
    assert "helm upgrade singularity" not in chartless["queue"]["fix"], "there is no release yet"
    assert "--set sampleQueues.enabled=true" in chartless["queue"]["fix"]
    shell.follow(chartless["priority classes"]["fix"])
    assert shell.doctor(code=3)["priority classes"]["status"] == "ok"
    kubectl("delete", "workloadpriorityclasses", "--all")  # Helm adopts nothing that others made

    cluster.up(NAME, progress=say)
    ready = shell.doctor(code=0)
    assert {name for name, check in ready.items() if check["status"] == "fail"} == set()
    assert ready["pod guard"]["status"] == "ok", "the local cluster's namespace has the label"
    assert {"controller", "lease", "hold policy", "guard policies", "fence", "queue training"} <= ready.keys()


# --- the end ----------------------------------------------------------------------------------------------------------
def alive(config: ClusterConfig) -> list[str]:
    """Command lines that name the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(config.root) in text:
                found.append(f"{entry.name} {text}")
    return found


def leftovers(config: ClusterConfig) -> list[str]:
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(config.root) in line]
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{config.cgroup}")]
    cgroups += [str(path) for path in Path("/sys/fs/cgroup").glob(config.cgroup)]
    links = [link.name for link in Path("/sys/class/net").iterdir() if link.name == config.link]
    folders = [str(config.root)] if config.root.exists() else []
    return [*alive(config), *mounts, *cgroups, *links, *folders]


def test_down_after_kill_9_of_parts_leaves_nothing(say: Callable[[str], None]) -> None:
    cluster.up(NAME, progress=say)  # there already, unless this test runs alone
    config = found()
    assert len(leftovers(config)) > len(VICTIMS), "a cluster that is up must be seen by what looks for leftovers"
    killed = []
    for row in status.status(NAME) or ():
        if row.pid is not None and row.name.startswith(VICTIMS):
            os.kill(row.pid, signal.SIGKILL)
            killed.append(row.name)
    say(f"killed: {', '.join(killed)}")
    assert len(killed) >= len(VICTIMS)
    cluster.down(NAME, progress=say)
    assert leftovers(config) == []
    assert registry.find(NAME) is None


def test_down_of_nothing_is_no_error(say: Callable[[str], None]) -> None:
    cluster.down("never-made", progress=say)
