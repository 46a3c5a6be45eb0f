"""A real API server with its etcd, and nothing else of a cluster: for policies, which only an API server can evaluate.

    with api_server(folder) as server:
        server.kube(KUEUE).patch_job(...)        # as Kueue's controller
        server.kube("tenant", "edit").create(...)

It starts in a few seconds. Nothing runs the pods, no controller and no garbage collector is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rendered import render
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.errors import AlreadyExists, KubeError
from kueue_integration.kube import server_time
from kueue_integration.kube.client import MERGE_PATCH
from kueue_integration.kube.resources import JOB, JOBSET, NAMESPACE, TRAINJOB, WORKLOAD, Kind, Object
from localcluster.api_server import ADMIN, ApiServer, any_of
from localcluster.api_server import api_server as started

KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
CONTROLLER = "system:serviceaccount:singularity-system:singularity-controller"
MULTIKUEUE = "system:serviceaccount:singularity-system:singularity-multikueue"
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
JOBSET_CONTROLLER = "system:serviceaccount:jobset-system:jobset-controller-manager"
TRAINER_CONTROLLER = "system:serviceaccount:kubeflow-system:kubeflow-trainer-controller-manager"
REPLICASET_CONTROLLER = "system:serviceaccount:kube-system:replicaset-controller"
TENANT = "tenant"
OTHERS = (
    KUEUE, CONTROLLER, MULTIKUEUE, JOB_CONTROLLER, JOBSET_CONTROLLER, TRAINER_CONTROLLER, REPLICASET_CONTROLLER, TENANT,
)  # fmt: skip
"""All of them may do the same: what stops one of them is a policy."""
ALLOWED = (
    "namespaces", "configmaps", "pods", "pods/status", "pods/ephemeralcontainers", "pods/exec", "pods/attach",
    "jobs", "jobs/status", "jobprogresses", "jobsets", "trainjobs", "workloads", "leases",
)  # fmt: skip
TEAM = "team"
"""Its namespace."""
TRAINS = "trains"
OTHER = "other"
"""One without the label that puts the guard of pods in force."""
_LABEL = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
NAMESPACES: dict[str, dict[str, str]] = {
    job_names.SYSTEM_NAMESPACE: {}, TEAM: _LABEL, TRAINS: _LABEL, OTHER: {}, "before": {},
}  # fmt: skip
_STATUS = {JOBSET_CONTROLLER: JOBSET, TRAINER_CONTROLLER: TRAINJOB}
"""Who alone writes the status of what: so the policies know whose controller asks."""
_INSTALLED = (
    "CustomResourceDefinition", "Lease", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
"""Of the chart's objects: nothing else has a part in an admission."""


@contextlib.contextmanager
def api_server(folder: Path, apiserver: str, etcd: str) -> Iterator[ApiServer]:
    """One that knows all of OTHERS."""
    with started(folder, apiserver, etcd, OTHERS, ALLOWED) as server:
        yield server


class Policies:
    """The chart's policies in force on `server`, with namespaces to try them in."""

    def __init__(self, server: ApiServer, *sets: str, values: str = "") -> None:
        self.server = server
        self.admin = server.kube()
        objects = render(*sets, values=values)
        for name, labels in NAMESPACES.items():
            self.make_namespace(name, labels)
        for user, kind in _STATUS.items():
            self._grant(user, kind)
        for made in (*(any_of(kind) for kind in (JOBSET, TRAINJOB, WORKLOAD)), *objects.values()):
            if made["kind"] in _INSTALLED:
                self._make(made)
        first = self.job("until-it-holds")
        self.eventually(lambda: (self.renew(), self.suspend(first))[1], "the hold is in force")
        self.eventually(lambda: self._refused(first), "the annotations are guarded")
        host = {"containers": [{"name": "c", "image": "c"}], "hostPID": True}
        bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad", "namespace": TRAINS}, "spec": host}
        job = {**first, "metadata": {"name": "bad", "namespace": TRAINS}, "spec": {"template": {"spec": host}}}
        job["spec"]["template"]["spec"] = {**host, "restartPolicy": "Never"}
        for manifest in (bad, job):
            self.eventually(lambda manifest=manifest: self._refuses(manifest), f"{manifest['kind']}s are guarded")

    def _grant(self, user: str, kind: Kind) -> None:
        rules = [{"apiGroups": [kind.group], "resources": [f"{kind.plural}/status"], "verbs": ["update", "patch"]}]
        group, name = "rbac.authorization.k8s.io", f"status-of-{kind.plural}"
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": group, "kind": "User", "name": user}]
        parts: dict[str, Object] = {"ClusterRole": {"rules": rules}}
        parts["ClusterRoleBinding"] = {"roleRef": role, "subjects": subjects}
        for name_of_kind, part in parts.items():
            self._make({"apiVersion": f"{group}/v1", "kind": name_of_kind, "metadata": {"name": name}, **part})

    def _refused(self, job: Object) -> bool:
        try:
            self.annotate(job, ADMIN, {job_names.ANN_ATTEMPT: "1"})
        except KubeError:
            return True
        return False

    def _refuses(self, manifest: Object) -> bool:
        try:
            self.admin.create(manifest, dry_run=True)
        except KubeError:
            return True
        return False

    def label(self, namespace: str) -> None:
        """From now on this namespace trains."""
        self.admin.patch(NAMESPACE, None, namespace, {"metadata": {"labels": _LABEL}})

    def make_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        self._make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}})
        account = {"name": "default", "namespace": name}
        self._make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})  # pods need it

    def unlabel(self, namespace: str) -> None:
        self.admin.patch(NAMESPACE, None, namespace, {"metadata": {"labels": dict.fromkeys(_LABEL)}})

    def _make(self, obj: Object) -> None:
        with contextlib.suppress(AlreadyExists):
            group, _, version = obj["apiVersion"].rpartition("/")
            where = obj["metadata"].get("namespace")
            kind = Kind(obj["kind"], group, version, plural(obj["kind"]), where is not None)
            self.admin._json("POST", kind.path(where), body=obj)

    def eventually(self, holds: Callable[[], object], what: str) -> None:
        """The API server reads policies and their parameters from copies that are a moment behind."""
        until(holds, what, pace_s=0.05)

    # --- Jobs ---------------------------------------------------------------------------------------------------------
    def create(self, name: str, annotations: Mapping[str, str], user: str = ADMIN) -> Object:
        """A managed Job of `user` that runs."""
        labels = {job_names.LABEL_MANAGED: "true", job_names.KUEUE_QUEUE_LABEL: "q"}
        meta = {"name": name, "namespace": TEAM, "labels": labels, "annotations": dict(annotations)}
        container = {"name": "main", "image": "any:1", "command": ["true"]}
        pod = {"restartPolicy": "Never", "containers": [container]}
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}
        return self.server.kube(user).create(manifest)

    def annotate(self, job: Object, user: str, annotations: Mapping[str, str | None]) -> Object:
        """Patch the annotations of the Job as `user`; None removes one."""
        body = {"metadata": {"annotations": annotations}}
        return self.server.kube(user).patch_job(TEAM, job["metadata"]["name"], body)

    def apply(self, manifest: Object, user: str) -> Object:
        """Server-side apply of a Job, as `kubectl apply --server-side` does it."""
        path = JOB.path(TEAM, manifest["metadata"]["name"])
        query = {"fieldManager": "kubectl", "force": "true"}
        return self.server.kube(user)._json(
            "PATCH", path, body=manifest, query=query, content_type="application/apply-patch+yaml"
        )

    # --- the hold -----------------------------------------------------------------------------------------------------
    def renew(self, ago: float = 0.0, overdue: str = "") -> None:
        """The Lease as the controller writes it, `ago` seconds ago."""
        lease = self.admin.get_lease(job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)
        lease["metadata"]["annotations"] = {job_names.ANN_OVERDUE: overdue} if overdue else {}
        lease["spec"] = {"renewTime": server_time.to_micro(time.time() - ago), "leaseDurationSeconds": 10}
        self.admin.update_lease(lease)

    def job(self, name: str, **annotations: str) -> Object:
        """A managed Job that runs and is held."""
        self.renew()
        with contextlib.suppress(AlreadyExists):
            self.create(name, {job_names.ANN_HOLD: job_names.HOLD_ARMED})
        return self.annotate({"metadata": {"name": name}}, CONTROLLER, annotations)

    def suspend(self, job: Object, user: str = KUEUE) -> str:
        """What the API server says to the suspend; "" when it goes through. Nothing is written."""
        path = JOB.path(TEAM, job["metadata"]["name"])
        try:
            self.server.kube(user)._json(
                "PATCH", path, body={"spec": {"suspend": True}}, query={"dryRun": "All"}, content_type=MERGE_PATCH
            )
        except KubeError as error:
            return str(error)
        return ""


def plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
