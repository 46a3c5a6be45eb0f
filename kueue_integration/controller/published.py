"""What the platform says to those who submit jobs: the chart's settings, with the authorities that pods have to trust.

The authorities are known to the controller alone. So it writes whatever contains them: the key `platform.json` of the
ConfigMap that the chart makes without content, whom the API server trusts when it asks for adoption, and the pods'
parts for TrainJobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..adoption import review, trainjob
from ..contract import job_names, platform_objects
from ..errors import AlreadyExists, ChartError
from ..kube.client import Kube
from ..kube.resources import ADMISSION_CHECK, CONFIG_MAP, MUTATING_WEBHOOK, Object, kind_of
from ..spec import platform_config
from ..spec.platform_config import NODE, PlatformConfig
from .keys import Keys

log = logging.getLogger(__name__)

_HELM = ("meta.helm.sh/", "app.kubernetes.io/managed-by")
"""Annotations and the label by which Helm knows its own: 0.1.0, which has these objects in its chart, takes them over.
None of the other labels: Argo CD would prune by them."""


@dataclass(frozen=True)
class Settings:
    """What the chart says. The platform's `controller_ca` is still empty."""

    platform: PlatformConfig
    adoption: bool = False
    trainjob: bool = False


class Publisher:
    """Call `publish` with the keys in use. It writes if this replica acts and something differs.

    `flavors` says which can give pods a user namespace; it is asked where the chart wants to know. `guard_problem` says
    what of the guard of pods is not in force."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        settings: Settings,
        leads: Callable[[], bool],
        flavors: Callable[[], Mapping[str, Mapping[str, str]]] = dict,
        guard_problem: Callable[[], str] = str,
    ) -> None:
        self._kube, self._namespace, self._settings, self._leads = kube, namespace, settings, leads
        self._flavors, self._guard_problem = flavors, guard_problem
        self._written: set[str] = set()
        self.adopts: PlatformConfig | None = None
        """What every replica adopts Jobs with; None without adoption, and before the keys are known."""

    def publish(self, found: Keys) -> None:
        """Raises KubeError, ChartError."""
        platform = replace(self._settings.platform, controller_ca=found.bundle, guard_problem=self._guard_problem())
        if platform.privileges != NODE:
            platform = replace(platform, user_namespaces=self._flavors())
        self.adopts = platform if self._settings.adoption else None
        if not self._leads():
            return
        if not self._settings.trainjob:
            self._config_map(platform)
        else:
            runtime = trainjob.runtime(platform)
            version = trainjob.version(runtime)
            # Of the whole cluster, like its owner, which goes with the chart.
            owner = self._kube.get(ADMISSION_CHECK, None, job_names.ADMISSION_CHECK_NAME)
            self._once(version, owner)
            config = self._config_map(replace(platform, training_runtime=version["metadata"]["name"]))
            self._ensure(runtime, config, owner)
        if self._settings.adoption:
            self._trusted(found.bundle)

    def _config_map(self, platform: PlatformConfig) -> Object:
        name, text = job_names.PLATFORM_CONFIGMAP, platform_config.to_json(platform)
        found = self._kube.find(CONFIG_MAP, self._namespace, name)
        if found is None:
            raise ChartError(f"no ConfigMap {self._namespace}/{name}: nobody can submit", "apply the chart again")
        if (found.get("data") or {}).get(platform_config.CONFIG_KEY) == text:
            return found
        log.info("ConfigMap %s is written: agent image %s", name, platform.agent_image)
        data = {"data": {platform_config.CONFIG_KEY: text}}
        return self._kube.patch(CONFIG_MAP, self._namespace, name, data, found["metadata"]["resourceVersion"])

    def _trusted(self, bundle: str) -> None:
        """Let the API server trust the authorities when it asks for adoption."""
        hook = self._kube.find(MUTATING_WEBHOOK, None, review.NAME)
        if hook is None:
            what = f"no {MUTATING_WEBHOOK.name} {review.NAME}: no Job is adopted by its label"
            raise ChartError(what, "apply the chart again")
        authorities = b64encode(bundle.encode()).decode()
        clients = [each["clientConfig"] for each in hook["webhooks"]]
        if all(client.get("caBundle") == authorities for client in clients):
            return
        for client in clients:
            client["caBundle"] = authorities
        self._kube.replace(hook)
        log.info("%s %s has the authorities", MUTATING_WEBHOOK.name, review.NAME)

    def _once(self, made: Object, owner: Object) -> None:
        """Make an object whose name says what is in it, unless it is there."""
        name = made["metadata"]["name"]
        if name in self._written:
            return
        made["metadata"]["ownerReferences"] = [_reference(owner)]
        with contextlib.suppress(AlreadyExists):
            self._kube.create(made)
            log.info("%s %s is made", made["kind"], name)
        self._written.add(name)

    def _ensure(self, made: Object, config: Object, owner: Object) -> None:
        """Write `made` if it differs from what was written last, and once in the life of this process."""
        kind, meta = kind_of(made), made["metadata"]
        for part in ("labels", "annotations"):
            told = {k: v for k, v in (config["metadata"].get(part) or {}).items() if k.startswith(_HELM)}
            meta[part] = {**told, **(meta.get(part) or {})}
        meta["ownerReferences"] = [_reference(owner)]
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
        meta["annotations"] |= {job_names.MADE_OF: digest}
        found = self._kube.find(kind, meta.get("namespace"), meta["name"])
        if found is None:
            self._kube.create(made)
        elif digest not in self._written or platform_objects.made_of(found) != digest:
            meta["resourceVersion"] = found["metadata"]["resourceVersion"]
            self._kube.replace(made)
        else:
            return
        self._written.add(digest)
        log.info("%s %s is written", kind.name, meta["name"])


def _reference(owner: Object) -> Object:
    meta = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
