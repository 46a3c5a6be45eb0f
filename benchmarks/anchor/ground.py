"""What a contender stands on: a namespace, a queue of two flavors, a user of its own whose requests are counted."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from kueue_integration.contract import job_names
from kueue_integration.errors import NotFound
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, KUEUE_GROUP, KUEUE_VERSION, WORKLOAD, Kind
from localcluster import registry
from localcluster.control_plane.kubectl import Kubectl
from localcluster.demo.cluster_jobs import intruder
from localcluster.demo.errors import StoryError
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

from ..programs import train_paced_source
from .scenarios import CONTENDERS, PACE_S, QUOTA, SLOTS, Contender

QUEUE = "training"
FLAVORS = ("ondemand", "spot")
FOLDER = "anchor"
"""Below the shared folder of the cluster, which the pods see as /shared."""
DAG_FILE = Path(__file__).parent / "dag.py"
SCHEMA = "anchor-"
RIVAL = "rival"
"""Label of the Jobs that are nobody's training: those that fill a queue, and the one that preempts."""
API = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
GONE_TIMEOUT_S = 180.0
ADMITTED_TIMEOUT_S = 120.0


def environment(kubeconfigs: Path) -> dict[str, str]:
    """Of Airflow: a connection for each contender, named like it; `prepare` writes what they point to."""
    # A task process imports its operator anew: seconds of CPU, which are minutes on a machine with much else to do.
    patience = {
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "660",
        "AIRFLOW__CORE__PARALLELISM": str(SLOTS * len(CONTENDERS)),  # no contender waits for another one's worker
    }
    return patience | {
        f"AIRFLOW_CONN_{each.connection.upper()}": json.dumps(
            {"conn_type": "kubernetes", "extra": {"kube_config_path": str(_kubeconfig(kubeconfigs, each))}}
        )
        for each in CONTENDERS
    }


def prepare(on: Stage, kubeconfigs: Path, dags: Path) -> None:
    """Queues and users of all contenders, the training script, what the Dag file reads. Raises LocalClusterError."""
    kubectl = _kubectl(on)
    for each in CONTENDERS:
        made = documents(each)
        kubectl.apply(made[:1])  # the namespace of the others
        kubectl.apply(made[1:])
        token = kubectl("create", "token", each.name, f"--namespace={each.name}", "--duration=8h").strip()
        config = yaml.safe_load(on.cluster.kubeconfig.read_text())
        config["users"] = [{**config["users"][0], "user": {"token": token}}]
        _kubeconfig(kubeconfigs, each).write_text(yaml.safe_dump(config))
    folder = on.cluster.shared / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train_paced.py").write_text(train_paced_source())
    inside = f"/shared/{FOLDER}"
    ground = {
        "image": on.platform.train_image,
        "volumes": list(on.platform.volumes),
        "volume_mounts": list(on.platform.volume_mounts),
        "env": dict(on.platform.env),
        "queue": QUEUE,
        "command": ["python3", f"{inside}/train_paced.py", "--pace", str(PACE_S)],
        "output": inside,
    }
    (dags / "ground.json").write_text(json.dumps(ground))
    for each in CONTENDERS:
        (dags / f"{each.name}.py").write_text(DAG_FILE.read_text())


def documents(contender: Contender) -> list[dict[str, Any]]:
    """Namespace, user, queues of `contender`, and the schema that counts its requests. Pure."""
    name = contender.name
    flavors = [{"name": flavor, "resources": [{"name": "cpu", "nominalQuota": QUOTA}]} for flavor in FLAVORS]
    queue: dict[str, Any] = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
    }
    if contender.ours:
        queue["admissionChecksStrategy"] = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    account = {"kind": "ServiceAccount", "name": name, "namespace": name}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    counted = {
        "priorityLevelConfiguration": {"name": "workload-high"},
        "matchingPrecedence": 300,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [
            {
                "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": name}}],
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }
        ],
    }
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": name}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{SCHEMA}{name}"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [account],
        },
        {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": {"name": f"{SCHEMA}{name}"},
            "spec": counted,
        },
        {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": queue},
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": name},
            "spec": {"clusterQueue": name},
        },
    ]


def requests(kube: Kube, contender: Contender) -> int:
    """Requests of the contender that the API server has taken so far, whatever they were; a watch is one."""
    pattern = rf'^apiserver_flowcontrol_dispatched_requests_total\{{[^}}]*flow_schema="{SCHEMA}{contender.name}"[^}}]*\}} ([0-9.e+]+)$'  # noqa: E501
    return sum(int(float(number)) for number in re.findall(pattern, kube.get_text("/metrics"), re.MULTILINE))


def fill(on: Stage, contender: Contender) -> None:
    """Leave no room in the contender's queue; `empty` makes room again."""
    for flavor in FLAVORS:
        _rival(on, contender, f"{RIVAL}-{flavor}")

    def full() -> bool:
        return all(not job["spec"]["suspend"] for job in on.kube.list(JOB, contender.name, f"{RIVAL}=true"))

    wait_for(full, f"a full queue of {contender.name}", ADMITTED_TIMEOUT_S)


def preempt(on: Stage, contender: Contender) -> None:
    """A Job of high priority that wants all of the first flavor, where the training runs, and no other."""
    _rival(on, contender, f"{RIVAL}-preemptor", flavor=FLAVORS[0])


def _rival(on: Stage, contender: Contender, name: str, flavor: str = "") -> None:
    job = intruder(name, contender.name, QUEUE, on.platform.train_image, 1, QUOTA)
    if flavor:
        job["spec"]["template"]["spec"]["nodeSelector"] = {"flavor": flavor}
    job["metadata"]["labels"][RIVAL] = "true"
    on.kube.create(job)


def empty(kube: Kube, contender: Contender) -> None:
    """Delete the Jobs that are nobody's training, without waiting for their end."""
    _delete(kube, contender, f"{RIVAL}=true")


def clean(kube: Kube, contender: Contender) -> None:
    """Delete all Jobs of the contender and wait until they and their Workloads are gone."""
    _delete(kube, contender, None)

    def gone() -> bool:
        kinds: tuple[Kind, ...] = (JOB, WORKLOAD)
        return not any(kube.list(kind, contender.name) for kind in kinds)

    wait_for(gone, f"the end of all Jobs of {contender.name}", GONE_TIMEOUT_S)


def _delete(kube: Kube, contender: Contender, selector: str | None) -> None:
    for job in kube.list(JOB, contender.name, selector):
        with suppress(NotFound):
            kube.delete(JOB, contender.name, job["metadata"]["name"])


def _kubeconfig(folder: Path, contender: Contender) -> Path:
    return folder / f"{contender.name}.kubeconfig"


def _kubectl(on: Stage) -> Kubectl:
    config = registry.find(on.name)
    if config is None:
        raise StoryError(f"cluster {on.name} is gone")
    return Kubectl(config, str(on.cluster.kubectl))
