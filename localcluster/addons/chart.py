"""Our Helm chart on a local cluster: values that fit it, and an upgrade only when something has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names

from ..cache import digest, tree_digest
from ..clock import Clock
from ..config import ClusterConfig
from ..control_plane.kubectl import Kubectl
from ..control_plane.pki import KUEUE_USER
from ..errors import CommandError, NotReadyError
from ..images.containers import AGENT, CHECKOUT, CONTROLLER, TRAIN
from ..images.gobuild import Binaries
from ..images.oci import Image
from ..images.rootfs import TORCH_MOUNT
from ..shared_folder import STORE
from ..shell import run, wait_until, without_proxies
from . import store_keys

CHART = CHECKOUT / "charts" / "singularity"
RELEASE = "singularity"
NAMESPACE = "singularity-system"
DEPLOYMENT = "singularity-controller"
TIMEOUT = 180
SHARED_MOUNT = "/shared"
QUOTAS = {"ondemand": "1", "spot": "500m"}
"""Flavor -> CPUs: so little that a job of four pods is in the way of another one."""


@dataclass(frozen=True)
class Chart:
    """:param torch: host's folder with the torch environment"""

    config: ClusterConfig
    binaries: Binaries
    kubectl: Kubectl
    torch: Path

    def upgrade(self, **values: bool | float | str | list[Any] | Mapping[str, float]) -> None:
        """Set values of the installed release, `a__b=True` for `a.b: true`; what else it was given stays. Returns when
        the controller that has them is ready.

        :raises CommandError: helm failed
        :raises NotReadyError: the controller did not become ready; the message has the end of its log
        """
        # `--set` would make a string of a number with a point.
        given = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
        self._forget_interrupted()
        self.helm("upgrade", RELEASE, str(CHART), "--reuse-values", *given)
        self.await_controller()

    def install(self, images: Mapping[str, Image], clock: Clock, privileges: str = "") -> bool:
        """Install or upgrade the release and wait for the controller. False when nothing had changed.

        :param privileges: the chart's `pods.privileges`; "": its default

        :raises CommandError: helm failed
        :raises NotReadyError: the controller did not become ready; the message has the end of its log
        """
        values = local_values(self.config, self.torch, images)
        values["pods"] |= {"privileges": privileges} if privileges else {}
        text = json.dumps(values, indent=1)
        marker = self.config.root / "chart-applied"
        key = digest([text, tree_digest(CHART, [CHART])])
        if marker.exists() and marker.read_text() == key:
            self.await_controller()
            return False
        path = self.config.root / "values.json"
        path.write_text(text)
        clock.say("installing the Helm chart")
        self._forget_interrupted()
        marker.unlink(missing_ok=True)
        self.helm("upgrade", "--install", RELEASE, str(CHART), "--create-namespace", "--values", str(path))
        self.kubectl(
            "label", "namespace", "default", f"{job_names.LABEL_TRAINING}={job_names.TRAINING_ENABLED}", "--overwrite"
        )
        if not self.kubectl("get", "secret", store_keys.NAME, "-n", "default", "--ignore-not-found", "-o", "name"):
            self.kubectl("create", "-f", "-", stdin=json.dumps(store_keys.secret("default")))
        self.await_controller()
        marker.write_text(key)
        return True

    def _forget_interrupted(self) -> None:
        """Helm refuses a release whose last operation was killed; we hold the cluster's lock, so none runs now."""
        states = "pending-install,pending-upgrade,pending-rollback"
        selector = f"owner=helm,name={RELEASE},status in ({states})"
        self.kubectl("delete", "secrets", "-n", NAMESPACE, "-l", selector)

    def await_controller(self) -> None:
        """Until the controller leads and Kueue may ask it: a replica is ready before it holds the Lease."""
        for what in (
            ("rollout", "status", f"deployment/{DEPLOYMENT}"),
            ("wait", "--for=create", f"lease/{job_names.HOLD_LEASE}"),
            ("wait", "--for=jsonpath={.spec.holderIdentity}", f"lease/{job_names.HOLD_LEASE}"),
            ("wait", "--for=condition=Active", f"admissioncheck/{job_names.ADMISSION_CHECK_NAME}"),
        ):
            try:
                self.kubectl(*what, "-n", NAMESPACE, f"--timeout={TIMEOUT}s", timeout=TIMEOUT + 10)
            except CommandError as error:
                raise NotReadyError(f"the controller did not become ready: {error}\n{self._last_words()}") from error

        wait_until(self._published, "the controller has published the platform's settings", timeout=TIMEOUT)

    def _published(self) -> bool:
        """Whether those who submit read what the chart says now; charts of before 0.2 publish it themselves."""
        path = 'jsonpath={.spec.template.spec.containers[0].env[?(@.name=="SINGULARITY_PLATFORM")].value}'
        said = self.kubectl("get", f"deployment/{DEPLOYMENT}", "-n", NAMESPACE, "-o", path)
        path = r"jsonpath={.data.platform\.json}"
        told = self.kubectl("get", f"configmap/{job_names.PLATFORM_CONFIGMAP}", "-n", NAMESPACE, "-o", path)
        if not said:
            return True
        known = json.loads(told or "{}")
        wanted = {k: v for k, v in json.loads(said.replace("$$", "$")).items() if k in known and k != "controller_ca"}
        return bool(known) and all(known[name] == value for name, value in wanted.items())

    def _last_words(self) -> str:
        try:
            pods = self.kubectl("get", "pods", "-n", NAMESPACE, "-o", "wide")
            return pods + self.kubectl("logs", f"deployment/{DEPLOYMENT}", "-n", NAMESPACE, "--tail=12")
        except CommandError as error:
            return str(error)

    def helm(self, *arguments: str) -> str:
        """:raises CommandError: see `shell.run`"""
        home = self.config.root / "helm"
        places = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        options = [f"--kubeconfig={self.config.kubeconfig}", f"--namespace={NAMESPACE}"]
        if arguments[0] != "get":  # which waits for nothing, and refuses the option
            options.append(f"--timeout={TIMEOUT}s")
        env = {**without_proxies(), **places}
        return run([self.binaries["helm"], *arguments, *options], env=env, timeout=TIMEOUT + 30)


def local_values(config: ClusterConfig, torch: Path, images: Mapping[str, Image]) -> dict[str, Any]:
    """The chart's values for this cluster. Pure."""
    return {
        "images": {"agent": AGENT.tag, "controller": CONTROLLER.tag, "train": TRAIN.tag},
        # Tags never change here: the image's digest on the pods makes Helm roll a rebuilt controller out.
        "controller": {"podAnnotations": {"singularity.dev/image": images[CONTROLLER.name].manifest}},
        "imagePullPolicy": "IfNotPresent",
        "kueue": {"username": KUEUE_USER},
        "store": {
            "url": f"file://{SHARED_MOUNT}/{STORE}",
            "encryption": {"enabled": True, "secret": store_keys.NAME, "namespaces": [*store_keys.ENCRYPTED]},
        },
        "pods": {
            "volumes": [
                {"name": "shared", "hostPath": {"path": str(config.shared), "type": "Directory"}},
                {"name": "torch", "hostPath": {"path": str(torch), "type": "Directory"}},
            ],
            "volumeMounts": [
                {"name": "shared", "mountPath": SHARED_MOUNT},
                {"name": "torch", "mountPath": TORCH_MOUNT, "readOnly": True},
            ],
            "env": {"PYTHONPATH": TORCH_MOUNT, "OMP_NUM_THREADS": "1"},
        },
        "regrow": {"mode": "act"},
        "sampleQueues": {"enabled": True, "flavors": _flavors(QUOTAS)},
        "adoption": {"enabled": True},
    }


def _flavors(cpus: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of the sample queues: name -> quota of CPUs, on the nodes of that flavor."""
    return [{"name": name, "nodeLabels": {"flavor": name}, "quota": {"cpu": cpu}} for name, cpu in cpus.items()]
