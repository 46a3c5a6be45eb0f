"""What is switched off: feature gates of the API server, and Kueue's own configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ..errors import Forbidden, KubeError, NotFound
from ..jobs.queue_position import GROUP, VERSIONS
from ..kube.api import Kube
from ..kube.resources import CONFIG_MAP, DEPLOYMENT, Object, pod_spec, selector
from .check import FAIL, OK, WARN, Check, listing

NEEDED = ("SidecarContainers", "ValidatingAdmissionPolicy", "JobPodReplacementPolicy")
"""Gates of Kubernetes that can still be switched off in 1.33; one that is not listed has become permanent."""
MISSED = {
    "PartialAdmission": "jobs never start with fewer workers than they want",
    "FlavorFungibility": "a job waits for the first flavor of its queue while the next one has room",
}
"""Gates of Kueue (beta, on by default) without which something that we promise does not happen."""
HARMFUL = {
    "ConcurrentAdmission": "training jobs in its queues are refused, because their pods would start without an attempt",
    "FailureRecoveryPolicy": "a pod with kueue.x-k8s.io/safe-to-forcefully-delete may be forgotten while it still"
    " writes, and the next attempt starts beside it: only the guard's policy keeps the annotation off training pods",
}
"""Gates of Kueue (alpha) that take away what we promise."""
KUEUE_CONFIG = "kueue-manager-config"
SHORT_S = 120.0
_GATE = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} (\d)', re.MULTILINE)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def api_gates(kube: Kube) -> Iterator[Check]:
    """The gates that hold and sidecar need, as the API server's own metrics show them."""
    try:
        found = dict(_GATE.findall(kube.get_text("/metrics")))
    except (Forbidden, NotFound):
        yield Check("feature gates", OK, "not checked: the API server shows its metrics to administrators only")
        return
    off = [gate for gate in NEEDED if found.get(gate) == "0"]
    if off:
        fix = f"Start kube-apiserver with --feature-gates={','.join(f'{gate}=true' for gate in off)}"
        yield Check("feature gates", FAIL, f"switched off: {listing(off)}", fix)
    else:
        yield Check("feature gates", OK, f"{', '.join(NEEDED)}: none is switched off")


def kueue_config(kube: Kube) -> Iterator[Check]:
    """What Kueue's ConfigMap switches off, or sets so short that a restore does not fit."""
    config = configuration(kube)
    if config is None:
        yield Check("Kueue config", OK, f"no ConfigMap {KUEUE_CONFIG} that you may read: not checked")
        return
    wrong = list(_kueue_problems(config))
    yield from wrong or [Check("Kueue config", OK, "frameworks, gates and timeouts suit training jobs")]


def visibility(kube: Kube) -> Iterator[Check]:
    """Kueue's aggregated API with the places in the queues; `status` does without."""
    for version in VERSIONS:
        try:
            kube.get_path(f"/apis/{GROUP}/{version}")
        except NotFound:
            continue
        except KubeError as error:
            fix = f"Jobs do without; see `kubectl describe apiservice {version}.{GROUP}`."
            yield Check("visibility", WARN, f"{GROUP} does not answer: {error}", fix)
            return
        yield Check("visibility", OK, f"{GROUP}/{version}: `status` tells the place in the queue")
        return
    fix = "Jobs do without. It is on by default (gate VisibilityOnDemand, APIService of Kueue's own installation)."
    yield Check("visibility", WARN, "not served: `status` cannot tell the place in the queue", fix)


def configuration(kube: Kube) -> Mapping[str, Any] | None:
    """Kueue's own configuration; None where the caller may not read it, or it is not where Kueue installs it."""
    labels = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    try:
        running = {str(d["metadata"]["namespace"]): d for d in kube.list(DEPLOYMENT, None, selector(labels))}
        for namespace in sorted(running.keys() | {"kueue-system"}):
            found = kube.find(CONFIG_MAP, namespace, KUEUE_CONFIG)
            if found is not None:
                data = yaml.safe_load(str((found.get("data") or {}).get("controller_manager_config.yaml") or ""))
                flags = _gates_of_flags(running.get(namespace))
                return {**data, **({"featureGates": flags} if flags else {})} if isinstance(data, dict) else None
    except (Forbidden, yaml.YAMLError):
        pass
    return None


def _gates_of_flags(deployment: Object | None) -> dict[str, bool]:
    """Gates that Kueue's program is started with; it takes them from there or from its configuration, not from both."""
    pod = pod_spec(deployment) if deployment is not None else {}
    words = [word for part in pod.get("containers") or () for word in part.get("args") or ()]
    text = ",".join(word.partition("=")[2] for word in words if str(word).startswith("--feature-gates="))
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return {name: value.lower() in ("true", "1", "t") for name, _, value in pairs}


def _kueue_problems(config: Mapping[str, Any]) -> Iterator[Check]:
    edit = f"Change it in ConfigMap {KUEUE_CONFIG}, or in the flags of Kueue's Deployment, and restart Kueue."
    frameworks = (config.get("integrations") or {}).get("frameworks")
    if frameworks and "batch/job" not in frameworks:
        yield Check("Kueue config", FAIL, f"integrations.frameworks has no batch/job: {listing(frameworks, 9)}", edit)
    gates = config.get("featureGates") or {}
    for gate, lost in MISSED.items():
        if gates.get(gate) is False:
            yield Check("Kueue config", WARN, f"featureGates.{gate} is off: {lost}", edit)
    for gate, harm in HARMFUL.items():
        if gates.get(gate) is True:
            yield Check("Kueue config", WARN, f"featureGates.{gate} is on: {harm}", edit)
    ready = config.get("waitForPodsReady") or {}
    for field in ("timeout", "recoveryTimeout"):
        span = _seconds(ready.get(field))
        if ready.get("enable", True) and span is not None and span < SHORT_S:
            short = f"waitForPodsReady.{field} is {span:g} s: a job that restores longer is evicted again and again"
            yield Check("Kueue config", WARN, short, edit)


def _seconds(text: object) -> float | None:
    parts = _SPAN.findall(str(text or ""))
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else None
